"""A node's own idea of the time."""

from __future__ import annotations

PPM = 1_000_000


class DriftingClock:
    """Runs fast or slow by `ppm` and off by `offset_ns`, and never shows less than before."""

    def __init__(self, since_ns: int, offset_ns: int, ppm: float, shown_ns: int = 0) -> None:
        self._since_ns = since_ns
        self._offset_ns = offset_ns
        self._ppm = ppm
        self._latest_ns = shown_ns

    def read(self, true_ns: int) -> int:
        """What the node believes the time is."""
        elapsed_ns = true_ns - self._since_ns
        drift_ns = round(elapsed_ns * self._ppm / PPM)
        self._latest_ns = max(self._latest_ns, true_ns + self._offset_ns + drift_ns)
        return self._latest_ns

    def true_ns(self, delay_ns: int) -> int:
        """How long a delay measured by this clock really takes."""
        return round(delay_ns / (1 + self._ppm / PPM))

    def mend(self) -> None:
        """Run right from now on."""
        self._offset_ns = 0
        self._ppm = 0.0
