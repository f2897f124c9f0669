"""How long new messages are here before they go on, for the tracker's estimates.

The mean of the last ones: under load messages wait for each other's checks. What a burst has left
behind fades when it is over, towards the least that was ever seen, which is what a single message
takes. Without that, an idle node would report its last burst until the next messages come.
"""

from __future__ import annotations

from shoal.base.ids import INT63_MAX
from shoal.base.units import S_NS

GAIN = 16  # one message counts a sixteenth: bursts of checks even out
HALF_NS = 5 * S_NS  # without a message, half of what is above the least is gone by then


class HandlingTime:
    """A running mean that fades."""

    __slots__ = ("_added_ns", "_least_ns", "_mean_ns")

    def __init__(self) -> None:
        self._mean_ns = 0
        self._least_ns = INT63_MAX
        self._added_ns = 0

    def add(self, handled_ns: int, now_ns: int) -> None:
        """A message went on, so long after it came."""
        if handled_ns < self._least_ns:
            self._least_ns = handled_ns
        mean_ns = self.typical_ns(now_ns)
        self._mean_ns = mean_ns + (handled_ns - mean_ns) // GAIN
        self._added_ns = now_ns

    def typical_ns(self, now_ns: int) -> int:
        """What a message that comes now should take."""
        excess_ns, halves = self._mean_ns - self._least_ns, (now_ns - self._added_ns) // HALF_NS
        if excess_ns <= 0 or halves <= 0:
            return self._mean_ns
        return self._least_ns + (excess_ns >> min(halves, 63))
