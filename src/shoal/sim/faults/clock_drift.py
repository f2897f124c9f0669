"""Clocks that are wrong."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.base.units import MS_NS
from shoal.sim.faults.base import Fault, NotNegative
from shoal.sim.simulation import Simulation

PPM_MAX = 500_000  # half speed: beyond it a clock is not slow but broken


class ClockDrift(Fault, frozen=True, kw_only=True, tag="clock_drift"):
    """Each node's time of day is off by up to offset_ms; its clocks run up to ppm fast or slow."""

    offset_ms: NotNegative = 0.0
    ppm: Annotated[float, Meta(ge=0, le=PPM_MAX)] = 0.0
    role: str = "node"

    def install(self, simulation: Simulation) -> None:
        if self.end_s is not None:
            simulation.at_s(self.end_s, lambda: self._mend(simulation))
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        rng = simulation.fault_random("clock_drift")
        for node in simulation.with_role(self.role):
            offset_ns = round(rng.uniform(-self.offset_ms, self.offset_ms) * MS_NS)
            ppm = rng.uniform(-self.ppm, self.ppm)
            node.set_clock(offset_ns, ppm)
        self.announce(simulation, f"up to {self.offset_ms} ms and {self.ppm} ppm")

    def _mend(self, simulation: Simulation) -> None:
        """Rates, and times of day, are right from now on."""
        for node in simulation.with_role(self.role):
            node.set_clock(0, 0.0)
        self.announce(simulation, "ends")
