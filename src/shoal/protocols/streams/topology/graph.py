"""The graph that a topology policy works on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import NodeId, short_node_id
from shoal.protocols.streams.topology.policy import LinkChanges, Pair

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


# Finding the parts of a graph that fell apart, and joining them again.
#
# Run by a policy's sweep, never on a join: it looks at every link once.


def reconnect(graph: Graph, rng: Random) -> int:
    """Join all components into one within the degree bound (3 or more); how many were merged.

    The largest component takes in the others, one by one, by the first that applies:

    - both have an open node: link the two;
    - the other has a link that closes a cycle: a 2-switch of that link and a random one of the
      largest component. The other stays in one piece without its link, so that both halves of
      the largest hang on it even if the link cut there was a bridge;
    - the other is a tree: a leaf of it has two free slots or more and goes into a random link of
      the largest.
    """
    forest = _Forest(graph)
    components: dict[NodeId, list[NodeId]] = {}
    for node in graph.nodes:
        components.setdefault(forest.root(node), []).append(node)
    if len(components) <= 1:
        return 0
    spare: dict[NodeId, list[Link]] = {}
    for link in forest.spare:
        spare.setdefault(forest.root(link[0]), []).append(link)
    main = max(components, key=lambda root: len(components[root]))
    main_open = _open_nodes(graph, components[main])
    for root, members in components.items():
        if root == main:
            continue
        members_open = _open_nodes(graph, members)
        if main_open and members_open:
            at = rng.randrange(len(main_open))
            graph.link(main_open[at], rng.choice(members_open))
            if not graph.free_slots(main_open[at]):
                main_open[at] = main_open[-1]
                main_open.pop()
        elif root in spare:
            a, b = rng.choice(spare[root])
            c, e = _random_link_within(graph, forest, main, rng)
            graph.cut(a, b)
            graph.cut(c, e)
            graph.link(a, c)
            graph.link(b, e)
        else:
            leaf = max(members_open, key=graph.free_slots)
            c, e = _random_link_within(graph, forest, main, rng)
            graph.cut(c, e)
            graph.link(leaf, c)
            graph.link(leaf, e)
        forest.unite(root, main)
        main_open += _open_nodes(graph, members_open)
    return len(components) - 1


def _open_nodes(graph: Graph, nodes: list[NodeId]) -> list[NodeId]:
    return [node for node in nodes if graph.free_slots(node)]


def _random_link_within(graph: Graph, forest: _Forest, member: NodeId, rng: Random) -> Link:
    # Rejection keeps the choice uniform. The largest of k components holds about 1/k of the links
    # or more, and grows with each merge: O(k log k) tries for all merges together.
    while True:
        a, b = graph.random_link(rng)
        if forest.root(a) == forest.root(member):
            return (a, b) if rng.getrandbits(1) else (b, a)


class _Forest:
    """Disjoint sets over a graph's nodes, and the links left over once the sets are joined.

    Every spare link closes a cycle with links before it, so that cutting one disconnects nothing.
    """

    def __init__(self, graph: Graph) -> None:
        self._parent: dict[NodeId, NodeId] = {node: node for node in graph.nodes}
        self._size: dict[NodeId, int] = dict.fromkeys(graph.nodes, 1)
        self.spare: list[Link] = [link for link in graph.links if not self.unite(*link)]

    def root(self, node: NodeId) -> NodeId:
        """The node that stands for the set."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def unite(self, a: NodeId, b: NodeId) -> bool:
        """Join two sets; False if they are one already."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return False
        if self._size[a] < self._size[b]:
            a, b = b, a
        self._parent[b] = a
        self._size[a] += self._size[b]
        return True
