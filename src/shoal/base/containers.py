"""A queue for whoever may be slow: bounded in number and in bytes, and the oldest go first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """What waits for one reader. The newest always fits, however large it is."""

    __slots__ = ("_items", "bytes_max", "count_max", "size_bytes")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.size_bytes = 0
        """Of all that waits."""
        self._items: deque[tuple[T, int]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size_bytes: int) -> list[T]:
        """One more, which never waits; what had to go for it, the oldest first."""
        gone = []
        while self._items and not self._has_room(size_bytes):
            gone.append(self.take())
        self._items.append((item, size_bytes))
        self.size_bytes += size_bytes
        return gone

    def take(self) -> T:
        """The oldest; IndexError if there is none."""
        item, size_bytes = self._items.popleft()
        self.size_bytes -= size_bytes
        return item

    def put_back(self, item: T, size_bytes: int) -> None:
        """One that was taken: it is the oldest again, and what goes next if there is no room."""
        self._items.appendleft((item, size_bytes))
        self.size_bytes += size_bytes

    def _has_room(self, size_bytes: int) -> bool:
        return len(self._items) < self.count_max and self.size_bytes + size_bytes <= self.bytes_max


# Values in the order of a number: when they expire, when they are due, how far away they lie.
#
# A sorted list: with tens of thousands of values a place in it costs microseconds, what comes first
# costs nothing, and whatever changes is taken out exactly.


Slot = tuple[bytes, NodeId | None]  # key and signer: at most one value each
_Entry = tuple[int, bytes, bytes]  # nobody's id is empty: it stands for no signer


class Ordered:
    """Slots by rank, the lowest first; then by key and signer."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, rank: int, slot: Slot) -> None:
        """A slot that is not in here yet."""
        insort(self._entries, (rank, slot[0], slot[1] or b""))

    def remove(self, rank: int, slot: Slot) -> None:
        """Take out a slot that is in here under this rank."""
        entry = (rank, slot[0], slot[1] or b"")
        index = bisect_left(self._entries, entry)
        if index == len(self._entries) or self._entries[index] != entry:
            raise InvariantViolated(f"{slot[0].hex()} is not held under rank {rank}")
        del self._entries[index]

    def first(self) -> Slot:
        """The one with the lowest rank."""
        return _slot(self._entries[0])

    def last(self) -> Slot:
        """The one with the highest rank."""
        return _slot(self._entries[-1])

    def up_to(self, rank: int, count: int | None = None) -> list[Slot]:
        """Those of this rank or a lower one, lowest first; so many at most."""
        end = bisect_left(self._entries, (rank + 1, b"", b""))
        return [
            _slot(entry) for entry in self._entries[: end if count is None else min(end, count)]
        ]

    def entries(self) -> list[tuple[int, Slot]]:
        """All, in order."""
        return [(entry[0], _slot(entry)) for entry in self._entries]


def _slot(entry: _Entry) -> Slot:
    return entry[1], NodeId(entry[2]) if entry[2] else None


# A token bucket for each of many keys, in bounded memory.


class RateLimit:
    """`burst` at once, then one per `refill_ns`; the longest unused key is forgotten first."""

    def __init__(self, burst: int, refill_ns: int, keys_max: int) -> None:
        self._burst_ns = burst * refill_ns
        self._refill_ns = refill_ns
        self._keys_max = keys_max
        self._spent_until: dict[Hashable, int] = {}  # key -> when its bucket is full again

    def allow(self, key: Hashable, now_ns: int, tokens: int = 1) -> bool:
        """Take one token, or so many, if they are there."""
        spent_ns = max(self._spent_until.pop(key, now_ns), now_ns)
        full_ns = spent_ns + tokens * self._refill_ns
        allowed = full_ns - now_ns <= self._burst_ns
        self._spent_until[key] = full_ns if allowed else spent_ns
        if len(self._spent_until) > self._keys_max:
            del self._spent_until[next(iter(self._spent_until))]
        return allowed
