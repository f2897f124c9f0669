"""Nodes that die, and come back."""

from __future__ import annotations

from shoal.base.units import ns_of_seconds
from shoal.sim.faults.base import Fault, NotNegative, Probability, pick
from shoal.sim.simulation import SimNode, Simulation


class Crash(Fault, frozen=True, kw_only=True, tag="crash"):
    """At start_s a random fraction of the running nodes of a role dies at once, at least one of
    them; at end_s, if given, they start again, with their disks or without.

    detect_s is how long peers take to notice: 0 for a dead process, whose kernel closes its
    sockets; seconds for a dead machine.
    """

    fraction: Probability
    role: str = "node"
    detect_s: NotNegative = 0.0
    lose_disk: bool = False

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        running = [n for n in simulation.with_role(self.role) if n.host is not None]
        victims = pick(running, self.fraction, simulation.fault_random("crash"))
        for node in victims:
            node.crash(ns_of_seconds(self.detect_s), lose_disk=self.lose_disk)
        self.announce(simulation, f"{len(victims)} nodes")
        if self.end_s is not None:
            simulation.at_s(self.end_s, lambda: self._restart(simulation, victims))

    def _restart(self, simulation: Simulation, victims: list[SimNode]) -> None:
        for node in victims:
            if node.host is None:
                node.start()
        self.announce(simulation, f"{len(victims)} nodes start again")
