"""An event loop with the clock of an experiment: fine timers, and no time while we do not run.

Fine: the timers of asyncio wait in epoll, which counts in milliseconds and rounds up. A message of
five hops would be two and a half milliseconds late on the average, a per cent of what it takes.
(uvloop's timers are as coarse.) An epoll is itself a file that can be waited for, and select()
counts in microseconds.

No time: while other processes have all cores, every node of the experiment stands still, and so
does its clock. Linux says how long a thread was ready to run and did not; where nobody says, such
time counts. What our own nodes make each other wait always counts.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
from contextlib import suppress

from shoal.base.units import S_NS

SELECT_MAX = 1024  # select() knows no descriptors above
SCHEDULER_FILE = "/proc/thread-self/schedstat"  # nanoseconds: run, ready but not run; times run


class LabLoop(asyncio.SelectorEventLoop):
    """Runs in the thread that made it."""

    def __init__(self) -> None:
        self._scheduler: int | None = None
        with suppress(OSError):  # no Linux, or one that does not count
            self._scheduler = os.open(SCHEDULER_FILE, os.O_RDONLY | os.O_CLOEXEC)
        self._begin_s = self._ready_s()
        self._latest_s = 0.0
        # kqueue, where there is one, counts in nanoseconds.
        super().__init__(_FineSelector() if hasattr(selectors, "EpollSelector") else None)

    def time(self) -> float:
        """Seconds of the monotonic clock, without those in which we did not get to run."""
        # In this order: who is interrupted in between sees too little time, and never too much.
        now_s = super().time()
        now_s -= self.stood_still_s()
        if now_s > self._latest_s:
            self._latest_s = now_s
        return self._latest_s

    def stood_still_s(self) -> float:
        """How long we were ready to run and did not."""
        return self._ready_s() - self._begin_s

    def close(self) -> None:
        """Give everything back."""
        super().close()
        if self._scheduler is not None:
            os.close(self._scheduler)
            self._scheduler = None

    def _ready_s(self) -> float:
        if self._scheduler is None:
            return 0.0
        return int(os.pread(self._scheduler, 64, 0).split()[1]) / S_NS


class _FineSelector(selectors.DefaultSelector):
    """Waits in select(), for one descriptor."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        epoll = self.fileno()
        if timeout is None or timeout <= 0 or epoll >= SELECT_MAX:
            return super().select(timeout)
        select.select([epoll], [], [], timeout)
        return super().select(0)
