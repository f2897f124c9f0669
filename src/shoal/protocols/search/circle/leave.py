"""Leaving a location in good order: its master takes its slave, and the circle stays whole.

Two races. If our slave leaves while we do, its request is ignored: it asks again when our master
has become its own. If our master splits the edge to us while we leave, it ignores our request: we
go to the newcomer that it names, and ask that one.

When our master has let us go, our slave is about to: it has heard from our master, or soon will.
Only if it does not in time we break the edge to it. To break it at once would overtake our master's
hello now and then, and a slave that leaves as well would go without handing on its own slave.
"""

from __future__ import annotations

from functools import partial

from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.circle.locations import LEAVING, Edge, Location, Merge, Ring, Split
from shoal.protocols.search.messages import BreakEdge, MasterHello, MergeEdge


class Leaves:
    """Locations that we leave, and slaves that leave us."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def begin(self, location: Location, now_ns: int) -> list[Effect]:
        """Leave a location at which nothing else happens; later, if something does."""
        location.unwanted = True
        if not location.can_leave:
            return []
        master = location.master
        if master is not None and (master.peer, master.theirs) == (self._ring.node, location.id):
            return self._vanish(location)
        location.phase = LEAVING
        location.deadline_ns = now_ns + self._ring.config.leave_ns
        return self.ask(location)

    def ask(self, location: Location) -> list[Effect]:
        """Have the master take us out; without one, the slave gets a hole."""
        master, slave = location.master, location.slave
        if master is None:
            self._ring.settle(location)
            return [] if slave is None else [Send(BreakEdge(slave.name), (slave.peer,))]
        if slave is None:
            message = MergeEdge(master.name, None, 0)
        else:
            message = MergeEdge(master.name, slave.record, slave.theirs)
        return [Send(message, (master.peer,))]

    def expire(self, location: Location, now_ns: int) -> list[Effect]:
        """A master that does not answer is asked again, and then no more."""
        if location.phase != LEAVING or now_ns < location.deadline_ns:
            return []
        ring = self._ring
        location.tries += 1
        location.deadline_ns = now_ns + ring.config.leave_ns
        if location.tries < ring.config.leave_tries:
            return self.ask(location)
        ring.locations.remove(location)
        return ring.close(location.master) + ring.close(location.slave)

    def asked(self, edge: Edge, message: MergeEdge, now_ns: int) -> list[Effect]:
        """Our slave wants to leave."""
        location = self._ring.locations.get(edge.mine)
        if location is None or location.slave is not edge:
            return []
        if location.phase == LEAVING:
            return []
        if isinstance(location.below, Split):
            if location.below.redirected:
                self._ring.races["leave-during-split"] += 1
            else:
                location.below.merge = message
            return []
        if location.below is not None:
            return []  # it asks again; we are at it
        return self.merge(location, edge, message, now_ns)

    def merge(
        self, location: Location, leaver: Edge, message: MergeEdge, now_ns: int
    ) -> list[Effect]:
        """Take our slave out of the circle: its slave becomes ours."""
        ring, remote = self._ring, message.remote
        if remote is None:
            location.slave = None
            ring.settle(location)
            return ring.close(leaver)
        location.below = merge = Merge(leaver)
        checked = partial(self._checked, location, merge, message)
        return ring.checks.check(remote.node, remote.signed, checked, now_ns)

    def broken(self, edge: Edge) -> list[Effect]:
        """Our master leaves, and has nobody above it: we have nobody either now."""
        location = self._ring.locations.get(edge.mine)
        if location is None or location.master is not edge:
            return []
        location.master = None
        self._ring.settle(location)
        return self._ring.close(edge)

    def _vanish(self, location: Location) -> list[Effect]:
        """The last place of a circle is its own master and slave: nobody is left to ask."""
        loops = [edge for edge in self._ring.edges if edge.mine == location.id]
        self._ring.locations.remove(location)
        return [effect for edge in loops for effect in self._ring.gone(edge)]

    def _checked(
        self, location: Location, merge: Merge, message: MergeEdge, valid: bool, now_ns: int
    ) -> list[Effect]:
        remote = message.remote
        assert remote is not None  # merge() has seen to it
        reached = partial(self._reached, location, merge, message)
        if valid:
            return self._ring.links.open(remote.contact, reached, now_ns)
        return [Rejected(merge.leaver.peer, "bad-address"), *reached(False, now_ns)]

    def _reached(
        self, location: Location, merge: Merge, message: MergeEdge, up: bool, now_ns: int
    ) -> list[Effect]:
        ring, remote = self._ring, message.remote
        assert remote is not None
        if location.below is not merge:
            return []
        location.below = location.slave = None
        effects: list[Effect] = []
        if up:
            hello = MasterHello(location.id, message.location, False, ring.bootstrap(), ring.record)
            location.slave, effects = ring.greet(remote, location, hello, now_ns)
        ring.settle(location)
        return effects + ring.close(merge.leaver)
