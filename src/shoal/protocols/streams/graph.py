"""The graph that a topology policy works on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import NodeId, short_node_id
from shoal.protocols.streams.topology import LinkChanges, Pair

# The smaller id first. A bare tuple, since these are made and hashed several times per join.
Link = tuple[NodeId, NodeId]


class Graph:
    """A simple undirected graph of bounded degree with uniform random choice in O(1).

    Links and open nodes (those with a free slot) lie in lists, so that one random index is a
    uniform choice; the position of each entry is kept as well, so that removal swaps the last
    entry into the hole. The adjacency is a dict per node, neighbour -> position of their link:
    membership, order and index in one. No set is ever iterated: runs under different hash seeds
    agree.

    Every link made or cut is noted until `take_changes`; making again what was cut, or the
    reverse, strikes the note out, which leaves the net changes.
    """

    def __init__(self, degree: int) -> None:
        if degree < 1:
            raise UsageError(f"a graph needs a degree of at least 1, not {degree}")
        self.degree = degree
        self._adjacency: dict[NodeId, dict[NodeId, int]] = {}
        self._links: list[Link] = []
        self._open: list[NodeId] = []
        self._open_position: dict[NodeId, int] = {}
        self._noted: dict[Link, bool] = {}
        self._version = 0

    @property
    def nodes(self) -> Collection[NodeId]:
        """A live view of the nodes in order of arrival."""
        return self._adjacency.keys()

    @property
    def links(self) -> Sequence[Link]:
        """A live view of the links, in an order that cuts disturb."""
        return self._links

    @property
    def open_nodes(self) -> Sequence[NodeId]:
        """A live view of the nodes with a free slot, in an order that changes disturb."""
        return self._open

    @property
    def version(self) -> int:
        """A count of all changes so far: equal counts mean an unchanged graph."""
        return self._version

    def neighbours(self, node: NodeId) -> tuple[NodeId, ...]:
        """The nodes linked to a node, oldest link first."""
        return tuple(self._row(node))

    def linked(self, a: NodeId, b: NodeId) -> bool:
        """Whether two nodes are linked; unknown nodes are linked to nobody."""
        row = self._adjacency.get(a)
        return row is not None and b in row

    def free_slots(self, node: NodeId) -> int:
        """How many more links a node may have."""
        return self.degree - len(self._row(node))

    def random_link(self, rng: Random) -> Link:
        """One link, uniformly; UsageError if there is none."""
        if not self._links:
            raise UsageError("a graph without links has no random link")
        return rng.choice(self._links)

    def random_open_node(self, rng: Random) -> NodeId:
        """One node with a free slot, uniformly; UsageError if all are full."""
        if not self._open:
            raise UsageError("a graph without free slots has no random open node")
        return rng.choice(self._open)

    def add_node(self, node: NodeId) -> None:
        """Take in a node without links."""
        if node in self._adjacency:
            raise UsageError(f"{short_node_id(node)} is in the graph already")
        self._adjacency[node] = {}
        self._open_slot(node)
        self._version += 1

    def remove_node(self, node: NodeId) -> None:
        """Drop a node and its links."""
        for neighbour in self.neighbours(node):
            self.cut(node, neighbour)
        self._close_slot(node)
        del self._adjacency[node]
        self._version += 1

    def link(self, a: NodeId, b: NodeId) -> None:
        """Link two nodes that have a free slot each and no link yet."""
        row_a, row_b = self._row(a), self._row(b)
        if a == b or b in row_a:
            raise UsageError(f"{short_node_id(a)} and {short_node_id(b)} are one, or linked")
        if len(row_a) >= self.degree or len(row_b) >= self.degree:
            raise UsageError(f"{short_node_id(a)} or {short_node_id(b)} has no free slot")
        link = (a, b) if a < b else (b, a)
        row_a[b] = row_b[a] = len(self._links)
        self._links.append(link)
        if len(row_a) == self.degree:
            self._close_slot(a)
        if len(row_b) == self.degree:
            self._close_slot(b)
        self._note(link, made=True)

    def cut(self, a: NodeId, b: NodeId) -> None:
        """Cut the link between two nodes."""
        row_a, row_b = self._row(a), self._row(b)
        if b not in row_a:
            raise UsageError(f"{short_node_id(a)} and {short_node_id(b)} are not linked")
        position = row_a.pop(b)
        del row_b[a]
        last = self._links.pop()
        if position < len(self._links):
            self._links[position] = last
            c, e = last
            self._adjacency[c][e] = self._adjacency[e][c] = position
        if len(row_a) == self.degree - 1:
            self._open_slot(a)
        if len(row_b) == self.degree - 1:
            self._open_slot(b)
        self._note((a, b) if a < b else (b, a), made=False)

    def take_changes(self) -> LinkChanges:
        """The net changes since the last call, in the order they were made."""
        if not self._noted:
            return LinkChanges()
        noted, self._noted = self._noted, {}
        return LinkChanges(
            added=tuple(Pair(*link) for link, made in noted.items() if made),
            removed=tuple(Pair(*link) for link, made in noted.items() if not made),
        )

    def check_invariants(self) -> None:
        """Raise InvariantViolated unless rows, link list and open list tell one story."""
        for node, row in self._adjacency.items():
            name = short_node_id(node)
            _hold(len(row) <= self.degree, f"{name} has {len(row)} links, of {self.degree} at most")
            _hold(node not in row, f"{name} is linked to itself")
            for neighbour, position in row.items():
                pair = f"{name} and {short_node_id(neighbour)}"
                _hold(self.linked(neighbour, node), f"only one of {pair} knows of their link")
                _hold(0 <= position < len(self._links), f"{pair}: position {position} is no index")
                link = (node, neighbour) if node < neighbour else (neighbour, node)
                _hold(self._links[position] == link, f"{pair}: position {position} is another's")
            is_open = len(row) < self.degree
            _hold(is_open == (node in self._open_position), f"{name}: wrong about free slots")
        ends = sum(len(row) for row in self._adjacency.values())
        # With every row entry at its own index, equal counts leave no room for a double link.
        _hold(ends == 2 * len(self._links), f"{ends} link ends, {len(self._links)} links")
        _hold(len(self._open) == len(self._open_position), "open list and its index differ")
        for node, position in self._open_position.items():
            _hold(node in self._adjacency, f"{short_node_id(node)} is open but not in the graph")
            in_place = 0 <= position < len(self._open) and self._open[position] == node
            _hold(in_place, f"{short_node_id(node)} is not at {position} of the open list")

    def _row(self, node: NodeId) -> dict[NodeId, int]:
        try:
            return self._adjacency[node]
        except KeyError:
            raise UsageError(f"{short_node_id(node)} is not in the graph") from None

    def _open_slot(self, node: NodeId) -> None:
        self._open_position[node] = len(self._open)
        self._open.append(node)

    def _close_slot(self, node: NodeId) -> None:
        position = self._open_position.pop(node)
        last = self._open.pop()
        if position < len(self._open):
            self._open[position] = last
            self._open_position[last] = position

    def _note(self, link: Link, *, made: bool) -> None:
        # Making and cutting one link alternate, so a note that is there is of the other kind.
        if self._noted.pop(link, None) is None:
            self._noted[link] = made
        self._version += 1


def _hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvariantViolated(otherwise)
