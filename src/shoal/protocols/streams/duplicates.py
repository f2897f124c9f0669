"""Duplicate detection: which positions of a chain have been seen.

A chain's messages each name the one before, so a message at n after p says that nothing lies
between them: (p, n] is seen, and the first message of a chain says that nothing came before.
Without gaps, one range holds a chain's whole past. At most
`ranges_max` ranges are kept; below the lowest one dropped everything counts as seen, for a
forgotten range must not let an old message in again.
"""

from __future__ import annotations

from bisect import bisect_left

Number = tuple[int, int]  # (timestamp_ms, sequence)
BEGINNING: Number = (-1, 0)  # before every message


class DuplicateDetector:
    """Seen positions of one chain, as sorted disjoint ranges (start, end]."""

    __slots__ = ("_ends", "_floor", "_ranges_max", "_starts")

    def __init__(self, ranges_max: int) -> None:
        self._ranges_max = ranges_max
        self._starts: list[Number] = []
        self._ends: list[Number] = []
        self._floor: Number = BEGINNING

    def seen(self, number: Number) -> bool:
        """Whether a position was marked, or lies below what is remembered."""
        ends = self._ends
        if not ends:
            return number <= self._floor
        if number > ends[-1]:
            return False
        if number > self._starts[-1]:
            return True
        if number <= self._floor:
            return True
        return number > self._starts[bisect_left(ends, number)]

    def mark(self, previous: Number | None, number: Number) -> bool:
        """Mark (previous, number]; False if number was seen before."""
        if self.seen(number):
            return False
        ends = self._ends
        if previous is None:
            previous = BEGINNING
        elif previous >= number:
            # A publisher that contradicts itself: the message stands for itself alone.
            previous = (number[0], number[1] - 1)
        if ends and previous == ends[-1]:  # in order: the usual case
            ends[-1] = number
            return True
        self._merge(previous, number)
        return True

    def abandon(self, upto: Number) -> None:
        """Whatever is missing up to a position will not be asked for again: it counts as seen."""
        self._merge(BEGINNING, upto)

    def is_whole(self, baseline: Number) -> bool:
        """Whether nothing is missing between the baseline and the newest: the usual case."""
        starts = self._starts
        return len(starts) == 1 and starts[0] <= baseline

    def gaps(self, baseline: Number) -> list[tuple[Number, Number]]:
        """Ranges (after, upto] above the baseline that are missing between those seen."""
        starts, ends = self._starts, self._ends
        missing = [(ends[i], starts[i + 1]) for i in range(len(ends) - 1)]
        floor = max(baseline, self._floor)
        if starts and starts[0] > floor:
            missing.insert(0, (floor, starts[0]))
        return [(max(after, floor), upto) for after, upto in missing if upto > floor]

    def _merge(self, previous: Number, number: Number) -> None:
        starts, ends = self._starts, self._ends
        # Ranges that touch (previous, number] melt into it. The one that follows number cannot
        # start before it, or number would have been seen.
        low = bisect_left(ends, previous)
        high = low
        while high < len(ends) and starts[high] <= number:
            high += 1
        start, end = previous, number
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        if len(ends) > self._ranges_max:
            self._floor = ends.pop(0)
            starts.pop(0)

    @property
    def ranges(self) -> list[tuple[Number, Number]]:
        """The ranges, oldest first."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def newest(self) -> Number:
        """The highest position seen."""
        return self._ends[-1] if self._ends else self._floor
