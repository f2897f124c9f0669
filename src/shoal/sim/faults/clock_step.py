"""System clocks that are set."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.base.units import S_NS
from shoal.sim.faults.base import LARGE, Fault, Probability, pick
from shoal.sim.simulation import Simulation


class ClockStep(Fault, frozen=True, kw_only=True, tag="clock_step"):
    """The time of day of some nodes is set by step_s, ahead or back, and right again at the end.
    What measures durations is not touched."""

    step_s: Annotated[float, Meta(ge=-LARGE, le=LARGE)]
    fraction: Probability = 1.0
    role: str = "node"

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        step_ns = round(self.step_s * S_NS)
        rng = simulation.fault_random("clock_step")
        nodes = pick(simulation.with_role(self.role), self.fraction, rng)
        for node in nodes:
            node.step_wall(step_ns)
        self.announce(simulation, f"{len(nodes)} nodes by {self.step_s} s")

        def end() -> None:
            for node in nodes:
                node.step_wall(-step_ns)
            self.announce(simulation, "ends")

        if self.end_s is not None:
            simulation.at_s(self.end_s, end)
