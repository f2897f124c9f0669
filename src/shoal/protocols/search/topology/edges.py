"""The ends of edges at this node.

In the thesis a TCP connection is an edge. Here edges share one link per peer, so an edge has a
name: the locations at both ends, and who of the two is its master. Two nodes may have several
edges; a self loop has both of its ends here, under two names.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.messages import EdgeName, MasterHello, SlaveHello


class Edge:
    """Our end of one edge."""

    __slots__ = (
        "closing",
        "heard_ns",
        "hello",
        "master",
        "mine",
        "number",
        "peer",
        "record",
        "theirs",
    )

    def __init__(
        self,
        record: AddressRecord,
        mine: int,
        theirs: int,
        *,
        master: bool,
        number: int,
        now_ns: int,
    ) -> None:
        self.peer = record.node
        self.record = record
        """How others reach the peer, in its own words: told to whom it shall become a neighbour."""
        self.mine = mine
        self.theirs = theirs
        self.master = master
        """Whether we are its master."""
        self.number = number
        """In the order in which they came; never used twice."""
        self.heard_ns = now_ns
        self.hello: MasterHello | SlaveHello | None = None
        """What we opened it with, until the other end is heard of on it."""
        self.closing = False
        """We have said that it ends, and wait for the same word."""

    @property
    def name(self) -> EdgeName:
        """What our messages on it say."""
        return EdgeName(self.mine, self.theirs, self.master)


_Key = tuple[NodeId, int, int, bool]


class Edges:
    """All ends at this node, by their names."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, Edge] = {}
        self._made = 0

    def __iter__(self) -> Iterator[Edge]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, edge: Edge) -> bool:
        """Whether it has not ended yet."""
        return self._by_key.get(_key(edge)) is edge

    def open(self) -> list[Edge]:
        """Those that messages go over, oldest first."""
        return [edge for edge in self._by_key.values() if not edge.closing]

    def with_peer(self, peer: NodeId) -> list[Edge]:
        """All that end at one peer."""
        return [edge for edge in self._by_key.values() if edge.peer == peer]

    def named(self, peer: NodeId, name: EdgeName) -> Edge | None:
        """The edge that a peer's message came over."""
        return self._by_key.get((peer, name.receiver, name.sender, not name.master))

    def add(
        self, record: AddressRecord, mine: int, theirs: int, *, master: bool, now_ns: int
    ) -> Edge:
        """A new end; it takes the place of one with the same name, whose other end is gone."""
        self._made += 1
        edge = Edge(record, mine, theirs, master=master, number=self._made, now_ns=now_ns)
        self._by_key.pop(_key(edge), None)
        self._by_key[_key(edge)] = edge
        return edge

    def remove(self, edge: Edge) -> None:
        """Forget an end."""
        if edge in self:
            del self._by_key[_key(edge)]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        for key, edge in self._by_key.items():
            if _key(edge) != key:
                raise InvariantViolated(f"edge {edge.name} is filed under {key[1:]}")


def _key(edge: Edge) -> _Key:
    return edge.peer, edge.mine, edge.theirs, edge.master
