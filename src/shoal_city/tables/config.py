"""What the pipeline goes by: every limit in one place."""

from __future__ import annotations

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds and times of the vehicle pipeline; the same ones for history and live."""

    lateness_s: float = 30.0
    """Readings that took longer from the vehicle into the log are late: live passes them over."""
    ahead_s: float = 5.0
    """Readings stamped so far after the message that brought them come from a clock that is wrong,
    and would push everybody's watermark."""
    played_back: bool = False
    """The fleet's clock is not ours: it was recorded, or runs faster than time. What passes on a
    vehicle is then told by its own clock, and what passes in the network by the network's."""
    skew_s: float = 5.0
    """How far apart in time a query may read the partitions of a stream."""

    window_s: int = 300
    slide_s: int = 60
    cell_degrees: float = 0.01
    """Of latitude, 1.1 km; of longitude twice as much, which at 60 degrees north is as long."""

    gap_s: float = 300.0
    """A vehicle that was silent for longer has ended its trip."""
    accuracy_max_m: float = 25.0
    """Places that the receiver itself doubts say nothing about standing still or being close."""
    stuck_s: float = 180.0
    stuck_m: float = 30.0
    """A vehicle that stays within so many metres for so long, away from a terminus."""
    bunch_m: float = 100.0
    bunch_s: float = 90.0
    """Two vehicles of a route and direction that are so close for so long; they are apart again at
    twice the distance."""
    bunch_check_s: float = 10.0
    """A vehicle is held against the others so often."""
    fresh_s: float = 15.0
    """A place older than that is not where a vehicle is."""

    @property
    def watermark_s(self) -> float:
        """How long Spark keeps what is not final. With less, Spark itself would drop readings that
        are not late by our rule, and say nothing (see lateness.py)."""
        return self.lateness_s + self.ahead_s + self.skew_s
