"""Which links are not read for a while, so that whoever sends too fast is slowed down.

Two things hold a link up:

- checks: it brought so much that its signatures take a moment. It is read again when few are left.
  What waits for the registry does not count: a chain that is away must not stop links.
- congestion: it brings what has to go on to a neighbour whose send queue is high. At the queue's
  bound that neighbour would be given up, and what was queued is more than is kept for repairs. So
  it is waited for, `patience_ns`; whoever has not caught up by then is not waited for again until
  `in_vain_ns` later, for nobody may hold up a stream as long as he likes.

A link that is not read fills the send queue of its peer, who then does the same; at the end of it
is a publisher who waits for room. Nodes may wait for each other in a circle: patience ends that,
too. Two do not, for a link is not held up by congestion on the way to the same peer.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.ids import NodeId
from shoal.kernel.effects import CancelTimer, Effect, PauseReading, ResumeReading, SetTimer
from shoal.protocols.streams.config import NodeConfig

CONGESTED = "congested"  # the first field of timer keys


class Pressure:
    """The links of one node, over all streams."""

    __slots__ = ("_config", "_held_up", "_in_vain", "congested", "full")

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.full: dict[NodeId, None] = {}
        """Links with too many checks under way."""
        self.congested: dict[NodeId, None] = {}
        """Neighbours that are waited for."""
        self._held_up: dict[NodeId, set[NodeId]] = {}  # links, and for whom each of them waits
        self._in_vain: dict[NodeId, int] = {}  # until when somebody is not waited for

    # Checks

    def filled(self, peer: NodeId) -> list[Effect]:
        """A link has brought too much that is unchecked."""
        if peer in self.full:
            return []
        self.full[peer] = None
        return [] if peer in self._held_up else [PauseReading(peer)]

    def drained(self, peer: NodeId) -> list[Effect]:
        """Little of that is left."""
        del self.full[peer]
        return [] if peer in self._held_up else [ResumeReading(peer)]

    # Congestion

    def queue_high(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A neighbour takes less than it is sent."""
        if now_ns < self._in_vain.get(peer, 0):
            return []
        self.congested[peer] = None
        return [SetTimer((CONGESTED, peer), self._config.patience_ns)]

    def brings(self, peer: NodeId, onward: Sequence[NodeId]) -> list[Effect]:
        """A link has brought what goes on to these."""
        congested, held_up = self.congested, self._held_up
        if peer in held_up or peer in congested:
            return []
        waits_for = {node for node in onward if node in congested}
        if not waits_for:
            return []
        held_up[peer] = waits_for
        return [] if peer in self.full else [PauseReading(peer)]

    def queue_low(self, peer: NodeId) -> list[Effect]:
        """A neighbour has caught up."""
        if peer not in self.congested:
            return []
        del self.congested[peer]
        return [CancelTimer((CONGESTED, peer)), *self._go_on(peer)]

    def waited(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """Patience has ended."""
        self._in_vain[peer] = now_ns + self._config.in_vain_ns
        self.congested.pop(peer, None)
        return self._go_on(peer)

    def lost(self, peer: NodeId) -> list[Effect]:
        """A link is gone; the next one to this peer is read."""
        self.full.pop(peer, None)
        self._held_up.pop(peer, None)
        self._in_vain.pop(peer, None)
        return self.queue_low(peer)

    def _go_on(self, node: NodeId) -> list[Effect]:
        """Read links again that waited for nobody else. One that is held up waits for nobody who
        comes to be congested meanwhile: with many streams, that would have no end."""
        effects: list[Effect] = []
        for peer, waits_for in list(self._held_up.items()):
            waits_for.discard(node)
            if waits_for:
                continue
            del self._held_up[peer]
            if peer not in self.full:
                effects.append(ResumeReading(peer))
        return effects
