"""Bubbles on their way: what this node does with each part of a bubble that reaches it.

A part is checked (its age, its size, how much of its origin came lately, its signature), handled
here if its first position is ours, and divided among neighbours (casting.py). A neighbour that is
lost takes what it was sent last with it, and with that a whole part of a bubble: it is sent again,
over another edge. A part that comes to a node which the bubble has reached before goes on as it is
to somebody else, so that bubbles have the size that was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, Send
from shoal.kernel.rate_limit import RateLimit
from shoal.kernel.records import BubbleStep, Rejected
from shoal.protocols.search.casting import Candidate, divide, permuted
from shoal.protocols.search.checks import Checks
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.seen import Seen, Verdict
from shoal.protocols.search.sizes import size_limit
from shoal.protocols.search.topology.circle import Circle
from shoal.protocols.search.topology.edges import Edge
from shoal.protocols.search.uplink import Uplink

Handler = Callable[[BubbleCast, bytes, NodeId | None, int], list[Effect]]
"""Takes a bubble that reached this node: the message, its id, and the peer it came from (None: it
is ours)."""


class _Sent(NamedTuple):
    at_ns: int
    id: bytes
    cast: BubbleCast


class Casts:
    """All bubbles that pass here."""

    def __init__(
        self,
        circle: Circle,
        totals: Callable[[], Totals | None],
        checks: Checks,
        uplink: Uplink,
        passed: Handler,
        met: Handler,
        rng: Random,
        config: SearchConfig,
    ) -> None:
        self._circle = circle
        self._totals = totals
        self._checks = checks
        self._uplink = uplink
        self._passed = passed
        """Told of every part that is not a collision: the way back leads through here."""
        self._met = met
        """Told of bubbles whose content is for us."""
        self._rng = rng
        self._config = config
        self._seen = Seen(config.bubbles_max, config.bubble_ns_max)
        self._budget = RateLimit(config.origin_burst, config.origin_refill_ns, config.peers_max)
        self._sent: dict[int, deque[_Sent]] = {}
        """By the number of the edge: what went over it lately."""

    def start(self, cast: BubbleCast, now_ns: int) -> list[Effect]:
        """A slice of a bubble of our own."""
        return self._handle(cast, cast.id, None, None, now_ns)

    def received(
        self, peer: NodeId, edge: Edge | None, cast: BubbleCast, now_ns: int
    ) -> list[Effect]:
        """A part of a bubble, over an edge or from a client."""
        reason = self._why_not(cast, now_ns)
        if reason:
            return [Rejected(peer, reason)]
        checked = partial(self._checked, peer, edge, cast)
        return self._checks.check(cast.header.origin.node, cast.signed, checked, now_ns)

    def edge_lost(self, edge: Edge, now_ns: int) -> list[Effect]:
        """A neighbour is gone without a word: what it was given last goes to another."""
        effects: list[Effect] = []
        oldest_ns = now_ns - self._config.silent_ns
        for sent in self._sent.pop(edge.number, ()):
            cast = sent.cast
            if sent.at_ns >= oldest_ns and now_ns < cast.header.expires_ms * MS_NS:
                effects += self._reroute(cast, sent.id, edge.number, now_ns)
        return effects

    def expire(self, now_ns: int) -> None:
        """Forget bubbles that are over, and what went over edges that ended in good order: that
        has arrived."""
        self._seen.expire(now_ns)
        for number in self._sent.keys() - {edge.number for edge in self._circle.edges}:
            del self._sent[number]

    # Steps

    def _why_not(self, cast: BubbleCast, now_ns: int) -> str:
        """What speaks against a part, as far as a look at it tells."""
        config = self._config
        left_ns = cast.header.expires_ms * MS_NS - now_ns
        if left_ns <= 0:
            return "expired"
        if left_ns > config.bubble_ns_max:
            return "lives-too-long"
        if cast.total > size_limit(self._totals()):
            return "bubble-too-large"
        if self._checks.busy:
            return "busy"
        if not self._budget.allow(cast.header.origin.node, now_ns):
            return "over-budget"
        return ""

    def _checked(
        self, peer: NodeId, edge: Edge | None, cast: BubbleCast, valid: bool, now_ns: int
    ) -> list[Effect]:
        if not valid:
            return [Rejected(peer, "bad-signature")]
        return self._handle(cast, cast.id, peer, edge, now_ns)

    def _handle(
        self, cast: BubbleCast, id: bytes, peer: NodeId | None, edge: Edge | None, now_ns: int
    ) -> list[Effect]:
        verdict = self._seen.arrived(id, cast.start, cast.end, now_ns)
        if verdict is Verdict.COLLISION:
            came = 0 if edge is None else edge.number
            return [
                BubbleStep(id, cast.size, cast.start, cast.end, "collision"),
                *self._reroute(cast, id, came, now_ns),
            ]
        if verdict is Verdict.DROPPED:
            return [BubbleStep(id, cast.size, cast.start, cast.end, "dropped")]
        edges = self._candidates(id, edge)
        candidates = [Candidate(edge.number, edge.peer) for edge in edges]
        here, parts, _ = divide(
            cast.size, cast.start, cast.end, self._config.split, candidates, self._circle.ring.node
        )
        effects = self._passed(cast, id, peer, now_ns)
        if here:
            effects.append(BubbleStep(id, cast.size, cast.start, cast.end, "handled"))
            effects += self._met(cast, id, peer, now_ns)
        by_number = {edge.number: edge for edge in edges}
        for part in parts:
            effects += self._send(
                by_number[part.edge], id, cast, part.size, part.start, part.end, now_ns
            )
        return effects

    def _candidates(self, id: bytes, came: Edge | None) -> list[Edge]:
        """Our edges as this bubble sees them; never back to where it came from."""
        edges = permuted(self._circle.edges, id, self._circle.ring.node)
        return [edge for edge in edges if edge is not came]

    def _reroute(self, cast: BubbleCast, id: bytes, without: int, now_ns: int) -> list[Effect]:
        """Send a part as it is to somebody; to one who has not had this bubble from us, if we can."""
        edges = [
            edge
            for edge in self._circle.edges
            if edge.number != without and edge.peer != self._circle.ring.node
        ]
        if not edges:
            return []
        fresh = [edge for edge in edges if not self._gave(edge, id)]
        edge = self._rng.choice(fresh or edges)
        return self._send(edge, id, cast, cast.size, cast.start, cast.end, now_ns)

    def _gave(self, edge: Edge, id: bytes) -> bool:
        return any(sent.id == id for sent in self._sent.get(edge.number, ()))

    def _send(
        self,
        edge: Edge,
        id: bytes,
        cast: BubbleCast,
        size: int,
        start: int,
        end: int,
        now_ns: int,
    ) -> list[Effect]:
        part = BubbleCast(
            edge.name, size, cast.total, start, end, cast.kind, cast.header, cast.payload
        )
        if not self._uplink.has_room(size, cast.total, now_ns):
            return [BubbleStep(id, size, start, end, "congested")]
        log = self._sent.setdefault(edge.number, deque(maxlen=self._config.sent_max))
        log.append(_Sent(now_ns, id, part))
        return [Send(part, (edge.peer,))]
