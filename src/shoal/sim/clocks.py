"""A node's monotonic clock, when it is not the simulation's own."""

from __future__ import annotations

PPM = 1_000_000


class DriftingClock:
    """Goes on from what it showed, fast or slow by `ppm`."""

    def __init__(self, since_ns: int, shown_ns: int, ppm: float) -> None:
        self._since_ns = since_ns
        self._shown_ns = shown_ns
        self.ppm = ppm

    def read(self, true_ns: int) -> int:
        """What it shows."""
        elapsed_ns = true_ns - self._since_ns
        return self._shown_ns + elapsed_ns + round(elapsed_ns * self.ppm / PPM)

    def true_ns(self, delay_ns: int) -> int:
        """How long a delay measured by this clock really takes."""
        return round(delay_ns / (1 + self.ppm / PPM))
