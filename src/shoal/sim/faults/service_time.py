"""Nodes that take their time."""

from __future__ import annotations

from shoal.base.units import ns_of_ms
from shoal.sim.faults.base import Fault, NotNegative
from shoal.sim.simulation import Simulation


class ServiceTime(Fault, frozen=True, kw_only=True, tag="service_time"):
    """Every message costs its receiver this long on its one core; others queue behind it."""

    per_message_ms: NotNegative
    role: str = "node"

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._set(simulation, ns_of_ms(self.per_message_ms)))
        if self.end_s is not None:
            simulation.at_s(self.end_s, lambda: self._set(simulation, 0))

    def _set(self, simulation: Simulation, service_ns: int) -> None:
        for node in simulation.with_role(self.role):
            node.service_ns = service_ns  # also for its next incarnation
            if node.host is not None:
                node.host.service_changed()
        self.announce(simulation, f"{service_ns} ns per message")
