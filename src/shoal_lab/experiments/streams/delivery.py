"""Messages over a stream: how long they take, how many come, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from shoal.base.units import ns_of_seconds
from shoal.protocols.streams.tracker.stream_record import overlay_of
from shoal.sim.checkers import Checker
from shoal.sim.delays import DelayModel, table_of
from shoal.sim.simulation import START_NS, Simulation
from shoal_lab.experiments.streams.figures import (
    StreamFigures,
    StreamResults,
    compare,
    stream_line,
    stream_rows,
)
from shoal_lab.experiments.streams.network_view import (
    M,
    StreamView,
    check_deliveries,
    check_overlay,
    unhealed,
)
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork, expected_events
from shoal_lab.experiments.streams.tables import Place, StreamRecords, Surroundings
from shoal_lab.scenarios.experiment_kinds import (
    JOINING,
    PUBLISHING,
    ExperimentKind,
    Outcome,
    RunRequest,
    Tables,
)
from shoal_lab.scenarios.scenario import Scenario
from shoal_lab.testbed.simulated import simulated

if TYPE_CHECKING:
    from shoal.protocols.streams.tracker.delay_estimate import Estimate

EVENTS_S = 50_000  # of the simulator, about

READ_EVERYWHERE = (
    JOINING
    | PUBLISHING
    | {"degree", "policy", "redundant_feeds", "trackers"}
    | {"publishers", "publisher_count", "prediction"}
)


class StreamsExperiment:
    """A stream network, its figures and what must hold of it."""

    def __init__(
        self, scenario: Scenario, seed: int, checkers: Sequence[Checker], replay: str
    ) -> None:
        self.network = StreamsNetwork(scenario, seed, checkers=checkers, replay=replay)
        self._results = StreamResults(node.id for node in self.network.nodes)
        self.simulation.trace.to_kinds(self._results)
        self._estimate: Estimate | None = None
        if scenario.prediction:
            self.simulation.at_s(scenario.publishing_s[0], self._ask_tracker)

    @property
    def simulation(self) -> Simulation:
        return self.network.simulation

    def expected_events(self) -> int:
        return expected_events(self.network.scenario)

    def run(self) -> None:
        self.network.run()

    def figures(self) -> StreamFigures:
        healed_s = self.network.scenario.healed_s
        healed_ns = healed_s if self.unhealed() else START_NS + ns_of_seconds(healed_s)
        return stream_figures(self.network, self._results, self._estimate, healed_ns)

    def _ask_tracker(self) -> None:
        from shoal.protocols.streams.tracker.delay_estimate import estimate_delays

        self._estimate = estimate_delays(*overlay_of(self.network.tracked()))

    def record(self) -> Callable[[str], Tables]:
        network, delays = self.network, self.simulation.delays
        places = [Place(node.id, node.region) for node in network.nodes]
        records = StreamRecords(places, self._results)
        self.simulation.trace.to_kinds(records)
        return lambda run: partial(records.tables, run, surroundings(network, delays))

    def unhealed(self) -> str:
        return unhealed(self.network)

    def check_liveness(self, figures: StreamFigures) -> None:
        young = self._results.young_links(self.simulation.scheduler.now_ns)
        check_overlay(self.network, young)
        check_deliveries(self.network, figures)


def stream_figures(
    network: StreamView[M], results: StreamResults, estimate: Estimate | None, healed_ns: float
) -> StreamFigures:
    """What came of a run that is at its end."""
    running = network.running()
    figures = results.figures(
        {node.id: network.started_ns[node.id] for node in running},
        {node.id: len(network.active(node)) for node in running},
        connected=network.is_connected(),
        healed_ns=healed_ns,
    )
    if estimate is None:
        return figures
    prediction = compare(estimate, results.publisher_delays_ms())
    return msgspec.structs.replace(figures, prediction=prediction)


def surroundings(network: StreamView[M], delays: DelayModel) -> Surroundings:
    """What a stream network knows at its end, and its trace does not tell."""
    running = network.running()
    index = {node.id: node.index for node in network.nodes}
    number = {node.id: number for number, node in enumerate(network.nodes)}
    return Surroundings(
        started_ns={node.id: network.started_ns[node.id] for node in running},
        edges=[
            (
                network.stream,
                number[node.id],
                number[peer],
                delays.one_way_ns(node.index, index[peer]),
            )
            for node in running
            for peer in network.active(node)
        ],
        delays=table_of(delays, [node.index for node in network.nodes]),
    )


def _cost(scenario: Scenario) -> float:
    if scenario.on == "simulator":
        return expected_events(scenario)
    # Real time, in events that the simulator would handle meanwhile.
    return scenario.end_s * EVENTS_S


def _over_sockets(request: RunRequest) -> Outcome:
    # Here, since nobody else in the lab needs sockets and what makes links of them.
    from shoal_lab.experiments.streams.sockets import run_over_sockets

    return run_over_sockets(request)


DELIVERY = ExperimentKind(
    name="streams/delivery",
    run=simulated(StreamsExperiment),
    reads=READ_EVERYWHERE | {"liars", "lie", "wire", "faults"},
    roles=("node", "tracker"),
    over_sockets=_over_sockets,
    reads_over_sockets=READ_EVERYWHERE,
    figures=StreamFigures,
    rows=stream_rows,
    line=stream_line,
    cost=_cost,
)
