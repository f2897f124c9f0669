"""Duplicate detection: which positions of a chain have been seen.

A chain's messages each name the one before, so a message at n after p says that nothing lies
between them: (p, n] is seen, and the first message of a chain says that nothing came before.
Without gaps, one range holds a chain's whole past, and a detector is no more than its two ends. At
most `ranges_max` ranges are kept; below the lowest one dropped everything counts as seen, for a
forgotten range must not let an old message in again.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

Number = tuple[int, int]  # (timestamp_ms, sequence)
BEGINNING: Number = (-1, 0)  # before every message


def before_of(previous: Number, number: Number) -> Number:
    """Where the message before one stands. A publisher that names one at its own place or behind
    it contradicts itself: then the message stands for itself alone, and waits for none."""
    return previous if previous < number else (number[0], number[1] - 1)


class DuplicateDetector(msgspec.Struct, gc=False):
    """Seen positions of one chain, as sorted disjoint ranges (start, end]."""

    ranges_max: int
    start: Number = BEGINNING
    newest: Number = BEGINNING
    """The last range; newest is the highest position seen."""
    older: tuple[list[Number], list[Number]] | None = None
    """Starts and ends of the ranges below it, if there are any."""
    floor: Number = BEGINNING

    def seen(self, number: Number) -> bool:
        """Whether a position was marked, or lies below what is remembered."""
        if number > self.newest:
            return False
        if number > self.start or number <= self.floor:
            return True
        if self.older is None:
            return False
        starts, ends = self.older
        at = bisect_left(ends, number)
        return at < len(ends) and number > starts[at]

    def mark(self, before: Number, number: Number) -> bool:
        """Mark (before, number]; False if number was seen already."""
        newest = self.newest
        if before == newest and number > newest:  # in order: the usual case
            self.newest = number
            return True
        if self.seen(number):
            return False
        self._merge(before_of(before, number), number)
        return True

    def abandon(self, upto: Number) -> None:
        """Whatever is missing up to a position will not be asked for again: it counts as seen."""
        self._merge(BEGINNING, upto)

    def is_whole(self, baseline: Number) -> bool:
        """Whether nothing is missing between the baseline and the newest: the usual case."""
        return self.older is None and self.start <= baseline

    def gaps(self, baseline: Number) -> list[tuple[Number, Number]]:
        """Ranges (after, upto] above the baseline that are missing between those seen."""
        ranges = self.ranges
        missing = [(ranges[i][1], ranges[i + 1][0]) for i in range(len(ranges) - 1)]
        floor = max(baseline, self.floor)
        if ranges and ranges[0][0] > floor:
            missing.insert(0, (floor, ranges[0][0]))
        return [(max(after, floor), upto) for after, upto in missing if upto > floor]

    def _merge(self, before: Number, number: Number) -> None:
        starts, ends = self.older or ([], [])
        if self.newest > BEGINNING:
            starts.append(self.start)
            ends.append(self.newest)
        # Ranges that touch (before, number] melt into it. The one that follows number cannot
        # start before it, or number would have been seen.
        low = bisect_left(ends, before)
        high = low
        while high < len(ends) and starts[high] <= number:
            high += 1
        start, end = before, number
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        if len(ends) > self.ranges_max:
            self.floor = ends.pop(0)
            starts.pop(0)
        self.start, self.newest = starts.pop(), ends.pop()
        self.older = (starts, ends) if starts else None

    @property
    def ranges(self) -> list[tuple[Number, Number]]:
        """The ranges, oldest first."""
        older = [] if self.older is None else list(zip(*self.older, strict=True))
        return older if self.newest == BEGINNING else [*older, (self.start, self.newest)]
