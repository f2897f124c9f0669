"""Virtual time: what is going to happen, in order of (time, sequence).

Equal times happen in the order in which they were scheduled, so a run depends on its seed alone.

What is scheduled with one and the same delay happens in the order in which it was scheduled: it
waits in a queue, a lane, and only the first of a lane is in a heap. Nearly everything is a message
on one of the few hundred paths between regions, so that heap is small and stays in the processor's
cache, whatever is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any

Action = Callable[[Any], None]
Due = tuple[int, int, Action, Any]


class Lane:
    """Everything that happens after one delay."""

    __slots__ = ("_delay_ns", "_scheduler", "waiting")

    def __init__(self, scheduler: Scheduler, delay_ns: int) -> None:
        self._scheduler = scheduler
        self._delay_ns = delay_ns
        self.waiting: deque[Due] = deque()

    def put(self, action: Action, argument: Any) -> None:
        """Let something happen after the delay."""
        scheduler, waiting = self._scheduler, self.waiting
        time_ns, number = scheduler.now_ns + self._delay_ns, next(scheduler.sequence)
        if not waiting:
            heappush(scheduler.lanes, (time_ns, number, self))
        waiting.append((time_ns, number, action, argument))


class Scheduler:
    """The clock of a simulation."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.happened = 0
        self.sequence = count()
        self.lanes: list[tuple[int, int, Lane]] = []  # a heap, of those where something waits
        self._single: list[Due] = []  # another heap
        self._by_delay: dict[int, Lane] = {}

    def at(self, time_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen at a time, not before now."""
        heappush(self._single, (max(time_ns, self.now_ns), next(self.sequence), action, argument))

    def after(self, delay_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen after a delay."""
        heappush(self._single, (self.now_ns + delay_ns, next(self.sequence), action, argument))

    def lane(self, delay_ns: int) -> Lane:
        """The same, for delays that come again and again."""
        lane = self._by_delay.get(delay_ns)
        if lane is None:
            lane = self._by_delay[delay_ns] = Lane(self, delay_ns)
        return lane

    def run_until(self, end_ns: int, events_max: int | None = None) -> bool:
        """Let everything up to end_ns happen; False if events_max stopped it before."""
        lanes, single = self.lanes, self._single
        happened = 0
        stop = -1 if events_max is None else events_max
        try:
            while True:
                if lanes and not (single and single[0] < lanes[0]):
                    time_ns, _, lane = lanes[0]
                    if time_ns > end_ns:
                        break
                    if happened == stop:
                        return False
                    waiting = lane.waiting
                    _, _, action, argument = waiting.popleft()
                    if waiting:
                        after = waiting[0]
                        heapreplace(lanes, (after[0], after[1], lane))
                    else:
                        heappop(lanes)
                elif single and single[0][0] <= end_ns:
                    if happened == stop:
                        return False
                    time_ns, _, action, argument = heappop(single)
                else:
                    break
                self.now_ns = time_ns
                happened += 1
                action(argument)
        finally:
            self.happened += happened
        self.now_ns = max(self.now_ns, end_ns)
        return True
