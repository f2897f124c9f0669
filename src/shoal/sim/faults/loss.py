"""Messages that vanish."""

from __future__ import annotations

from random import Random

from shoal.sim.faults.base import LinkFault, Probability
from shoal.sim.network import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation


class Loss(LinkFault, frozen=True, kw_only=True, tag="loss"):
    """Loses each message with this probability: harsher than TCP, which would only delay it."""

    probability: Probability

    def shaper(self, simulation: Simulation) -> Shaper:
        return _Loss(self.probability, simulation.fault_random("loss"))


class _Loss(Shaper):
    def __init__(self, probability: float, rng: Random) -> None:
        self._probability = probability
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [t for t in arrivals_ns if self._rng.random() >= self._probability]
