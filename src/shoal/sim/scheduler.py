"""Virtual time: what is going to happen, in order of time, and of one time in the order in which
it was scheduled.

A calendar. What lies ahead is put down in the day on which it will happen, unsorted: a hundred
thousand messages are under way in a large network, and a heap of them all would be out of the
processor's cache. A day is put in order when it begins, and what is scheduled for the rest of it
is inserted.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any

Action = Callable[[Any], None]

DAY_BITS = 19  # half a millisecond: a few hundred events in a large network, and a thousand days
ENDLESS = 1 << 62  # events


class Scheduler:
    """The clock of a simulation."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.happened = 0
        # Times, and action and argument in turn: tuples would be strewn over the memory.
        self._days: dict[int, tuple[array[int], list[Any]]] = {}
        self._ahead: list[int] = []  # a heap of their numbers
        self._today = -1
        self._due: list[tuple[int, int, Action, Any]] = []  # all of today, in order
        self._at = 0  # so much of it has happened

    def at(self, time_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen at a time, not before now."""
        self.after(max(0, time_ns - self.now_ns), action, argument)

    def after(self, delay_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen after a delay."""
        time_ns = self.now_ns + delay_ns
        number = time_ns >> DAY_BITS
        day = self._days.get(number)
        if day is None:
            if number == self._today:
                due = self._due
                insort(due, (time_ns, len(due), action, argument))
                return
            day = self._days[number] = (array("q"), [])
            heappush(self._ahead, number)
        times_ns, work = day
        times_ns.append(time_ns)
        work.append(action)
        work.append(argument)

    def run_until(self, end_ns: int, events_max: int | None = None) -> bool:
        """Let everything up to end_ns happen; False if it stopped after so many events."""
        left = ENDLESS if events_max is None else events_max
        while True:
            begun = at = self._at
            try:
                # What is inserted meanwhile lies ahead, and its turn comes.
                for time_ns, _, action, argument in islice(self._due, at, at + left):
                    if time_ns > end_ns:
                        break
                    self.now_ns = time_ns
                    at += 1
                    action(argument)
            finally:
                self._at = at
                self.happened += at - begun
            left -= at - begun
            if not left:
                return False  # before a day begins: what comes meanwhile may be before it
            if at < len(self._due) or not self._begin_day(end_ns):
                self.now_ns = max(self.now_ns, end_ns)
                return True

    def _begin_day(self, end_ns: int) -> bool:
        """Put the next day in order, if it begins before the end: until then there may be others
        before it."""
        if not self._ahead or self._ahead[0] > end_ns >> DAY_BITS:
            return False
        self._today = heappop(self._ahead)
        times_ns, work = self._days.pop(self._today)
        self._due = sorted(zip(times_ns, count(), work[::2], work[1::2]))
        self._at = 0
        return True
