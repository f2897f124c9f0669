"""Durable topics under a workload like the published one, or under churn; and the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from shoal.base.errors import InvariantViolated
from shoal.kernel.records import EventDelivered
from shoal.sim.checkers import Checker
from shoal.sim.faults import Bandwidth
from shoal.sim.simulation import Simulation
from shoal.sim.trace import Kinds
from shoal_lab.experiments.streams.tables import KeptRecords
from shoal_lab.experiments.topics.figures import (
    MOST,
    NEVER_NS,
    TopicsFigures,
    accept_times_ns,
    event_times_ns,
    gather_figures,
    topics_line,
    topics_rows,
)
from shoal_lab.experiments.topics.ledger import Ints, Ledger
from shoal_lab.experiments.topics.workload import events_per_topic, readers_per_topic
from shoal_lab.experiments.topics.workload_network import (
    TopicsOptions,
    WorkloadNetwork,
    options_of,
    pin_workload,
)
from shoal_lab.runs.run_tables import TENTH_NS, run_table_schema
from shoal_lab.scenarios.experiment_kinds import JOINING, PUBLISHING, ExperimentKind, Tables
from shoal_lab.scenarios.scenario import Scenario
from shoal_lab.testbed.simulated import simulated

SAFETY_NODES_MAX = 10  # above it, checks after every step take most of the time
SHOWN = 5  # of what is wrong: a run that fails at all fails often

# What a run costs, in events of the simulator, for the estimate of the time left; measured with 100
# nodes, service times and narrow uplinks.
DELIVERY_EVENTS = 6.0
STORED_EVENTS = 300.0
NODE_EVENTS_S = 11.0
FLOODED_EVENTS = 2.7  # per neighbour


class TopicsExperiment:
    """A network, its figures and what must hold of it."""

    def __init__(
        self, scenario: Scenario, seed: int, checkers: Sequence[Checker], replay: str
    ) -> None:
        make = _system(scenario)
        self.network = make(scenario, seed, checkers=checkers, replay=replay)

    @property
    def simulation(self) -> Simulation:
        return self.network.simulation

    def expected_events(self) -> int:
        return round(expected_events(self.network.scenario))

    def run(self) -> None:
        self.network.run()

    def figures(self) -> TopicsFigures:
        return gather_figures(self.network)

    def record(self) -> Callable[[str], Tables]:
        records = TopicRecords()
        self.simulation.trace.to_kinds(records)
        network = self.network
        return lambda run: partial(records.tables, run, network.ledger, network.running())

    def unhealed(self) -> str:
        if options_of(self.network.scenario).system == "floodsub":
            return "Floodsub repairs nothing: what it misses is what is measured"
        # A narrow uplink loses nothing that has to stay lost.
        scenario = self.network.scenario
        faults = tuple(fault for fault in scenario.faults if not isinstance(fault, Bandwidth))
        others = msgspec.structs.replace(scenario, faults=faults)
        return "a fault lasts to the end" if math.isinf(others.healed_s) else ""

    def check_liveness(self, figures: TopicsFigures) -> None:
        ledger, running = self.network.ledger, self.network.running()
        missing, wrong = ledger.missing(running), ledger.check_order(running)
        if missing:
            told = ", ".join(f"event {e} at node {r}" for r, e in missing[:SHOWN])
            raise InvariantViolated(
                f"{len(missing)} of {figures.due} deliveries did not come within the drain of "
                f"{self.network.scenario.workload.drain_s:g} s: {told}"
            )
        if wrong:
            told = "; ".join(wrong[:SHOWN])
            raise InvariantViolated(f"{len(wrong)} times out of order or told twice: {told}")
        if ledger.issued_ns and not figures.injected:
            raise InvariantViolated(
                f"none of {figures.issued} events was accepted; refused: {figures.refused}"
            )


def expected_events(scenario: Scenario) -> float:
    """About how many events of the simulator a whole scenario takes."""
    nodes, options = scenario.network.nodes, options_of(scenario)
    readers = readers_per_topic(nodes, options.topics)
    events = events_per_topic(options.topics, scenario.messages)
    deliveries = sum(a * b for a, b in zip(readers, events, strict=True))
    if options.system == "floodsub":
        return deliveries * min(options.neighbours, nodes - 1) * FLOODED_EVENTS
    stored = scenario.messages * STORED_EVENTS
    return deliveries * DELIVERY_EVENTS + stored + nodes * scenario.end_s * NODE_EVENTS_S


def _system(scenario: Scenario) -> Callable[..., WorkloadNetwork]:
    # Here, since either system is of no use to the other.
    if options_of(scenario).system == "floodsub":
        from shoal_lab.experiments.topics.systems import FloodsubNetwork

        return FloodsubNetwork
    from shoal_lab.experiments.topics.systems import TopicsNetwork

    return TopicsNetwork


REDDIT = ExperimentKind(
    name="topics/reddit",
    run=simulated(TopicsExperiment, SAFETY_NODES_MAX),
    figures=TopicsFigures,
    rows=topics_rows,
    line=topics_line,
    cost=expected_events,
    reads=JOINING | PUBLISHING | {"wire", "faults"},
    options=TopicsOptions,
    pin_options=pin_workload,
)

# The tables of a run of durable topics.


class TopicRecords:
    """A trace sink. Deliveries are the ledger's: record by record they would be 150 MB."""

    def __init__(self) -> None:
        self._kept = KeptRecords()

    def __call__(self, kinds: Kinds) -> None:
        """Take a batch of the trace."""
        for kind in [kind for kind in kinds if kind is not EventDelivered]:
            for row in kinds[kind]:
                self._kept.add(row)

    def tables(self, run: str, ledger: Ledger, running: list[int]) -> dict[str, pa.Table]:
        """`topic_events`, and records of all other kinds."""
        return {"topic_events": topic_events(run, ledger, running), **self._kept.tables(run)}


def topic_events(run: str, ledger: Ledger, running: list[int]) -> pa.Table:
    """One row for each event that was issued."""
    due, arrivals = ledger.due(running), ledger.arrivals(running)
    issued = np.array(sorted(ledger.issued_ns), np.int64)
    plans = [ledger.workload.events[event] for event in issued]
    columns = {
        "run": [run] * len(issued),
        "event": issued,
        "topic": [plan.topic for plan in plans],
        "time_ns": [ledger.issued_ns[event] for event in issued.tolist()],
        "size_bytes": [plan.size_bytes for plan in plans],
        "accepted_tenths_ms": _tenths(accept_times_ns(ledger))[issued],
        "due": due[issued],
        "delivered": np.bincount(arrivals.events, minlength=len(due))[issued],
        "most_tenths_ms": _tenths(event_times_ns(ledger, due, arrivals, MOST))[issued],
        "all_tenths_ms": _tenths(event_times_ns(ledger, due, arrivals, 1.0))[issued],
    }
    schema = run_table_schema("topic_events")
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _tenths(times_ns: Ints) -> Ints:
    return np.where(times_ns == NEVER_NS, -1, (times_ns + TENTH_NS // 2) // TENTH_NS)
