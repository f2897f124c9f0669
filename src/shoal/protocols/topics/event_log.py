"""The events of one topic that this node holds, and the order in which they can be told.

An event is ready once the event that it follows is: so whatever order events arrive in, they are
told in one that respects their links. Among events that become ready at once, the lower CID comes
first. Heads are events that nothing held here follows: they stand for everything behind them.

Below the floor lies what this node does not ask for: the past of a topic that it joined for what
comes, or what retention took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity.topics.cid import Cid, show_cid
from shoal.identity.topics.descriptors import EventDescriptor
from shoal.protocols.topics.config import REMEMBERED_MAX, SLOW_AUTHORS_MAX

# What an event costs in memory besides its payload: 1,140 to 1,390 bytes by tracemalloc, in logs of
# 2,000 to 30,000 signed events, decoded from the wire or from disk. Rounded up: limits build on it.
ENTRY_BYTES = 1400


class Entry(msgspec.Struct):
    """One event."""

    id: Cid
    event: EventDescriptor
    core: Cid
    arrived_ns: int
    number: int = 0
    """Under which it lies on disk."""
    source: NodeId | None = None
    """The peer that brought it."""
    asked: bool = False
    """It was asked for: a neighbour had it, or another event follows it. Others are news."""
    ready: bool = False
    seen: bool = False
    """It was ready once, or is ours: what the log ends with took it into account."""
    forwarded: bool = False
    gap_before: bool = False
    put_ns: int = 0
    """When it last went into the DHT from here."""

    @property
    def created_ms(self) -> int:
        return self.event.metadata.created_ms

    @property
    def dated_ms(self) -> int:
        """When it was created, as far as its author can be believed: not after it came."""
        return self.dated_by(0)

    def dated_by(self, ahead_ns: int) -> int:
        """The same, by a time of day that is so far ahead of the monotonic one."""
        return min(self.created_ms, (self.arrived_ns + ahead_ns) // MS_NS)

    @property
    def size(self) -> int:
        return len(self.event.payload) + ENTRY_BYTES


class TopicLog:
    """Events by CID, and in order."""

    def __init__(self, floor_ms: int = 0) -> None:
        self.floor_ms = floor_ms
        self.sealed_ms = floor_ms
        """The highest floor there ever was: what is older may have been published, and forgotten.
        Unlike the floor, it never falls."""
        self.events: dict[Cid, Entry] = {}
        self.order: deque[Entry] = deque()
        """Those that are ready."""
        self.order_from = 0
        """How many were ready and are gone: where `order` begins."""
        self.heads: dict[Cid, int] = {}
        """Events that nothing follows, and when they were created."""
        self.absent: dict[Cid, None] = {}
        """Events that others here follow, and which are not."""
        self.last: Cid | None = None
        """The last event that was seen here: what a new one follows."""
        self.settled: dict[Cid, None] = {}
        """Events that are not here, need not be, and are followed by others that are."""
        self.forgotten_ms = 0
        """When the newest event was created that retention took."""
        self.slow_ms: dict[bytes, int] = {}
        """Authors whose clocks are slow: the earliest news of theirs that was dated below the
        floor. What they made since then is not past, though it seems to be."""
        self.bytes = 0
        self._last_ms = 0  # when `last` was created
        self._waiting: dict[Cid, list[Cid]] = {}  # by the event that they wait for
        self._followed: dict[Cid, int] = {}  # by how many that are held
        self._cores: dict[Cid, Cid] = {}
        self._remembered: dict[Cid, None] = {}

    def __len__(self) -> int:
        return len(self.events)

    def knows(self, id: Cid) -> bool:
        """Whether there is no need to ask for an event."""
        return id in self.events or id in self._remembered

    def follows(self, id: Cid) -> bool:
        """Whether an event that is held names this one as its parent."""
        return id in self._followed

    def followed(self) -> dict[Cid, int]:
        """By how many events that are held each is followed; it need not be held itself."""
        return dict(self._followed)

    def of_core(self, core: Cid) -> Cid | None:
        """The event that was made of this core, as far as it is known here."""
        return self._cores.get(core)

    def is_first(self, entry: Entry) -> bool:
        """Whether this is the event that its core is told as: it may be published twice."""
        return self._cores.get(entry.core) == entry.id and entry.core not in self._remembered

    def add(self, entry: Entry) -> list[Entry]:
        """Hold an event that is not known yet; gives what is ready now, in order."""
        self.events[entry.id] = entry
        self._cores.setdefault(entry.core, entry.id)
        self.bytes += entry.size
        self.absent.pop(entry.id, None)
        entry.asked = entry.asked or entry.id in self._followed
        parent = entry.event.parent
        if parent is not None:
            self._followed[parent] = self._followed.get(parent, 0) + 1
            self.heads.pop(parent, None)
        if entry.id not in self._followed:
            self.heads[entry.id] = entry.created_ms
        return self._place(entry)

    def see(self, entry: Entry) -> None:
        """What we publish next follows this event, whether it is ready or not."""
        entry.seen = True
        self.last, self._last_ms = entry.id, entry.dated_ms

    def is_before(self, entry: Entry, floor_ms: int) -> bool:
        """Whether an event is older than this, as its author's clock goes."""
        floor_ms = min(floor_ms, self.slow_ms.get(entry.event.author, floor_ms))
        return entry.created_ms < floor_ms

    def heard(self, entry: Entry) -> None:
        """News came: what its author dates below the floor may be new, too."""
        author = entry.event.author
        if self.is_before(entry, self.floor_ms):
            self.slow_ms[author] = entry.created_ms
            if len(self.slow_ms) > SLOW_AUTHORS_MAX:
                del self.slow_ms[next(iter(self.slow_ms))]

    def give_up(self, id: Cid) -> list[Entry]:
        """Go on without an event that nobody has; gives what is ready now."""
        self.settle(id)
        freed = [self.events[child] for child in self._waiting.pop(id, ())]
        for entry in freed:
            entry.gap_before = True
        return self._make_ready(freed)

    def begin_after(self, id: Cid) -> list[Entry]:
        """What led to this event is of no interest."""
        if id in self.events:
            return []
        self.settle(id)
        return self._make_ready([self.events[child] for child in self._waiting.pop(id, ())])

    def settle(self, id: Cid) -> None:
        """An event is not here, and need not be."""
        self.absent.pop(id, None)
        self.settled[id] = None
        self._remember(id)

    def lower_floor(self, floor_ms: int) -> None:
        """Go farther back: events become ready anew, from the beginning, as what is before them
        arrives."""
        self.floor_ms = floor_ms
        self.order.clear()
        self._waiting.clear()
        self._remembered.clear()
        self.settled.clear()
        self.absent.clear()
        for entry in self.events.values():
            entry.ready, entry.gap_before, entry.asked = False, False, True  # no news any more
        for entry in list(self.events.values()):
            if not entry.ready:
                self._place(entry)

    def raise_floor(self, floor_ms: int) -> None:
        """Do not speak of what is older any more."""
        self.floor_ms = max(self.floor_ms, floor_ms)
        self.sealed_ms = max(self.sealed_ms, floor_ms)

    def forget_oldest(self, ahead_ns: int = 0) -> Entry | None:
        """Let go of the event that was ready first; None if there is none. The time of day is so
        far ahead of the monotonic one."""
        if not self.order:
            return None
        entry = self.order.popleft()
        self.order_from += 1
        del self.events[entry.id]
        self.bytes -= entry.size
        self.heads.pop(entry.id, None)
        parent = entry.event.parent
        if parent is not None:
            self._followed[parent] -= 1
            if not self._followed[parent]:
                del self._followed[parent]
                self.settled.pop(parent, None)
        if entry.id in self._followed:
            self.settled[entry.id] = None
        if self._cores.get(entry.core) == entry.id:
            del self._cores[entry.core]
        self._remember(entry.id)
        self._remember(entry.core)
        # Its author's word must not hide what is still to come.
        self.forgotten_ms = max(
            self.forgotten_ms,
            min(entry.created_ms + 1, (entry.arrived_ns + ahead_ns) // MS_NS),
        )
        self.raise_floor(self.forgotten_ms)
        return entry

    def ancestors(self, id: Cid) -> set[Cid]:
        """An event and all held ones that it follows, directly or not."""
        found: set[Cid] = set()
        at: Cid | None = id
        while at is not None and at not in found:
            found.add(at)
            held = self.events.get(at)
            at = None if held is None else held.event.parent
        return found

    def leads_to(self, heads: Iterable[Cid], id: Cid) -> bool:
        """Whether an event is one of these, or one that they follow, as far as that is held."""
        ahead, seen = deque(heads), set[Cid]()
        while ahead:  # one step on each way in turn: what is asked for is near the heads
            at = ahead.popleft()
            if at == id:
                return True
            held = self.events.get(at)
            if held is not None and held.event.parent is not None and at not in seen:
                seen.add(at)
                ahead.append(held.event.parent)
        return False

    def known_ids(self) -> Iterable[Cid]:
        """All that need not be told again after the floor was lowered."""
        return [*[entry.id for entry in self.order], *self._remembered]

    def _place(self, entry: Entry) -> list[Entry]:
        parent = entry.event.parent
        if parent is None or self._is_settled(parent) or self._is_past(entry):
            return self._make_ready([entry])
        self._waiting.setdefault(parent, []).append(entry.id)
        if parent not in self.events:
            self.absent[parent] = None
        return []

    def _is_settled(self, id: Cid) -> bool:
        held = self.events.get(id)
        return id in self._remembered if held is None else held.ready

    def _is_past(self, entry: Entry) -> bool:
        # What a neighbour sends unasked is news, whatever the clock of its author says.
        return entry.asked and self.is_before(entry, self.floor_ms)

    def _is_latest(self, entry: Entry) -> bool:
        # What was asked for may lie before what was seen here, or beside it.
        if not entry.asked:
            return True
        return entry.id not in self._followed and entry.dated_ms >= self._last_ms

    def _make_ready(self, entries: list[Entry]) -> list[Entry]:
        heap = [entry.id for entry in entries]
        heapify(heap)
        ready: list[Entry] = []
        while heap:
            entry = self.events[heappop(heap)]
            entry.ready = True
            self.order.append(entry)
            ready.append(entry)
            if not entry.seen and self._is_latest(entry):
                self.see(entry)
            entry.seen = True
            for child in self._waiting.pop(entry.id, ()):
                heappush(heap, child)
        return ready

    def _remember(self, id: Cid) -> None:
        self._remembered[id] = None
        if len(self._remembered) > REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if order, heads or books are wrong."""
        if sum(entry.size for entry in self.events.values()) != self.bytes:
            raise InvariantViolated(f"{self.bytes} bytes are counted, others are held")
        ready = sum(entry.ready for entry in self.events.values())
        waiting = sum(map(len, self._waiting.values()))
        if ready != len(self.order) or ready + waiting != len(self.events):
            raise InvariantViolated(
                f"{len(self.events)} events: {ready} ready, {len(self.order)} in order,"
                f" {waiting} waiting"
            )
        for id in self._waiting:
            if id in self.absent and id in self.events:
                raise InvariantViolated(f"{show_cid(id)} is held and missed")
            if id not in self.absent and id not in self.events:
                raise InvariantViolated(f"nobody asks for {show_cid(id)}, which others follow")
        for head in self.heads:
            if head not in self.events or head in self._followed:
                raise InvariantViolated(f"{show_cid(head)} is no head")
