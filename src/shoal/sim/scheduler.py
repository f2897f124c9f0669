"""Virtual time: a heap of what is going to happen, keyed (time, sequence).

Equal times happen in the order in which they were scheduled, so a run depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

Action = Callable[[Any], None]


class Scheduler:
    """The clock of a simulation."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.happened = 0
        self.heap: list[tuple[int, int, Action, Any]] = []
        self.sequence = count()

    def at(self, time_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen at a time, not before now."""
        heappush(self.heap, (max(time_ns, self.now_ns), next(self.sequence), action, argument))

    def after(self, delay_ns: int, action: Action, argument: Any = None) -> None:
        """Let something happen after a delay."""
        heappush(self.heap, (self.now_ns + delay_ns, next(self.sequence), action, argument))

    def run_until(self, end_ns: int, events_max: int | None = None) -> bool:
        """Let everything up to end_ns happen; False if events_max stopped it before."""
        heap = self.heap
        happened = 0
        stop = -1 if events_max is None else events_max
        try:
            while heap and heap[0][0] <= end_ns:
                if happened == stop:
                    return False
                self.now_ns, _, action, argument = heappop(heap)
                happened += 1
                action(argument)
        finally:
            self.happened += happened
        self.now_ns = max(self.now_ns, end_ns)
        return True
