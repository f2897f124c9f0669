"""The two times of a node: one that only goes on, and the time of day beside it.

The first begins at the system clock's time and then follows the machine's monotonic clock, which
nothing sets; it goes on while the machine sleeps, where the system can tell. The time of day is
the system clock's: it is looked at before each input, and a step of it, ahead or back, is told to
the machines at once. So a wrong reading matters as long as it lasts, and no longer.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Hashable
from functools import partial
from time import time_ns

from shoal.base.units import MS_NS, S_NS, seconds

STEP_NS = MS_NS  # two clocks cannot be read at once: a smaller difference may be the reading's
LOGGED_NS = S_NS  # a clock that is kept right by slewing makes no such step
READS_MAX = 3  # of both clocks, until nothing came between

log = logging.getLogger("shoal.runtime")

# Linux and macOS, where time.monotonic leaves the sleep out; elsewhere it may be left out.
_SLEEP_COUNTS = getattr(
    time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC if sys.platform == "darwin" else None
)

steady_ns: Callable[[], int] = time.monotonic_ns
"""The machine's monotonic clock; it goes on while the machine sleeps, where the system can tell."""
if _SLEEP_COUNTS is not None:
    steady_ns = partial(time.clock_gettime_ns, _SLEEP_COUNTS)


class Clock:
    """Both times of one node."""

    def __init__(self, stepped: Callable[[int, int], None]) -> None:
        """`stepped` hears by how much the time of day is ahead, and when, if that changes."""
        self._stepped = stepped
        self._wall_ns = time_ns
        self._begin_ns = time_ns() - steady_ns()
        self.offset_ns = 0
        """By how much the time of day is ahead."""

    def steady_ns(self) -> int:
        """The time that only goes on; may be called from any thread."""
        return self._begin_ns + steady_ns()

    def now_ns(self) -> int:
        """The same, once a step of the system clock has been told; for the event loop."""
        now_ns = self._begin_ns + steady_ns()  # for each input: written out
        if not -STEP_NS < self._wall_ns() - now_ns - self.offset_ns < STEP_NS:
            self._look()
        return now_ns

    def _look(self) -> None:
        """The two may have been read with a pause between them."""
        for _ in range(READS_MAX):
            before_ns = self.steady_ns()
            wall_ns = self._wall_ns()
            after_ns = self.steady_ns()
            if after_ns - before_ns < STEP_NS:
                break
        offset_ns = wall_ns - (before_ns + after_ns) // 2
        step_ns = offset_ns - self.offset_ns
        if abs(step_ns) < STEP_NS:
            return
        self.offset_ns = offset_ns
        if abs(step_ns) > LOGGED_NS:
            way = "ahead" if step_ns > 0 else "back"
            log.warning("the system clock was set %s by %.1f s", way, abs(step_ns) / S_NS)
        self._stepped(offset_ns, after_ns)


# Timers of machines, on the event loop.


Fire = Callable[[int, Hashable], None]


class Timers:
    """By machine and key: setting one again replaces it."""

    def __init__(self, fire: Fire) -> None:
        self._fire = fire
        self._loop = asyncio.get_running_loop()
        self._handles: dict[tuple[int, Hashable], asyncio.TimerHandle] = {}

    def set(self, slot: int, key: Hashable, delay_ns: int) -> None:
        """Fire once, so much later."""
        self.cancel(slot, key)
        handle = self._loop.call_later(seconds(delay_ns), self._due, slot, key)
        self._handles[slot, key] = handle

    def cancel(self, slot: int, key: Hashable) -> None:
        """A cancelled timer never fires."""
        handle = self._handles.pop((slot, key), None)
        if handle is not None:
            handle.cancel()

    def clear(self) -> None:
        """Cancel them all."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def __len__(self) -> int:
        """How many are set."""
        return len(self._handles)

    def _due(self, slot: int, key: Hashable) -> None:
        del self._handles[slot, key]
        self._fire(slot, key)
