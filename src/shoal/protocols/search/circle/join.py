"""The newcomer's part in a join: ask for an edge to be split, and greet whoever comes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import ceil, log
from typing import NamedTuple

from shoal.base.ids import Contact, NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.circle.locations import (
    JOINING,
    LEAVING,
    STANDING,
    Edge,
    Location,
    Merge,
    Redirection,
    Ring,
    Split,
)
from shoal.protocols.search.messages import (
    Cancel,
    EdgeClosed,
    EdgeName,
    MasterHello,
    MergeEdge,
    Redirect,
    SlaveHello,
    SplitEdge,
)


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


# The master's part in a join: where a SplitEdge's walk ends, and how the newcomer is let in.
#
# The newcomer is greeted (MasterHello), and says that it is our slave (SlaveHello). Then our slave
# is told to go to it (Redirect). When the slave has gone, it closes its edge to us; when it cannot
# reach the newcomer, it says Cancel, and all is as before.
#
# The thesis sends MasterHello and Redirect at once. A newcomer that has changed its mind, or has
# crashed and started again while its request walked, refuses both who come to it; but then the
# slave has left us already, and the circle is torn.


HOPS_UNKNOWN = 0x7FFF_FFFF  # of whoever does not know how large the network is
HOPS_TAKEN = 5  # with so many left or fewer, the first who can split does
NODES_MIN = 10_000  # 36 hops are enough for so many, and cheap for fewer
WAITING_MAX = 64  # newcomers at once, above which they have to ask again


class _Waiting(NamedTuple):
    peer: NodeId
    message: SplitEdge
    until_ns: int


def walk_hops(nodes: float | None) -> int:
    """How far a SplitEdge walks until every edge is as likely as any other. Not less than for
    NODES_MIN: a network that grows faster than it is measured believes that it is small, and if
    newcomers settled near whom they asked first, it would not be a random one any more. (1,000
    nodes that joined within a minute: values spread ten times slower.)"""
    return ceil(8 + 3 * log(max(NODES_MIN, nodes or 0)))


class Splits:
    """Splits of our edges, and walks that pass."""

    def __init__(
        self, ring: Ring, merge: Callable[[Location, Edge, MergeEdge, int], list[Effect]]
    ) -> None:
        """`merge` takes up what our slave asked for while we meant to split."""
        self._ring = ring
        self._merge = merge
        self._waiting: deque[_Waiting] = deque()

    def hops(self) -> int | None:
        """How far to walk in the network as it was measured."""
        totals = self._ring.totals()
        return None if totals is None else walk_hops(totals.nodes)

    def walk(self, peer: NodeId, message: SplitEdge, now_ns: int) -> list[Effect]:
        """One step of a walk, which may end here."""
        hops_max = self.hops() or walk_hops(None)
        hops = min(message.hops, hops_max) - 1
        if hops <= HOPS_TAKEN:
            location = self._splittable()
            if location is not None:
                return self._begin(peer, location, message, now_ns)
        if hops <= 0:
            self._wait(peer, message, now_ns + self._ring.config.join_ns // 2)
            return []
        return self.forward(message, hops)

    @property
    def waiting(self) -> bool:
        """Whether newcomers wait for an edge that can be split."""
        return bool(self._waiting)

    def resume(self, now_ns: int) -> list[Effect]:
        """Let in whoever has waited longest, if we can now."""
        while self._waiting and self._waiting[0].until_ns <= now_ns:
            self._waiting.popleft()  # it has asked somebody else by now
        location = self._splittable() if self._waiting else None
        if location is None:
            return []
        peer, message, _ = self._waiting.popleft()
        return self._begin(peer, location, message, now_ns)

    def hold(self, peer: NodeId, message: SplitEdge, now_ns: int) -> None:
        """We have no place yet: let it in once we have, if that is before its request expires."""
        self._wait(peer, message, now_ns + self._ring.config.join_ns * 3 // 4)

    def forward(self, message: SplitEdge, hops: int) -> list[Effect]:
        """Over any of our edges; nothing, if there is none."""
        edges = self._ring.edges.open()
        if not edges:
            return []
        edge = self._ring.rng.choice(edges)
        return [Send(SplitEdge(edge.name, message.origin, message.location, hops), (edge.peer,))]

    def confirmed(self, edge: Edge, now_ns: int) -> list[Effect]:
        """The other end of an edge that we opened says that it is our slave."""
        ring = self._ring
        location = ring.locations.of(edge)
        split, slave = location.below, location.slave
        if not isinstance(split, Split) or split.edge is not edge or split.redirected:
            return []
        assert slave is not None  # without one, or once it is gone, a newcomer has its place
        split.redirected = True
        split.deadline_ns = now_ns + ring.config.split_ns
        if split.merge is not None:
            ring.races["leave-during-split"] += 1  # it will ask the newcomer for the same
        return [Send(Redirect(slave.name, split.origin, split.location), (slave.peer,))]

    def cancelled(self, edge: Edge) -> list[Effect]:
        """Our slave did not reach the newcomer."""
        ring = self._ring
        location = ring.locations.get(edge.mine)
        if location is None or location.slave is not edge:
            return []
        split = location.below
        if not isinstance(split, Split) or not split.redirected:
            return []
        location.below = None
        return ring.close(split.edge)

    def expire(self, location: Location, now_ns: int) -> list[Effect]:
        """Nobody answered in time: all stays as it was."""
        split = location.below
        if not isinstance(split, Split) or now_ns < split.deadline_ns:
            return []
        return self._ring.close(split.edge) + self._give_up(location, split, now_ns)

    # Steps

    def _wait(self, peer: NodeId, message: SplitEdge, until_ns: int) -> None:
        """All our edges change, and the walk is over. In a network of one node that is what
        happens to the second who comes: so it waits, for less time than it has patience."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(_Waiting(peer, message, until_ns))

    def _splittable(self) -> Location | None:
        ring = self._ring
        if ring.checks.busy:
            return None
        able = [location for location in ring.locations if location.can_split]
        return ring.rng.choice(able) if able else None

    def _begin(
        self, peer: NodeId, location: Location, message: SplitEdge, now_ns: int
    ) -> list[Effect]:
        origin = message.origin
        split = Split(origin, message.location, now_ns + self._ring.config.split_ns)
        location.below = split
        checked = partial(self._checked, peer, location, split)
        return self._ring.checks.check(origin.node, origin.signed, checked, now_ns)

    def _checked(
        self, peer: NodeId, location: Location, split: Split, valid: bool, now_ns: int
    ) -> list[Effect]:
        if location.below is not split:
            return []
        if not valid:
            return [Rejected(peer, "bad-address"), *self._give_up(location, split, now_ns)]
        reached = partial(self._reached, location, split)
        return self._ring.links.open(split.origin.contact, reached, now_ns)

    def _reached(self, location: Location, split: Split, up: bool, now_ns: int) -> list[Effect]:
        ring, newcomer = self._ring, split.origin
        if location.below is not split:
            return []
        if not up:
            return self._give_up(location, split, now_ns)
        slave = location.slave
        hello = MasterHello(
            location.id, split.location, slave is not None, ring.bootstrap(), ring.record
        )
        edge, effects = ring.greet(newcomer, location, hello, now_ns)
        split.deadline_ns = now_ns + ring.config.split_ns
        if slave is None:
            location.slave, location.below = edge, None
        else:
            split.edge = edge
        return effects

    def _give_up(self, location: Location, split: Split, now_ns: int) -> list[Effect]:
        location.below = None
        # A slave that was told of the newcomer asks that one, or us again.
        if split.merge is not None and location.slave is not None and not split.redirected:
            return self._merge(location, location.slave, split.merge, now_ns)
        self._ring.settle(location)
        return []


# The slave's part in a join: go from our master to the newcomer that it names.


class Redirections:
    """What our masters tell us."""

    def __init__(self, ring: Ring, ask_to_leave: Callable[[Location], list[Effect]]) -> None:
        self._ring = ring
        self._ask_to_leave = ask_to_leave

    def begin(self, edge: Edge, message: Redirect, now_ns: int) -> list[Effect]:
        """Our master has put somebody between us."""
        ring, location = self._ring, self._ring.locations.get(edge.mine)
        if location is None or location.master is not edge or ring.checks.busy:
            return [Send(Cancel(edge.name), (edge.peer,))]
        # If we are on our way to somebody else, our master has given that one up.
        location.above = redirection = Redirection(edge)
        remote = message.remote
        checked = partial(self._checked, edge.peer, location, redirection, message)
        return ring.checks.check(remote.node, remote.signed, checked, now_ns)

    def _checked(
        self,
        peer: NodeId,
        location: Location,
        redirection: Redirection,
        message: Redirect,
        valid: bool,
        now_ns: int,
    ) -> list[Effect]:
        reached = partial(self._reached, location, redirection, message)
        if valid:
            return self._ring.links.open(message.remote.contact, reached, now_ns)
        return [Rejected(peer, "bad-address"), *reached(False, now_ns)]

    def _reached(
        self,
        location: Location,
        redirection: Redirection,
        message: Redirect,
        up: bool,
        now_ns: int,
    ) -> list[Effect]:
        ring, old, remote = self._ring, redirection.old, message.remote
        if location.above is not redirection:
            return []  # another master came meanwhile
        location.above = None
        effects: list[Effect] = []
        if up:
            hello = SlaveHello(location.id, message.location, ring.bootstrap(), ring.record)
            edge, effects = ring.greet(remote, location, hello, now_ns)
            if location.master is old:
                effects += ring.close(old)
            location.master = edge
        elif location.master is old:
            effects.append(Send(Cancel(old.name), (old.peer,)))
        if location.phase == LEAVING:
            # Whoever is our master now has not heard of it, or was told to forget it.
            return effects + self._ask_to_leave(location)
        ring.settle(location)
        return effects
