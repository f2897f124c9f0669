"""Delay that varies."""

from __future__ import annotations

import math
from random import Random

from shoal.base.units import MS_NS
from shoal.sim.faults.base import LinkFault, NotNegative
from shoal.sim.network import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation


class Jitter(LinkFault, frozen=True, kw_only=True, tag="jitter"):
    """Adds a delay to each message, exponential with this mean; order is kept."""

    mean_ms: NotNegative

    def shaper(self, simulation: Simulation) -> Shaper:
        return _Jitter(self.mean_ms * MS_NS, simulation.fault_random("jitter"))


class _Jitter(Shaper):
    def __init__(self, mean_ns: float, rng: Random) -> None:
        self._mean_ns = mean_ns
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        draw = self._rng.random
        # 1 - u is in (0, 1]: the logarithm exists.
        return [t + round(self._mean_ns * -math.log(1.0 - draw())) for t in arrivals_ns]
