"""The newcomer's part in a join: ask for an edge to be split, and greet whoever comes of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.messages import (
    EdgeClosed,
    EdgeName,
    MasterHello,
    SlaveHello,
    SplitEdge,
)
from shoal.protocols.search.topology.edges import Edge
from shoal.protocols.search.topology.locations import (
    JOINING,
    LEAVING,
    STANDING,
    Location,
    Merge,
)
from shoal.protocols.search.topology.ring import Ring
from shoal.protocols.search.topology.splits import HOPS_UNKNOWN, Splits


class Joins:
    """Our requests for neighbours."""

    def __init__(
        self,
        ring: Ring,
        splits: Splits,
        uplink: Callable[[SplitEdge, Location, int], list[Effect]],
        ask_to_leave: Callable[[Location], list[Effect]],
        saw: Callable[[Contact], None],
        linked: Callable[[NodeId], None],
    ) -> None:
        """`uplink` brings a SplitEdge into the network when we have no edge to send it over; `saw`
        hears of neighbours whose address is their own word, `linked` of who is on our circle."""
        self._ring = ring
        self._splits = splits
        self._uplink = uplink
        self._ask_to_leave = ask_to_leave
        self._saw = saw
        self._linked = linked

    def begin(self, now_ns: int, *, outside: bool) -> list[Effect]:
        """Ask for two neighbours at a new location; outside, if our own edges lead to nobody."""
        location, message = self._request(now_ns)
        walk = [] if outside else self._splits.forward(message, message.hops)
        return walk or self._uplink(message, location, now_ns)

    def begin_at(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """Ask somebody who is no neighbour, but to whom a link is up."""
        location, message = self._request(now_ns)
        location.bridge, location.through = True, peer
        return [Send(message, (peer,))]

    def master_came(self, peer: NodeId, hello: MasterHello, now_ns: int) -> list[Effect]:
        """Somebody says that it is our master; at a location with a master it takes the place of
        one that leaves."""
        ring, location = self._ring, self._ring.locations.get(hello.receiver)
        if hello.record.node != peer:
            return [Rejected(peer, "not-its-address")]
        if location is None or ring.checks.busy:
            return _refuse(peer, hello.receiver, hello.sender, master=False)
        old = location.master
        if (
            old is not None
            and hello.expect_slave
            and (old.peer, old.theirs) != (peer, hello.sender)
        ):
            # Only who splits an edge says so: somebody had our request walk a second time.
            return _refuse(peer, hello.receiver, hello.sender, master=False)
        edge, effects = ring.connect(
            hello.record, location, hello.sender, master=False, now_ns=now_ns
        )
        effects += self._verify(edge, now_ns)
        location.master, location.above = edge, None
        if old is not None and old.name != edge.name:
            effects += ring.close(old)
        confirmation = SlaveHello(location.id, hello.sender, ring.bootstrap(), ring.record)
        effects.append(Send(confirmation, (peer,)))
        if location.phase == LEAVING:
            ring.races["both-leave"] += 1  # our old master left before it could take us out
            return effects + self._ask_to_leave(location)
        if location.phase == JOINING:
            location.expects_slave = hello.expect_slave
        self._progress(location, now_ns)
        return effects

    def slave_came(self, peer: NodeId, hello: SlaveHello, now_ns: int) -> list[Effect]:
        """Somebody was told to be our slave."""
        ring, location = self._ring, self._ring.locations.get(hello.receiver)
        if hello.record.node != peer:
            return [Rejected(peer, "not-its-address")]
        if (
            location is None
            or location.slave is not None
            or location.phase == LEAVING
            or isinstance(location.below, Merge)
            or ring.checks.busy
        ):
            return _refuse(peer, hello.receiver, hello.sender, master=True)
        edge, effects = ring.connect(
            hello.record, location, hello.sender, master=True, now_ns=now_ns
        )
        effects += self._verify(edge, now_ns)
        location.slave = edge
        self._progress(location, now_ns)
        return effects

    def expire(self, location: Location, now_ns: int) -> None:
        """Whoever has not come by now will not, or comes late."""
        ring = self._ring
        if location.phase != JOINING or now_ns < location.deadline_ns:
            return
        if location.edges:
            location.phase = STANDING
        elif location.unwanted:
            ring.locations.remove(location)
        else:
            location.unwanted = True
            location.deadline_ns = now_ns + ring.config.late_ns

    def _request(self, now_ns: int) -> tuple[Location, SplitEdge]:
        ring = self._ring
        location = ring.locations.add(JOINING, now_ns + ring.config.join_ns)
        hops = self._splits.hops() or HOPS_UNKNOWN
        return location, SplitEdge(None, ring.record, location.id, hops)

    def _verify(self, edge: Edge, now_ns: int) -> list[Effect]:
        """The record is passed on when we leave or split: others would blame us for a bad one."""
        record = edge.record
        return self._ring.checks.check(
            record.node, record.signed, partial(self._verified, edge), now_ns
        )

    def _verified(self, edge: Edge, valid: bool, now_ns: int) -> list[Effect]:
        if valid:
            self._saw(edge.record.contact)
            self._linked(edge.peer)
        if valid or edge not in self._ring.edges:
            return []
        ring = self._ring
        return [Rejected(edge.peer, "bad-address"), *ring.close(edge), *ring.gone(edge)]

    def _progress(self, location: Location, now_ns: int) -> None:
        if location.phase != JOINING:
            return
        # The other one has a dial before it, too.
        location.deadline_ns = now_ns + self._ring.config.split_ns
        if location.master is not None and (location.slave or not location.expects_slave):
            location.phase = STANDING
            if location.through is not None:
                self._linked(location.through)


def _refuse(peer: NodeId, mine: int, theirs: int, *, master: bool) -> list[Effect]:
    return [Send(EdgeClosed(EdgeName(mine, theirs, master)), (peer,))]
