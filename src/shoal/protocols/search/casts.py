"""Bubbles on their way: what this node does with each part of a bubble that reaches it.

A part is checked (its age, its size, its signature, how much of its origin came lately), handled
here if its first position is ours, and divided among neighbours (casting.py). A neighbour that is
lost takes what it was sent last with it, and with that a whole part of a bubble: it is sent again,
over another edge. What is for a neighbour that cannot keep up goes to another at once. A part that
comes to a node which the bubble has reached before goes on as it is to somebody else, so that
bubbles have the size that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, Send
from shoal.kernel.rate_limit import RateLimit
from shoal.kernel.records import BubbleStep, Rejected
from shoal.kernel.wall import WallClock
from shoal.protocols.search.casting import Candidate, divide, permuted
from shoal.protocols.search.checks import Checks
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.seen import Seen, Verdict
from shoal.protocols.search.sent import Sent
from shoal.protocols.search.sizes import size_limit
from shoal.protocols.search.topology.circle import Circle
from shoal.protocols.search.topology.edges import Edge
from shoal.protocols.search.uplink import Uplink

TOKEN_BYTES = 4096  # of a payload are worth one bubble more of an origin's budget

Handler = Callable[[BubbleCast, bytes, NodeId | None, int], list[Effect]]
"""Takes a bubble that reached this node: the message, its id, and the peer it came from (None: it
is ours)."""


def tokens_of(payload_bytes: int) -> int:
    """What a bubble takes of its origin's budget."""
    return 1 + payload_bytes // TOKEN_BYTES


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
        wall: WallClock | None = None,
    ) -> None:
        self._wall = WallClock() if wall is None else wall
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
        self._brought = RateLimit(config.bringer_burst, config.bringer_refill_ns, config.peers_max)
        # A neighbour that died just after its ping is missed one beat later than silent_ns says.
        self._sent = Sent(config.silent_ns + config.beat_ns, config.sent_bytes_max)

    def start(self, cast: BubbleCast, now_ns: int) -> list[Effect]:
        """A slice of a bubble of our own."""
        return self._handle(cast, cast.id, None, None, now_ns)

    def received(
        self, peer: NodeId, edge: Edge | None, cast: BubbleCast, now_ns: int
    ) -> list[Effect]:
        """A part of a bubble, over an edge or from a client."""
        reason = self._why_not(peer, edge, cast, now_ns)
        if reason:
            return [Rejected(peer, reason)]
        checked = partial(self._checked, peer, edge, cast)
        return self._checks.check(cast.header.origin.node, cast.signed, checked, now_ns)

    def edge_lost(self, edge: Edge, now_ns: int) -> list[Effect]:
        """A neighbour is gone without a word: what it was given last goes to another."""
        effects: list[Effect] = []
        for id, part in self._sent.take(edge.number, now_ns):
            if self._wall.read(now_ns) < part.header.expires_ms * MS_NS:
                effects += self._reroute(part, id, now_ns, edge.peer)
        return effects

    def expire(self, now_ns: int) -> None:
        """Forget bubbles that are over, and what has arrived."""
        self._seen.expire(now_ns)
        self._sent.expire([edge.number for edge in self._circle.edges], now_ns)

    # Steps

    def _why_not(self, peer: NodeId, edge: Edge | None, cast: BubbleCast, now_ns: int) -> str:
        """What speaks against a part, as far as a look at it tells. The origin is blamed for
        nothing here: anybody can write its name into a header."""
        config = self._config
        if not self._brought.allow(peer, now_ns):
            return "rate-limited"
        if edge is None and cast.header.origin.node != peer:
            return "not-its-bubble"
        left_ns = cast.header.expires_ms * MS_NS - self._wall.read(now_ns)
        if left_ns <= 0:
            return "expired"
        if left_ns > config.bubble_ns_max:
            return "lives-too-long"
        if cast.total > size_limit(self._totals()):
            return "bubble-too-large"
        if self._checks.busy:
            return "busy"
        return ""

    def _checked(
        self, peer: NodeId, edge: Edge | None, cast: BubbleCast, valid: bool, now_ns: int
    ) -> list[Effect]:
        if not valid:
            return [Rejected(peer, "bad-signature")]
        id, origin = cast.id, cast.header.origin.node
        # Parts of a bubble that is here already cost its origin nothing: it has sent one.
        tokens = tokens_of(len(cast.payload))
        if id not in self._seen and not self._budget.allow(origin, now_ns, tokens):
            return [Rejected(peer, "over-budget")]
        # Whoever casts is somebody to ask when all neighbours die at once: bubbles come from all
        # over the network, and nearly all whom we had as neighbours are dead then, too.
        self._circle.acquaintances.saw(cast.header.origin.contact)
        return self._handle(cast, id, peer, edge, now_ns)

    def _handle(
        self, cast: BubbleCast, id: bytes, peer: NodeId | None, edge: Edge | None, now_ns: int
    ) -> list[Effect]:
        verdict = self._seen.arrived(id, cast.start, cast.end, now_ns)
        if verdict is Verdict.COLLISION:
            return [_step(id, cast, "collision"), *self._reroute(cast, id, now_ns, peer)]
        if verdict is Verdict.DROPPED:
            return [_step(id, cast, "dropped")]
        edges = self._candidates(cast, edge)
        candidates = [Candidate(edge.number, edge.peer) for edge in edges]
        here, parts = divide(
            cast.size, cast.start, cast.end, self._config.split, candidates, self._circle.ring.node
        )
        effects = self._passed(cast, id, peer, now_ns)
        if here:
            effects.append(_step(id, cast, "handled"))
            effects += self._met(cast, id, peer, now_ns)
        by_number = {edge.number: edge for edge in edges}
        for part in parts:
            to = by_number[part.edge]
            piece = _part(cast, part.size, part.start, part.end)
            if to.peer in self._uplink.stuck:
                elsewhere = self._reroute(piece, id, now_ns, to.peer, peer)
                effects += elsewhere or [_step(id, piece, "congested")]
            else:
                effects += self._send(to, id, piece, now_ns)
        return effects

    def _candidates(self, cast: BubbleCast, came: Edge | None) -> list[Edge]:
        """Our edges as this bubble sees them; never back to where it came from."""
        edges = permuted(self._circle.edges, cast.header.way, self._circle.ring.node)
        return [edge for edge in edges if edge is not came]

    def _reroute(
        self, part: BubbleCast, id: bytes, now_ns: int, *without: NodeId | None
    ) -> list[Effect]:
        """Send a part as it is to somebody else than these; if we can, to one who has not had this
        bubble from us."""
        edges = [
            edge
            for edge in self._candidates(part, None)
            if edge.peer not in (self._circle.ring.node, *without)
            and edge.peer not in self._uplink.stuck
        ]
        if not edges:
            return []
        fresh = [edge for edge in edges if not self._sent.has(edge.number, id)]
        # The first one: so bubbles about the same thing are rerouted alike.
        return self._send(fresh[0] if fresh else self._rng.choice(edges), id, part, now_ns)

    def _send(self, edge: Edge, id: bytes, part: BubbleCast, now_ns: int) -> list[Effect]:
        if not self._uplink.has_room(part.size, part.total, now_ns):
            return [_step(id, part, "congested")]
        part = msgspec.structs.replace(part, edge=edge.name)
        self._sent.add(edge.number, id, part, now_ns)
        return [Send(part, (edge.peer,))]


def _part(cast: BubbleCast, size: int, start: int, end: int) -> BubbleCast:
    return BubbleCast(None, size, cast.total, start, end, cast.kind, cast.header, cast.payload)


def _step(id: bytes, part: BubbleCast, outcome: str) -> BubbleStep:
    return BubbleStep(id, part.size, part.start, part.end, outcome)
