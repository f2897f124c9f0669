"""Bubbles on their way: what this node does with each part of a bubble that reaches it.

A part is checked (its age, its size, its signature, how much of its origin came lately), handled
here if its first position is ours, and divided among neighbours (casting.py). A neighbour that is
lost takes what it was sent last with it, and with that a whole part of a bubble: it is sent again,
over another edge. What is for a neighbour that cannot keep up goes to another at once. A part that
comes to a node which the bubble has reached before goes on as it is to somebody else, so that
bubbles have the size that was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import BubbleStep, Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.search.bubbles.bubble_size import size_limit
from shoal.protocols.search.bubbles.bubble_split import Candidate, divide, permuted
from shoal.protocols.search.bubbles.seen_bubbles import Seen, Verdict
from shoal.protocols.search.circle.circle import Circle
from shoal.protocols.search.circle.locations import Edge
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.upload_limit import Uplink

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


# What went over each edge lately: lost, if the neighbour at its end turns out to be dead.


AROUND_BYTES = 512  # of a part, beside its payload: header, record and what we keep of it


class _Sent(NamedTuple):
    at_ns: int
    id: bytes
    part: BubbleCast

    @property
    def size(self) -> int:
        return len(self.part.payload) + AROUND_BYTES


class _Log:
    __slots__ = ("bytes", "ids", "parts")

    def __init__(self) -> None:
        self.parts: deque[_Sent] = deque()
        self.ids: dict[bytes, int] = {}
        """How many parts of each bubble."""
        self.bytes = 0

    def add(self, sent: _Sent) -> None:
        self.parts.append(sent)
        self.ids[sent.id] = self.ids.get(sent.id, 0) + 1
        self.bytes += sent.size

    def drop(self) -> None:
        """Forget the oldest."""
        sent = self.parts.popleft()
        self.bytes -= sent.size
        if self.ids[sent.id] == 1:
            del self.ids[sent.id]
        else:
            self.ids[sent.id] -= 1


class Sent:
    """Parts of bubbles by the number of their edge, for as long as a neighbour may be dead without
    our knowledge, and in bounded memory: the oldest are forgotten first."""

    def __init__(self, lasts_ns: int, bytes_max: int) -> None:
        self._lasts_ns = lasts_ns
        self._bytes_max = bytes_max
        self._logs: dict[int, _Log] = {}

    def __len__(self) -> int:
        return sum(len(log.parts) for log in self._logs.values())

    def add(self, edge: int, id: bytes, part: BubbleCast, now_ns: int) -> None:
        """A part goes out."""
        log = self._logs.setdefault(edge, _Log())
        log.add(_Sent(now_ns, id, part))
        self._prune(log, now_ns)
        while log.bytes > self._bytes_max:
            log.drop()

    def has(self, edge: int, id: bytes) -> bool:
        """Whether an edge has had something of a bubble lately."""
        log = self._logs.get(edge)
        return log is not None and id in log.ids

    def take(self, edge: int, now_ns: int) -> list[tuple[bytes, BubbleCast]]:
        """Everything that went over an edge lately, oldest first; it is forgotten here."""
        log = self._logs.pop(edge, None)
        if log is None:
            return []
        self._prune(log, now_ns)
        return [(sent.id, sent.part) for sent in log.parts]

    def expire(self, edges: Iterable[int], now_ns: int) -> None:
        """Forget what is old, and what went over other edges than these: they ended in good
        order, and it has arrived."""
        logs = {edge: self._logs[edge] for edge in edges if edge in self._logs}
        for log in logs.values():
            self._prune(log, now_ns)
        self._logs = {edge: log for edge, log in logs.items() if log.parts}

    def _prune(self, log: _Log, now_ns: int) -> None:
        while log.parts and log.parts[0].at_ns < now_ns - self._lasts_ns:
            log.drop()
