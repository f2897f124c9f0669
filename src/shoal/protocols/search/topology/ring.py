"""What the parts of the topology share: this node's edges, locations and links, and how an edge
ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.checks import Checks
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.links import EDGE, Links
from shoal.protocols.search.messages import EdgeClosed, MasterHello, SlaveHello, Totals
from shoal.protocols.search.topology.edges import Edge, Edges
from shoal.protocols.search.topology.locations import JOINING, Location, Locations, Split


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
