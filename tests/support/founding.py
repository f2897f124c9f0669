"""Search networks that have to begin by themselves: bootstrap nodes that name each other, start in
any order, are cut off from each other, and crash; and ordinary nodes that enter through them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from shoal.base.ids import Contact
from shoal.kernel.machine import Machine
from shoal.protocols.search.machine import SearchNode
from shoal.sim import SimNode
from shoal_lab.experiments.search.network import SearchNetwork
from shoal_lab.experiments.search.survey import Survey, survey

Naming = Literal["one list", "each other", "in a ring"]
"""Of bootstrap nodes: one shared file; files that name all but their own node; or one other."""

STEP_S = 5.0


class FoundedNetwork(SearchNetwork):
    """The first nodes are bootstrap nodes, all others are given all of these."""

    def __init__(self, seed: int, bootstraps: int, others: int, naming: Naming) -> None:
        self.bootstraps = bootstraps
        self.naming = naming
        super().__init__(seed, bootstraps + others)

    def make_machines(self, number: int, node: SimNode) -> Sequence[Machine]:
        listed = self.contacts[: self.bootstraps]
        founders: Sequence[Contact] = ()
        if number < self.bootstraps:
            match self.naming:
                case "one list":
                    founders = listed
                case "in a ring":
                    listed = [listed[(number + 1) % self.bootstraps]]
        return [
            SearchNode(
                self.keys[number],
                [one for one in listed if one.node != self.keys[number].address],
                self.simulation.random("search", number, node.incarnation),
                self.config,
                self.contacts[number].addresses,
                founders=[one.node for one in founders],
            )
        ]

    def start_at(self, node: SimNode, when_s: float) -> None:
        self.simulation.at_s(when_s, partial(self.start, node))

    def together(self) -> bool:
        """Whether all nodes that run have a place, in one part."""
        machines = [self.machine(node) for node in self.running()]
        return bool(machines) and self.look().components == 1 and all(m.joined for m in machines)

    def look(self) -> Survey:
        return survey(self.circles())

    def until_together(self, within_s: float) -> float:
        """How long it took; more than that, if it was not."""
        begin_s = self.simulation.time_s
        while self.simulation.time_s - begin_s <= within_s and not self.together():
            self.simulation.run_for(STEP_S)
            for node in self.running():
                self.machine(node).check_invariants()
        return self.simulation.time_s - begin_s

    def sizes(self) -> list[float]:
        """How large each node takes the network to be."""
        known = [self.machine(node).parts.measurement.known for node in self.running()]
        return [one.nodes for one in known if one is not None]
