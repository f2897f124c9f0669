"""What a machine knows of who may do what: verdicts, for as long as they count.

Each machine that asks has a table of its own. One look is one look into a dict; whoever is not in
it is asked for once, however many wait. Without a registry there is no table to look into.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import CheckAccess, Effect, SetTimer
from shoal.kernel.inputs import AccessChanged, AccessChecked
from shoal.kernel.records import Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.config import AccessConfig
from shoal.protocols.streams.messages import Flood, Head
from shoal.protocols.streams.signed_message import PlacedMessage


class AccessTable:
    """Verdicts by stream and node, the oldest dropped first."""

    __slots__ = ("_asked", "_verdicts", "config", "wall")

    def __init__(self, config: AccessConfig | None = None) -> None:
        self.config = config or AccessConfig()
        self._verdicts: dict[tuple[StreamId, NodeId], Verdict] = {}
        self._asked: dict[tuple[StreamId, NodeId], None] = {}
        self.wall = WallClock()
        """The machine's whose table it is: a verdict says by the time of day when it ends, and is
        kept here by the monotonic time, so that no step makes it last."""

    def look(self, stream: StreamId, who: NodeId, now_ns: int) -> Verdict | None:
        """What counts now; None: ask."""
        verdict = self._verdicts.get((stream, who))
        return verdict if verdict is not None and now_ns < verdict.until_ns else None

    def ask(self, stream: StreamId, who: NodeId) -> list[Effect]:
        """Find out, unless that is under way."""
        if (stream, who) in self._asked:
            return []
        self._asked[stream, who] = None
        return [CheckAccess(stream, who)]

    def checked(self, event: AccessChecked, now_ns: int) -> Verdict:
        """The answer: it counts for what waits for it, also if it is over by now."""
        key, verdict = (event.stream, event.who), event.verdict
        self._asked.pop(key, None)
        self._verdicts.pop(key, None)
        if verdict.problem:
            # Or every message of this publisher would ask a chain that is away.
            verdict = Verdict(0, now_ns + self.config.retry_ns, verdict.problem)
        else:
            until_ns = now_ns + verdict.until_ns - self.wall.read(now_ns)
            verdict = Verdict(verdict.permissions, until_ns)
        self._verdicts[key] = verdict
        if len(self._verdicts) > self.config.verdicts_max:
            del self._verdicts[next(iter(self._verdicts))]
        return verdict

    def changed(self, event: AccessChanged) -> None:
        """Forget what may be different now."""
        if event.stream is not None and event.who is not None:
            self._verdicts.pop((event.stream, event.who), None)
            return
        self._verdicts = {
            (stream, who): verdict
            for (stream, who), verdict in self._verdicts.items()
            if event.stream not in (None, stream) or event.who not in (None, who)
        }

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._verdicts)


# Whether publishers may publish: what is known of it, and the messages that wait to be judged.
#
# A message comes here when its signature is good. If its publisher is not known, or nobody can say,
# it waits, and is neither seen nor refused: it must not be lost because a chain was out of reach
# for a moment. What is older than live messages may be is let go. Known publishers cost one look.


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
