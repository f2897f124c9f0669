"""Nodes that come and go all the time."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from msgspec import Meta

from shoal.base.units import ns_of_seconds
from shoal.sim.faults.base import Fault, NotNegative, Positive
from shoal.sim.simulation import SimNode, Simulation

MINUTE_S = 60.0
PER_MINUTE_MAX = 10.0  # each node ten times: none of them would ever have settled


class Churn(Fault, frozen=True, kw_only=True, tag="churn"):
    """From start_s on nodes of a role die, one at a time and at random moments, and each starts
    again after a while, with its disk. At end_s all who are away then start at once.

    `per_minute` is the part of all nodes that dies in a minute; the last one that runs does not.
    How long a node is away is exponential around away_s; detect_s is that of a crash.
    """

    per_minute: Annotated[float, Meta(gt=0, le=PER_MINUTE_MAX)]
    away_s: Positive = 30.0
    role: str = "node"
    detect_s: NotNegative = 0.0

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: _Churning(self, simulation).begin())


class _Churning:
    """Who is away, and what comes next."""

    def __init__(self, fault: Churn, simulation: Simulation) -> None:
        self._fault = fault
        self._simulation = simulation
        self._rng = simulation.fault_random("churn")
        self._nodes = simulation.with_role(fault.role)
        self._away: dict[SimNode, int] = {}  # and its incarnation that died
        self._deaths = 0

    def begin(self) -> None:
        self._fault.announce(self._simulation, f"{self._fault.per_minute:g} of all a minute")
        if self._fault.end_s is not None:
            self._simulation.at_s(self._fault.end_s, self._end)
        if self._nodes:
            self._plan_next()

    def _plan_next(self) -> None:
        per_s = self._fault.per_minute * len(self._nodes) / MINUTE_S
        next_s = self._simulation.time_s + self._rng.expovariate(per_s)
        if self._fault.end_s is None or next_s < self._fault.end_s:
            self._simulation.at_s(next_s, self._die)

    def _die(self) -> None:
        self._plan_next()
        running = [node for node in self._nodes if node.host is not None]
        if len(running) < 2:
            return
        node = self._rng.choice(running)
        node.crash(ns_of_seconds(self._fault.detect_s))
        self._deaths += 1
        self._away[node] = node.incarnation
        back_s = self._simulation.time_s + self._rng.expovariate(1 / self._fault.away_s)
        self._simulation.at_s(back_s, partial(self._return, node, node.incarnation))

    def _return(self, node: SimNode, died: int) -> None:
        # Another fault, or the end of this one, may have started it meanwhile.
        if self._away.get(node) == died:
            del self._away[node]
            if node.host is None:
                node.start()

    def _end(self) -> None:
        for node, died in list(self._away.items()):
            self._return(node, died)
        self._fault.announce(self._simulation, f"{self._deaths} deaths")
