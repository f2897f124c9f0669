"""Parts of a network that lost each other find together again.

Whoever has neighbours asks them for more, and so a part that a crash has cut off would stay by
itself for ever. Three things tell a node that it should ask others:

- Two neighbours are gone within the time in which one is missed: many may be. Then it asks LOOKS
  times, MORE_NS apart, for a place through somebody whom it has seen lately and who is not its
  neighbour. One after the other is dialled until one answers. Of DEAD_MANY that do not, each time,
  it learns that the crash was a large one, and asks once more: whoever has lost all whom it knew
  waits for somebody who knows it.
- Somebody answers who had stopped to: a cable may be mended. Every MISSED_LOOK_NS one of those is
  dialled, and if it answers, asked for a place.

- Others enter through this node, and one of those that it was given beside itself has not been on
  its circle yet: two of them may have begun a network each. Every APART_LOOK_NS one of these is
  dialled, and asked for a place.

The place is one more than we want to have. The circle gives up another one for it, one with holes
first. Where nobody is lost without a word, nothing of this ever happens: who moves without need
takes bubbles off the ways that others of the same way took.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import Effect
from shoal.protocols.search.circle.known_nodes import Acquaintances
from shoal.protocols.search.circle.locations import Ring
from shoal.protocols.search.links import Links

LOOKS = 3  # the first may lead to another small part
DEAD_MANY = 4  # after a crash of four fifths or more, all whom we know are asked
MORE_NS = 30 * S_NS
MISSED_LOOK_NS = 120 * S_NS  # a dial is cheap; in a part of ten nodes there is one every 12 s
APART_LOOK_NS = 30 * S_NS  # only those that others enter through do so, and there are few


class Reunions:
    """Our looks beyond our neighbours."""

    def __init__(
        self,
        ring: Ring,
        acquaintances: Acquaintances,
        visits: Links,
        join: Callable[[NodeId, int], list[Effect]],
    ) -> None:
        """`join` asks a node to which a link is up for a place."""
        self._ring = ring
        self._acquaintances = acquaintances
        self._visits = visits
        self._join = join
        self._lost: tuple[NodeId, int] | None = None
        """The neighbour that was lost last, and when."""
        self._looks = 0
        """How often we still want to ask somebody outside."""
        self._look_ns = 0
        """When, at the earliest."""
        self._asked: dict[NodeId, None] = {}
        """Whom we have asked since we began,"""
        self._dead = 0
        """and how many did not answer."""
        self._missed_look_ns: int | None = None
        self._apart_look_ns: int | None = None
        self._dialling = False
        self.is_entrance = False
        """Whether others enter the network through this node."""

    def lost(self, peer: NodeId, now_ns: int) -> None:
        """A neighbour is gone without a word."""
        last, self._lost = self._lost, (peer, now_ns)
        if last is None or last[0] == peer or now_ns - last[1] > self._ring.config.silent_ns:
            return
        if not self._looks:
            self._look_ns, self._dead = now_ns, 0
            self._asked.clear()
        self._looks = max(LOOKS, self._looks)

    def beat(self, now_ns: int) -> list[Effect]:
        """See whether it is time to ask somebody."""
        if self._dialling:
            return []
        near = {self._ring.node, *(edge.peer for edge in self._ring.edges)}
        if self._looks:
            if now_ns < self._look_ns:
                return []
            others = self._acquaintances.others(near | self._asked.keys())
            if others:
                return self._dial(self._ring.rng.choice(others), now_ns)
            self._looks = 0
        apart = self._acquaintances.apart(near) if self.is_entrance else []
        if not apart:
            self._apart_look_ns = None
        elif self._apart_look_ns is None:
            self._apart_look_ns = now_ns + self._about(APART_LOOK_NS)
        elif now_ns >= self._apart_look_ns:
            self._apart_look_ns = now_ns + self._about(APART_LOOK_NS)
            return self._dial(self._ring.rng.choice(apart), now_ns)
        missed = self._acquaintances.missed(near)
        if not missed:
            self._missed_look_ns = None
        elif self._missed_look_ns is None:
            self._missed_look_ns = now_ns + self._about(MISSED_LOOK_NS)
        elif now_ns >= self._missed_look_ns:
            self._missed_look_ns = now_ns + self._about(MISSED_LOOK_NS)
            return self._dial(self._ring.rng.choice(missed), now_ns)
        return []

    def _dial(self, contact: Contact, now_ns: int) -> list[Effect]:
        def reached(up: bool, now_ns: int) -> list[Effect]:
            self._dialling = False
            if not up:
                self._acquaintances.lost(contact.node)
                self._dead += 1
                if self._looks and self._dead % DEAD_MANY == 0:
                    self._looks += 1
                return self.beat(now_ns)
            self._acquaintances.saw(contact)
            if self._looks:
                self._asked[contact.node] = None
                self._looks -= 1
                self._look_ns = now_ns + self._about(MORE_NS)
            return self._join(contact.node, now_ns)

        self._dialling = True
        return self._visits.open(contact, reached, now_ns)

    def _about(self, interval_ns: int) -> int:
        """Not all at the same time: they have lost each other in the same moment."""
        return round(interval_ns * self._ring.rng.uniform(0.5, 1.5))
