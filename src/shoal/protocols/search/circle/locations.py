"""Our places on the circle.

A location has a master above it and a slave below it. What changes the edge below is serialised by
us, its master (a split, a merge); what changes the edge above by our master (a redirection). So
both sides change independently, one thing at a time each. To leave takes both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.links import EDGE, Links
from shoal.protocols.search.messages import (
    EdgeClosed,
    EdgeName,
    MasterHello,
    MergeEdge,
    SlaveHello,
    Totals,
)
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.signed_records import AddressRecord

JOINING = "joining"  # a SplitEdge is on its way, or its answers are
STANDING = "standing"
LEAVING = "leaving"


class Split:
    """We put a newcomer between a location and its slave."""

    __slots__ = ("deadline_ns", "edge", "location", "merge", "origin", "redirected")

    def __init__(self, origin: AddressRecord, location: int, deadline_ns: int) -> None:
        self.origin = origin
        self.location = location
        self.deadline_ns = deadline_ns
        self.edge: Edge | None = None
        """To the newcomer, once it is greeted."""
        self.redirected = False
        """The newcomer has its place, and our slave was told: its MergeEdge goes there now."""
        self.merge: MergeEdge | None = None
        """What our slave asked for before it was told."""


class Merge:
    """Our slave leaves; its slave becomes ours."""

    __slots__ = ("leaver",)

    def __init__(self, leaver: Edge) -> None:
        self.leaver = leaver


class Redirection:
    """Our master told us to go to a newcomer."""

    __slots__ = ("old",)

    def __init__(self, old: Edge) -> None:
        self.old = old


class Location:
    """One place."""

    __slots__ = (
        "above",
        "below",
        "bridge",
        "deadline_ns",
        "expects_slave",
        "id",
        "master",
        "phase",
        "slave",
        "through",
        "tries",
        "unwanted",
    )

    def __init__(self, id: int, phase: str, deadline_ns: int = 0) -> None:
        self.id = id
        self.phase = phase
        self.deadline_ns = deadline_ns
        """When we stop waiting for the others: of a join, or of a leave."""
        self.master: Edge | None = None
        self.slave: Edge | None = None
        self.below: Split | Merge | None = None
        self.above: Redirection | None = None
        self.expects_slave = True
        """While joining: the master has said that one will come, or has not said anything."""
        self.unwanted = False
        """To be left as soon as nothing else happens at it. If its SplitEdge timed out and another
        one was sent: whoever still comes is welcome, and both are merged with each other then."""
        self.bridge = False
        """It may be what connects us with another part of the network: others are left first."""
        self.through: NodeId | None = None
        """Who was asked for it, if that was somebody who was no neighbour."""
        self.tries = 0

    @property
    def edges(self) -> int:
        """Neighbours here."""
        return (self.master is not None) + (self.slave is not None)

    @property
    def holes(self) -> int:
        """Neighbours that are missing here."""
        return 2 - self.edges

    def others(self, node: NodeId) -> list[Edge]:
        """Edges here to anybody but ourselves."""
        edges = (self.master, self.slave)
        return [edge for edge in edges if edge is not None and edge.peer != node]

    def holds(self, edge: Edge) -> bool:
        """Whether it is one of our edges, or about to be."""
        split = self.below if isinstance(self.below, Split) else None
        return edge in (self.master, self.slave) or (split is not None and split.edge is edge)

    @property
    def busy(self) -> bool:
        """Whether one of its edges is changing."""
        return self.below is not None or self.above is not None

    @property
    def can_split(self) -> bool:
        """Whether a newcomer can be put below it."""
        return self.phase == STANDING and self.below is None and not self.unwanted

    @property
    def can_leave(self) -> bool:
        """Whether our master may be asked to take us out. A slave that was not heard of may not
        have heard of us either: our master's hello could overtake ours, and ours would undo it."""
        known = self.slave is None or self.slave.hello is None
        return self.phase == STANDING and not self.busy and known


class Locations:
    """All places of this node."""

    def __init__(self, rng: Random) -> None:
        self._by_id: dict[int, Location] = {}
        self._rng = rng

    def __iter__(self) -> Iterator[Location]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: int) -> Location | None:
        return self._by_id.get(id)

    def of(self, edge: Edge) -> Location:
        """Where one of our edges ends."""
        return self._by_id[edge.mine]

    def add(self, phase: str, deadline_ns: int = 0) -> Location:
        """A new place. Its number is random: a late answer must not find another one under it, and
        0 means none."""
        while True:
            id = self._rng.randrange(1, 1 << 31)
            if id not in self._by_id:
                break
        location = self._by_id[id] = Location(id, phase, deadline_ns)
        return location

    def remove(self, location: Location) -> None:
        """Forget a place; what was under way at it has nothing to change any more."""
        self._by_id.pop(location.id, None)
        location.above = location.below = None

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        for id, location in self._by_id.items():
            if location.phase != JOINING and not location.edges and not location.busy:
                raise InvariantViolated(f"location {id} is {location.phase} without neighbours")
            for edge, master in ((location.master, False), (location.slave, True)):
                if edge is not None and (edge.mine != id or edge.master != master):
                    raise InvariantViolated(f"location {id} holds the edge {edge.name}")


# The ends of edges at this node.
#
# In the thesis a TCP connection is an edge. Here edges share one link per peer, so an edge has a
# name: the locations at both ends, and who of the two is its master. Two nodes may have several
# edges; a self loop has both of its ends here, under two names.


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


# What the parts of the topology share: this node's edges, locations and links, and how an edge
# ends.


class Ring:
    """This node's part of the circle."""

    def __init__(
        self,
        record: AddressRecord,
        totals: Callable[[], Totals | None],
        checks: Checks,
        rng: Random,
        config: SearchConfig,
    ) -> None:
        self.record = record
        """How others reach us."""
        self.totals = totals
        """The network as it was last measured, for newcomers."""
        self.checks = checks
        self.rng = rng
        self.config = config
        self.edges = Edges()
        self.locations = Locations(rng)
        self.links = Links(EDGE, soft=False)
        self.races: Counter[str] = Counter()
        """How often neighbours changed the same edge at once; for whoever looks on."""

    @property
    def node(self) -> NodeId:
        return self.record.node

    def bootstrap(self) -> Totals:
        """What a newcomer is told; zeros mean that we do not know either."""
        return self.totals() or Totals(0.0, 0.0, 0.0)

    def connect(
        self, record: AddressRecord, location: Location, theirs: int, *, master: bool, now_ns: int
    ) -> tuple[Edge, list[Effect]]:
        """A new edge, and a claim on the link that it goes over."""
        edge = self.edges.add(record, location.id, theirs, master=master, now_ns=now_ns)
        return edge, self.links.open(record.contact, lambda up, now_ns: [], now_ns)

    def greet(
        self,
        record: AddressRecord,
        location: Location,
        hello: MasterHello | SlaveHello,
        now_ns: int,
    ) -> tuple[Edge, list[Effect]]:
        """A new edge that the other end is told of, over a link that is up."""
        master = type(hello) is MasterHello
        edge, effects = self.connect(record, location, hello.receiver, master=master, now_ns=now_ns)
        edge.hello = hello
        return edge, [*effects, Send(hello, (edge.peer,))]

    def cut(self, edge: Edge, now_ns: int) -> list[Effect]:
        """The link below an edge is gone. The other end may have let go of it, not needing it, as
        we took it up: then our hello went nowhere, and is said again over another one."""
        hello, edge.hello = edge.hello, None
        if hello is None or edge.closing:
            return self.gone(edge)

        def again(up: bool, now_ns: int) -> list[Effect]:
            return [Send(hello, (edge.peer,))] if up and edge in self.edges else []

        return self.links.open(edge.record.contact, again, now_ns)

    def close(self, edge: Edge | None) -> list[Effect]:
        """Say that an edge ends; it is gone when the other end says so too."""
        if edge is None or edge.closing:
            return []
        edge.closing = True
        return [Send(EdgeClosed(edge.name), (edge.peer,))]

    def gone(self, edge: Edge) -> list[Effect]:
        """An edge has ended, in whichever way."""
        self.edges.remove(edge)
        effects = self.unlink(edge.peer)
        location = self.locations.get(edge.mine)
        if location is None:
            return effects
        split = location.below if isinstance(location.below, Split) else None
        if split is not None and split.edge is edge:
            split.edge = None
            if not split.redirected:  # else our slave says what becomes of it
                location.below = None
        elif location.slave is edge:
            location.slave = None
            # It went to the newcomer, or died; a newcomer that is not greeted yet is so later.
            if split is not None and (split.redirected or split.edge is not None):
                location.slave, location.below = split.edge, None
        elif location.master is edge:
            location.master = None
        self.settle(location)
        return effects

    def unlink(self, peer: NodeId) -> list[Effect]:
        """Give a link back that no edge goes over any more."""
        return [] if self.edges.with_peer(peer) else self.links.release(peer)

    def settle(self, location: Location) -> None:
        """Something has changed at a location: is it still one?"""
        if location.phase != JOINING and not location.edges and not location.busy:
            self.locations.remove(location)

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        self.edges.check_invariants()
        self.locations.check_invariants()
        for location in self.locations:
            for held in (location.master, location.slave):
                if held is not None and (held.closing or held not in self.edges):
                    raise InvariantViolated(
                        f"location {location.id} holds {held.name}, which ended"
                    )
        for edge in self.edges:
            end = self.locations.get(edge.mine)
            if not edge.closing and (end is None or not end.holds(edge)):
                raise InvariantViolated(f"edge {edge.name} ends at a location without it")
        self.links.check_invariants([edge.peer for edge in self.edges])
