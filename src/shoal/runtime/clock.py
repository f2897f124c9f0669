"""Unix time that never goes back."""

from __future__ import annotations

import time


class Clock:
    """The system clock steps back now and then; machines must not see it."""

    def __init__(self) -> None:
        self._latest_ns = 0

    def now_ns(self) -> int:
        """Unix time in nanoseconds, non-decreasing."""
        now_ns = time.time_ns()
        if now_ns > self._latest_ns:
            self._latest_ns = now_ns
        return self._latest_ns
