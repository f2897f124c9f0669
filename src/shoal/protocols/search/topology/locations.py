"""Our places on the circle.

A location has a master above it and a slave below it. What changes the edge below is serialised by
us, its master (a split, a merge); what changes the edge above by our master (a redirection). So
both sides change independently, one thing at a time each. To leave takes both.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.messages import MergeEdge
from shoal.protocols.search.topology.edges import Edge

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
