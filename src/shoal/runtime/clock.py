"""Unix time that never goes back, and never stands still.

The system clock is followed, and a step ahead is taken at once. After a step back, time goes on
from where it was at half the speed, until the system clock has come up to it: timestamps stay in
order, and whoever waits for time to pass does not wait for ever.
"""

from __future__ import annotations

import logging
from time import monotonic_ns, time_ns

from shoal.base.units import S_NS

TOLD_NS = S_NS  # a clock that is kept right by slewing makes no such step

log = logging.getLogger("shoal.runtime")


class Clock:
    """The time of one node."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._steady_ns = monotonic_ns()  # when it was that
        self._is_ahead = False  # of the system clock, by so much that it was told

    def now_ns(self) -> int:
        """The time."""
        wall_ns, steady_ns = time_ns(), monotonic_ns()
        least_ns = self._now_ns + (steady_ns - self._steady_ns) // 2
        self._steady_ns = steady_ns
        if wall_ns >= least_ns:
            self._now_ns, self._is_ahead = wall_ns, False
        else:
            self._now_ns = least_ns
            if not self._is_ahead and least_ns - wall_ns > TOLD_NS:
                self._is_ahead = True
                log.warning(
                    "the system clock was set back by %.1f s: until it has come up to this node's"
                    " time, that runs at half speed; restart the node to set it right at once",
                    (least_ns - wall_ns) / S_NS,
                )
        return self._now_ns
