"""Values in the order of a number: when they expire, when they are due, how far away they lie.

A sorted list: with tens of thousands of values a place in it costs microseconds, what comes first
costs nothing, and whatever changes is taken out exactly.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId

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
