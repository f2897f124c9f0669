"""How many places a node can afford.

Traffic is proportional to degree, so places are given by bandwidth: L = L_d * min(U, D) / S, where
S is what one location shall carry. Then load decides: whoever is congested gives one up, whoever
has been idle for long takes one more. Slowly, and between half and twice the number to begin with:
every change moves two neighbours.
"""

from __future__ import annotations

from math import floor

from shoal.protocols.search.config import LOCATIONS_MIN, SearchConfig

CONGESTED_BEATS = 6  # in a row: half a minute is no burst any more
IDLE_BEATS = 60  # in a row: five minutes
IDLE_BELOW = 0.25  # of what may be sent


def locations_for(locations: int, upload: float, download: float, per_location: float) -> int:
    """Places for these bytes a second each way, if `locations` are worth so much each."""
    return max(LOCATIONS_MIN, floor(locations * min(upload, download) / per_location))


class Capacity:
    """Places that this node wants, by its load."""

    def __init__(self, config: SearchConfig) -> None:
        self.wanted = config.locations
        self._least = max(LOCATIONS_MIN, config.locations // 2)
        self._most = min(config.locations_max, 2 * config.locations)
        self._congested = 0
        self._idle = 0

    def beat(self, used: float, *, congested: bool) -> int:
        """After each interval: which part of the upload was used; the number of places from now
        on."""
        self._congested = self._congested + 1 if congested else 0
        self._idle = self._idle + 1 if used < IDLE_BELOW and not congested else 0
        if self._congested >= CONGESTED_BEATS:
            self._congested = 0
            self.wanted = max(self._least, self.wanted - 1)
        elif self._idle >= IDLE_BEATS:
            self._idle = 0
            self.wanted = min(self._most, self.wanted + 1)
        return self.wanted
