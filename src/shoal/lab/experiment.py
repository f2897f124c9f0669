"""What the runner asks of an experiment, and the experiment of each protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from shoal.base.units import ns_of_seconds
from shoal.lab.liveness import check_deliveries, check_overlay, unhealed
from shoal.lab.results import StreamFigures, StreamResults
from shoal.lab.scenario import Scenario
from shoal.lab.streams import StreamsNetwork
from shoal.sim.checkers import Checker, DeliveredOnce, MachineInvariants
from shoal.sim.simulation import START_NS, Simulation


class Experiment(Protocol):
    """A scenario, built and ready to run."""

    @property
    def simulation(self) -> Simulation:
        """The world it runs in."""
        ...

    def expected_events(self) -> int:
        """About how many events it takes."""
        ...

    def run(self) -> None:
        """Play the scenario to its end."""
        ...

    def figures(self) -> msgspec.Struct:
        """What it gave."""
        ...

    def unhealed(self) -> str:
        """Why liveness cannot be asked for; empty if it can."""
        ...

    def check_liveness(self, figures: Any) -> None:
        """Raise InvariantViolated if something that must be true by now is not."""
        ...


MakeExperiment = Callable[[Scenario, int, Sequence[Checker], str], Experiment]


class StreamsExperiment:
    """A stream network, its figures and what must hold of it."""

    def __init__(
        self, scenario: Scenario, seed: int, checkers: Sequence[Checker], replay: str
    ) -> None:
        self.network = StreamsNetwork(scenario, seed, checkers=checkers, replay=replay)
        self._results = StreamResults(node.id for node in self.network.nodes)
        self.simulation.trace.to(self._results)

    @property
    def simulation(self) -> Simulation:
        return self.network.simulation

    def expected_events(self) -> int:
        return self.network.expected_events()

    def run(self) -> None:
        self.network.run()

    def figures(self) -> StreamFigures:
        network = self.network
        running = network.running()
        healed_s = network.scenario.healed_s
        return self._results.figures(
            {node.id: network.started_ns[node.id] for node in running},
            {node.id: len(network.active(node)) for node in running},
            connected=network.is_connected(),
            healed_ns=healed_s if self.unhealed() else START_NS + ns_of_seconds(healed_s),
        )

    def unhealed(self) -> str:
        return unhealed(self.network)

    def check_liveness(self, figures: StreamFigures) -> None:
        check_overlay(self.network)
        check_deliveries(self.network, figures)


EXPERIMENTS: dict[str, MakeExperiment] = {"streams": StreamsExperiment}


def safety_checkers() -> list[Checker]:
    """What is checked after every step of every machine."""
    return [MachineInvariants(), DeliveredOnce()]
