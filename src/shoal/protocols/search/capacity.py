"""How many places a node can afford.

Traffic is proportional to degree, so places are given by bandwidth: L = L_d * min(U, D) / S, where
S is the bandwidth of a node with the usual L_d places. Then load decides: whoever is congested
gives one up, whoever has been idle for long takes one more. Slowly, and between half and twice the
number to begin with: every change moves two neighbours.
"""

from __future__ import annotations

from math import floor

from shoal.base.units import S_NS
from shoal.protocols.search.config import LOCATIONS_MIN, SearchConfig

CONGESTED_NS = 30 * S_NS  # without a pause: no burst any more
IDLE_NS = 300 * S_NS  # without a pause
IDLE_BELOW = 0.25  # of what may be sent


def locations_for(locations: int, upload: float, download: float, standard: float) -> int:
    """Places for these bytes a second each way, if whoever has `standard` has `locations`."""
    return max(LOCATIONS_MIN, floor(locations * min(upload, download) / standard))


class Capacity:
    """Places that this node wants, by its load."""

    def __init__(self, config: SearchConfig) -> None:
        self.wanted = config.locations
        upload, download = config.upload_bytes_s, config.download_bytes_s
        if upload is not None:
            worth = locations_for(
                config.locations, upload, download or upload, config.standard_bytes_s
            )
            self.wanted = min(worth, config.locations_max)
        self._least = max(LOCATIONS_MIN, self.wanted // 2)
        self._most = min(config.locations_max, 2 * self.wanted)
        self._congested_ns = 0
        self._idle_ns = 0

    def beat(self, used: float, interval_ns: int, *, congested: bool) -> int:
        """After each interval: which part of the upload was used; the number of places from now
        on."""
        idle = used < IDLE_BELOW and not congested
        self._congested_ns = self._congested_ns + interval_ns if congested else 0
        self._idle_ns = self._idle_ns + interval_ns if idle else 0
        if self._congested_ns >= CONGESTED_NS:
            self._congested_ns = 0
            self.wanted = max(self._least, self.wanted - 1)
        elif self._idle_ns >= IDLE_NS:
            self._idle_ns = 0
            self.wanted = min(self._most, self.wanted + 1)
        return self.wanted
