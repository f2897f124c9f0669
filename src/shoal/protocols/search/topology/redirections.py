"""The slave's part in a join: go from our master to the newcomer that it names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.messages import Cancel, Redirect, SlaveHello
from shoal.protocols.search.topology.edges import Edge
from shoal.protocols.search.topology.locations import LEAVING, Location, Redirection
from shoal.protocols.search.topology.ring import Ring


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
