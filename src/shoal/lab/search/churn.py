"""Nodes that come and go: each stays for a while, leaves or dies, and comes back later."""

from __future__ import annotations

from functools import partial

from shoal.base.units import ns_of_seconds
from shoal.lab.search.grown import GrownNetwork
from shoal.lab.search.options import ChurnedOptions
from shoal.sim.simulation import SimNode


class Churn:
    """Sessions and absences are exponential around their means. A node that returns has a new
    incarnation, and with it none of what it kept."""

    def __init__(self, network: GrownNetwork, options: ChurnedOptions) -> None:
        self._network = network
        self._options = options
        self._rng = network.simulation.random("churn")
        self._going = False

    def begin(self) -> None:
        """From now on all sessions end some time."""
        self._going = self._options.session_s > 0
        for node in self._network.running():
            self._plan_end(node)

    def stop(self) -> None:
        """Whoever runs stays; whoever is away comes back."""
        self._going = False

    def _plan_end(self, node: SimNode) -> None:
        if self._going:
            stays_s = self._rng.expovariate(1 / self._options.session_s)
            self._after(stays_s, partial(self._end, node, node.incarnation))

    def _end(self, node: SimNode, incarnation: int) -> None:
        if not self._going or node.host is None or node.incarnation != incarnation:
            return
        if self._rng.random() < self._options.crashes:
            self._network.crash(node, ns_of_seconds(self._options.detect_s))
        else:
            self._network.leave(node)
        away_s = self._rng.expovariate(1 / self._options.away_s)
        self._after(away_s, partial(self._return, node))

    def _return(self, node: SimNode) -> None:
        if node.host is not None:
            # It has not left yet: a leave takes a minute at most.
            self._after(1.0, partial(self._return, node))
            return
        self._network.start(node)
        self._plan_end(node)

    def _after(self, wait_s: float, action: partial[None]) -> None:
        simulation = self._network.simulation
        simulation.at_s(simulation.time_s + wait_s, action)
