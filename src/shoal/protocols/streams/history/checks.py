"""Signatures of history under way at once, of all reads of a node.

Live messages are checked by the same cores: they must wait behind a few checks of history, however
many reads there are. So a read asks for room here; when there is none, it has its turn later, one
read after the other.
"""

from __future__ import annotations


class Checks:
    """Room for so many checks."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        self._waiting: dict[int, None] = {}  # reads, first come first

    def take(self, read: int, wanted: int) -> int:
        """How many checks a read may begin now; if none, it waits."""
        first = next(iter(self._waiting), read)
        granted = min(wanted, self.free) if first == read else 0
        self._waiting.pop(read, None)
        if wanted and not granted:
            self._waiting[read] = None
        self.free -= granted
        return granted

    def ended(self) -> None:
        """One check is done."""
        self.free += 1

    def turn(self) -> int | None:
        """The read whose turn it is, if there is room and one waits."""
        return next(iter(self._waiting), None) if self.free else None

    def forget(self, read: int) -> None:
        """A read is over; what it has under way still ends."""
        self._waiting.pop(read, None)
