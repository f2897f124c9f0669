"""Messages that arrive twice."""

from __future__ import annotations

from random import Random

from shoal.base.units import ns_of_ms
from shoal.sim.faults.base import LinkFault, NotNegative, Probability
from shoal.sim.network import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation


class Duplication(LinkFault, frozen=True, kw_only=True, tag="duplication"):
    """Repeats each message with this probability, so much later."""

    probability: Probability
    later_ms: NotNegative = 10.0

    def shaper(self, simulation: Simulation) -> Shaper:
        later_ns = ns_of_ms(self.later_ms)
        return _Duplication(self.probability, later_ns, simulation.fault_random("duplication"))


class _Duplication(Shaper):
    keeps_order = False

    def __init__(self, probability: float, later_ns: int, rng: Random) -> None:
        self._probability = probability
        self._later_ns = later_ns
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        again = [t + self._later_ns for t in arrivals_ns if self._rng.random() < self._probability]
        return arrivals_ns + again
