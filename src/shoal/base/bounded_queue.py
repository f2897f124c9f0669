"""A queue for whoever may be slow: bounded in number and in bytes, and the oldest go first."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

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
