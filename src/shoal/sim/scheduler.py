"""Virtual time: what is going to happen, in order of time.

What is scheduled with one and the same delay happens in the order in which it was scheduled: it
waits in a queue, a lane, and only the first of a lane is in a heap. Nearly everything is a message
on one of the few hundred paths between regions, so that heap is small and stays in the processor's
cache, whatever is under way; and what waits in a lane lies side by side.

Of what happens at one time, single things come first, in the order in which they were scheduled;
then lane by lane, in the order of their making. So a run depends on its seed alone.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any

Action = Callable[[Any], None]


class Lane:
    """Everything that happens after one delay."""

    __slots__ = ("_delay_ns", "_scheduler", "number", "times_ns", "work")

    def __init__(self, scheduler: Scheduler, delay_ns: int, number: int) -> None:
        self._scheduler = scheduler
        self._delay_ns = delay_ns
        self.number = number
        self.times_ns = array("q")
        self.work: deque[Any] = deque()
        """Action and argument in turn: tuples would be strewn over the memory."""

    def put(self, action: Action, argument: Any) -> None:
        """Let something happen after the delay."""
        scheduler, work = self._scheduler, self.work
        time_ns = scheduler.now_ns + self._delay_ns
        if not work:
            heappush(scheduler.lanes, (time_ns, self.number, self))
        self.times_ns.append(time_ns)
        work.append(action)
        work.append(argument)


class Scheduler:
    """The clock of a simulation."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.happened = 0
        self.lanes: list[tuple[int, int, Lane]] = []  # a heap, of those where something waits
        self._single: list[tuple[int, int, Action, Any]] = []  # another heap
        self._sequence = count()
        self._by_delay: dict[int, Lane] = {}

    def at(self, time_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen at a time, not before now."""
        heappush(self._single, (max(time_ns, self.now_ns), next(self._sequence), action, argument))

    def after(self, delay_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen after a delay."""
        heappush(self._single, (self.now_ns + delay_ns, next(self._sequence), action, argument))

    def lane(self, delay_ns: int) -> Lane:
        """The same, for delays that come again and again."""
        lane = self._by_delay.get(delay_ns)
        if lane is None:
            lane = self._by_delay[delay_ns] = Lane(self, delay_ns, len(self._by_delay))
        return lane

    def run_until(self, end_ns: int, events_max: int | None = None) -> bool:
        """Let everything up to end_ns happen; False if events_max stopped it before."""
        lanes, single = self.lanes, self._single
        happened = 0
        stop = -1 if events_max is None else events_max
        try:
            while True:
                if lanes and not (single and single[0][0] <= lanes[0][0]):
                    time_ns, number, lane = lanes[0]
                    if time_ns > end_ns:
                        break
                    if happened == stop:
                        return False
                    work, times_ns = lane.work, lane.times_ns
                    action, argument = work.popleft(), work.popleft()
                    del times_ns[0]
                    if work:
                        heapreplace(lanes, (times_ns[0], number, lane))
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
