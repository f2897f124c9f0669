"""What a node holds, on its disk: all of it is read at the start, so that memory and disk agree.

    s           which topics there are
    t + topic   a topic: its block, its floor, whether it is pinned
    n           the numbers of the oldest and the newest event
    g           gaps between them: an old event may stay when all of its time go
    e + number  an event's block, numbered as they came
    r           there only if this is a copy that may be older than what was published here

Events are written as they come; the range of numbers may lag behind a little, so reading goes on
beyond it. Gaps may lag behind, too: no number is used twice, so what was a gap stays one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import msgspec

from shoal.identity.topics.cid import Cid
from shoal.kernel.effects import Effect, Load, Store
from shoal.kernel.inputs import Loaded

ARCHIVE = "archive"  # tokens of reads and writes that nobody waits for
READS_MAX = 64  # at once
SETTLED_MAX = 1024  # of one topic: where its forks were cut off
UNSAVED_MAX = 512  # events that the range of numbers lags behind
EMPTY_MAX = 1024  # numbers that are looked at behind it
GAP_MIN = 16  # fewer numbers are as well read
REMOVED_MIN = 4096  # events that go before gaps are saved; or as many as there are, if more
RESTORED = b"r"
_STATE, _NUMBERS, _GAPS, _TOPIC, _EVENT = b"s", b"n", b"g", b"t", b"e"


class StoredTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic as it lies on disk."""

    block: bytes
    floor_ms: int
    pinned: bool
    settled: Sequence[bytes]
    """Events that are not here, and which those that are may follow."""
    synced: bool = True
    """Whether all that this node published before is on this disk, or known not to exist; old
    folders do not say, and were read as if it were."""
    sealed_ms: int = 0
    """What is older may have been published, and forgotten; old folders have the floor only."""


class _Numbers(msgspec.Struct, frozen=True, array_like=True):
    first: int = 0
    next: int = 0


_topics = msgspec.msgpack.Decoder(list[bytes])
_topic = msgspec.msgpack.Decoder(StoredTopic)
_numbers = msgspec.msgpack.Decoder(_Numbers)
_gaps = msgspec.msgpack.Decoder(list[tuple[int, int]])


def check_archive(get: Callable[[bytes], bytes | None]) -> None:
    """Read what all else depends on: the topics that there are, and the numbers of events. `get`
    raises where that cannot be read. A machine would take such a disk for a new one, and write over
    what it holds."""
    for key in (RESTORED, _NUMBERS, _GAPS):
        get(key)
    topics = get(_STATE)
    for id in () if topics is None else _topics.decode(topics):
        get(_TOPIC + id)


class Archive:
    """Reads at the start, then writes."""

    def __init__(
        self,
        on_topic: Callable[[Cid, StoredTopic, int], list[Effect]],
        on_event: Callable[[int, bytes, int], list[Effect]],
        on_done: Callable[[int], list[Effect]],
        disk: bool,
    ) -> None:
        """Told what was read, topics before events, and that it is all."""
        self.disk = disk
        self.restored = False
        """What was read is a copy: this node may have published more than it says."""
        self._on_topic = on_topic
        self._on_event = on_event
        self._on_done = on_done
        self._first = 0
        self._next = 0
        self._saved = _Numbers()
        self._held: dict[int, None] = {}
        self._removed = 0  # since gaps were saved
        self._gaps: deque[tuple[int, int]] = deque()  # that reading has not come to
        self._topics_left = 0
        self._reading = 0
        self._under_way = 0
        self._until = 0

    # Reading

    def start(self, now_ns: int) -> list[Effect]:
        """Begin to read."""
        if not self.disk:
            return self._on_done(now_ns)
        return [Load(key, (ARCHIVE, key)) for key in (RESTORED, _NUMBERS, _GAPS, _STATE)]

    def loaded(self, event: Loaded, now_ns: int) -> list[Effect]:
        """Something was read."""
        assert isinstance(event.token, tuple)  # they are all made here
        kind, value = event.token[1], event.value
        if kind == RESTORED:
            self.restored = value is not None
            return []
        if kind == _NUMBERS:
            self._saved = _Numbers() if value is None else _numbers.decode(value)
            self._first = self._reading = self._saved.first
            self._next, self._until = self._saved.next, self._saved.next
            return []
        if kind == _GAPS:
            gaps = [] if value is None else _gaps.decode(value)
            self._gaps.extend([gap for gap in gaps if gap[0] >= self._first])
            # The disk may have refused the range that was saved with them.
            self._next = self._until = max([self._next, *[end for _, end in self._gaps]])
            return []
        if kind == _STATE:
            topics = [] if value is None else _topics.decode(value)
            self._topics_left = len(topics)
            if value is None:
                return self._on_done(now_ns)  # a new disk
            loads: list[Effect] = [Load(_TOPIC + id, (ARCHIVE, _TOPIC, id)) for id in topics]
            return loads or self._read_on(now_ns)
        if kind == _TOPIC:
            return self._topic_loaded(Cid(event.token[2]), value, now_ns)
        return self._event_loaded(event.token[2], value, now_ns)

    def _topic_loaded(self, id: Cid, value: bytes | None, now_ns: int) -> list[Effect]:
        self._topics_left -= 1
        effects = [] if value is None else self._on_topic(id, _topic.decode(value), now_ns)
        return effects if self._topics_left else [*effects, *self._read_on(now_ns)]

    def _event_loaded(self, number: int, value: bytes | None, now_ns: int) -> list[Effect]:
        self._under_way -= 1
        effects: list[Effect] = []
        if value is not None:
            self._held[number] = None
            self._next = max(self._next, number + 1)
            self._until = max(self._until, number + 1)
            effects += self._on_event(number, value, now_ns)
        else:
            self._removed += 1
        return [*effects, *self._read_on(now_ns)]

    def _read_on(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        last = self._until + EMPTY_MAX
        while self._under_way < READS_MAX and self._reading < last:
            if self._gaps and self._reading == self._gaps[0][0]:
                self._reading = self._gaps.popleft()[1]
                continue
            number, self._reading = self._reading, self._reading + 1
            self._under_way += 1
            effects.append(Load(_event_key(number), (ARCHIVE, _EVENT, number)))
        return effects if self._under_way else self._on_done(now_ns)

    # Writing

    def add(self, block: bytes, token: Hashable = ARCHIVE) -> tuple[int, list[Effect]]:
        """Keep an event; gives its number, and what to do."""
        number, self._next = self._next, self._next + 1
        self._held[number] = None
        if not self.disk:
            return number, []
        saved = self.save_numbers() if number - self._saved.next >= UNSAVED_MAX else []
        return number, [*saved, Store(_event_key(number), block, token)]

    def remove(self, number: int) -> list[Effect]:
        """Let an event go."""
        self._held.pop(number, None)
        self._removed += 1
        return self._store(_event_key(number), None)

    def save_topic(self, id: Cid, topic: StoredTopic) -> list[Effect]:
        """Keep a topic as it is now."""
        return self._store(_TOPIC + id, msgspec.msgpack.encode(topic))

    def settle_restored(self) -> list[Effect]:
        """Every topic that this concerns says so itself by now."""
        return self._store(RESTORED, None) if self.restored else []

    def remove_topic(self, id: Cid) -> list[Effect]:
        """Let a topic go that is not among those that there are."""
        return self._store(_TOPIC + id, None)

    def save_topics(self, ids: list[Cid]) -> list[Effect]:
        """Keep which topics there are."""
        return self._store(_STATE, msgspec.msgpack.encode(ids))

    def save_numbers(self) -> list[Effect]:
        """Keep the range of numbers, if it changed, and its gaps, if there are many more."""
        self._first = next(iter(self._held), self._next)
        numbers = _Numbers(self._first, self._next)
        effects: list[Effect] = []
        if numbers != self._saved:
            self._saved = numbers
            effects += self._store(_NUMBERS, msgspec.msgpack.encode(numbers))
        if self._removed >= max(REMOVED_MIN, len(self._held)):
            self._removed = 0
            held = pairwise([*self._held, self._next])
            gaps = [(low + 1, high) for low, high in held if high - low > GAP_MIN]
            effects += self._store(_GAPS, msgspec.msgpack.encode(gaps))
        return effects

    def _store(self, key: bytes, value: bytes | None) -> list[Effect]:
        return [Store(key, value, ARCHIVE)] if self.disk else []


def _event_key(number: int) -> bytes:
    return _EVENT + number.to_bytes(8)
