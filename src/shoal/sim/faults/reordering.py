"""Messages that overtake each other."""

from __future__ import annotations

from random import Random

from shoal.base.units import ns_of_ms
from shoal.sim.faults.base import LinkFault, Positive, Probability
from shoal.sim.network import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation


class Reordering(LinkFault, frozen=True, kw_only=True, tag="reordering"):
    """Holds each message back with this probability, so that later ones pass it."""

    probability: Probability
    held_ms: Positive = 50.0

    def shaper(self, simulation: Simulation) -> Shaper:
        held_ns = ns_of_ms(self.held_ms)
        return _Reordering(self.probability, held_ns, simulation.fault_random("reordering"))


class _Reordering(Shaper):
    keeps_order = False

    def __init__(self, probability: float, held_ns: int, rng: Random) -> None:
        self._probability = probability
        self._held_ns = held_ns
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [
            t + (self._held_ns if self._rng.random() < self._probability else 0)
            for t in arrivals_ns
        ]
