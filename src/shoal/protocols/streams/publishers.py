"""Whether publishers may publish: what is known of it, and the messages that wait to be judged.

A message comes here when its signature is good. If its publisher is not known, or nobody can say,
it waits, and is neither seen nor refused: it must not be lost because a chain was out of reach for
a moment. What is older than live messages may be is let go. Known publishers cost one look.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.access import Permission
from shoal.kernel.effects import Effect, SetTimer
from shoal.kernel.inputs import AccessChecked
from shoal.kernel.rate_limit import RateLimit
from shoal.kernel.records import Rejected
from shoal.protocols.streams.access import AccessTable
from shoal.protocols.streams.messages import Flood, Head
from shoal.protocols.streams.placed import PlacedMessage

ACCESS = "access"  # the first field of timer keys
PUBLISH = int(Permission.PUBLISH)  # a flag's own arithmetic costs ten times a number's


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A message that is being checked."""

    peer: NodeId
    flood: Flood
    message: PlacedMessage
    received_ns: int
    cost_bytes: int
    stored: bool
    """Whether it comes out of storage, by way of this node's history machine."""


class Publishers:
    """Judges publishers, and holds what has to wait for that."""

    __slots__ = ("_blamed", "_freshness_ns", "_held", "_held_bytes", "_strangers", "table")

    def __init__(self, table: AccessTable, freshness_ns: int) -> None:
        config = table.config
        self.table = table
        self._freshness_ns = freshness_ns
        self._held: dict[tuple[StreamId, NodeId], dict[bytes, Pending]] = {}
        self._held_bytes: dict[NodeId, int] = {}  # of each link
        self._strangers = RateLimit(
            config.strangers_burst, config.strangers_refill_ns, config.strangers_links_max
        )
        self._blamed: dict[NodeId, tuple[int, int]] = {}  # since when, and when last

    def judge(self, stream: StreamId, publisher: NodeId, now_ns: int) -> bool | None:
        """Whether somebody may publish; None: nobody knows yet."""
        verdict = self.table.look(stream, publisher, now_ns)
        if verdict is None or verdict.problem:
            return None
        return bool(verdict.permissions & PUBLISH)

    def holds(self, message: PlacedMessage, signed: bytes) -> bool:
        """Whether these bytes wait here."""
        return bool(self._held) and signed in self._held.get(
            (message.id.stream, message.id.publisher), ()
        )

    def hold(self, pending: Pending, now_ns: int) -> list[Effect]:
        """Have a message wait until its publisher is judged."""
        peer, id = pending.peer, pending.message.id
        held_bytes = self._held_bytes.get(peer, 0) + pending.cost_bytes
        if held_bytes > self.table.config.held_bytes_max:
            return [Rejected(peer, "permission-unknown")]
        key = (id.stream, id.publisher)
        if key not in self._held and not self._strangers.allow(peer, now_ns):
            return [Rejected(peer, "too-many-strangers")]
        self._held_bytes[peer] = held_bytes
        self._held.setdefault(key, {})[pending.flood.signed] = pending
        problem = self.table.look(*key, now_ns)
        if problem is not None:
            return [SetTimer((ACCESS, *key), problem.until_ns - now_ns)]
        return self.table.ask(*key)

    def checked(self, event: AccessChecked, now_ns: int) -> tuple[list[Pending], list[Effect]]:
        """The registry's answer: messages that can be judged now, and what else follows."""
        key = (event.stream, event.who)
        verdict = self.table.checked(event, now_ns)
        held = self._held.get(key)
        if held is None:
            return [], []
        if not verdict.problem:
            return self._release(key, held.values()), []
        oldest_ms = (self.table.wall.read(now_ns) - self._freshness_ns) // MS_NS
        stale = [p for p in held.values() if p.message.id.timestamp_ms < oldest_ms]
        effects: list[Effect] = [Rejected(p.peer, "permission-unknown") for p in stale]
        self._release(key, stale)
        if key in self._held:
            effects.append(SetTimer((ACCESS, *key), self.table.config.retry_ns))
        return [], effects

    def ask_again(self, stream: StreamId, publisher: NodeId) -> list[Effect]:
        """Nobody could say a while ago."""
        return self.table.ask(stream, publisher) if (stream, publisher) in self._held else []

    def leave(self, stream: StreamId) -> None:
        """The node has left a stream: nothing of it is waited for."""
        for key in [key for key in self._held if key[0] == stream]:
            self._release(key, self._held[key].values())

    def blame(self, peer: NodeId, now_ns: int) -> bool:
        """A neighbour passed on what we refuse. Whether that is an offence: only if it does so for
        longer than two honest nodes can disagree, and not more often."""
        apart_ns = 2 * self.table.config.staleness_ns  # it may be behind, or we
        since_ns, last_ns = self._blamed.pop(peer, (now_ns, now_ns))
        if now_ns - last_ns > apart_ns:
            since_ns = now_ns
        guilty = now_ns - since_ns > apart_ns
        self._blamed[peer] = (now_ns if guilty else since_ns, now_ns)
        if len(self._blamed) > self.table.config.strangers_links_max:
            del self._blamed[next(iter(self._blamed))]
        return guilty

    def heads_of(self, stream: StreamId) -> list[Head]:
        """Which messages of a stream wait here."""
        held = [those for key, those in self._held.items() if key[0] == stream]
        return [pending.message.head for those in held for pending in those.values()]

    def held_count(self) -> int:
        """Messages that wait here."""
        return sum(map(len, self._held.values()))

    def _release(self, key: tuple[StreamId, NodeId], some: Iterable[Pending]) -> list[Pending]:
        released, held = list(some), self._held[key]
        for pending in released:
            del held[pending.flood.signed]
            left_bytes = self._held_bytes[pending.peer] - pending.cost_bytes
            if left_bytes:
                self._held_bytes[pending.peer] = left_bytes
            else:
                del self._held_bytes[pending.peer]
        if not held:
            del self._held[key]
        return released
