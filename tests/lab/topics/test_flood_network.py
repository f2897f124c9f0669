"""The workload over Floodsub: what the baseline does, and what is counted of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest

from shoal.base.errors import ConfigError
from shoal.sim.faults import Bandwidth, ServiceTime
from shoal_lab.experiments.topics.experiment import TopicsExperiment, topic_events
from shoal_lab.experiments.topics.figures import TopicsFigures, topics_line, topics_rows
from shoal_lab.experiments.topics.systems import FloodsubNetwork
from shoal_lab.experiments.topics.workload_network import TopicsOptions
from shoal_lab.scenarios.experiment_kinds import RunRequest, find_kind
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings

NODES, EVENTS = 24, 100


def scenario(**options: Any) -> Scenario:
    made = TopicsOptions(system="floodsub", topics=6, **options)
    return Scenario(
        name="flood",
        protocol="topics",
        experiment="reddit",
        network=NetworkSettings(nodes=NODES),
        workload=WorkloadSettings(messages=EVENTS, size_bytes=79, settle_s=20, drain_s=20),
        faults=(ServiceTime(per_message_ms=1), Bandwidth(mbit_s=10)),
        options=made,
    )


def play(**options: Any) -> tuple[FloodsubNetwork, TopicsFigures]:
    experiment = TopicsExperiment(scenario(**options), 3, (), "")
    experiment.run()
    assert isinstance(experiment.network, FloodsubNetwork)
    return experiment.network, experiment.figures()


def test_everybody_connected_to_everybody_gets_everything() -> None:
    network, figures = play(neighbours=NODES - 1)
    assert figures.issued == figures.injected == EVENTS
    assert figures.delivered == figures.due == figures.expected == network.workload.deliveries
    assert figures.coverage_percent == figures.coverage_of_issued_percent == 100
    assert network.ledger.missing(network.running()) == []
    # Each reader sends each event to all others, but for its author and where it came from.
    assert figures.copies_per_delivery == pytest.approx(NODES - 2, rel=0.1)
    assert figures.rpc.total == sum(figures.rpc.kinds.values())
    assert figures.rpc.kinds["Flooded"] == sum(topic.rpcs for topic in figures.per_topic)
    assert figures.rpc.sent.mean == figures.rpc.total / NODES
    assert figures.to_100_ms is not None
    assert figures.to_99_ms is not None
    # The AWS table has ways from 0.1 to 200 ms.
    assert 50 < figures.to_99_ms.p50 <= figures.to_100_ms.p50 < 400
    assert figures.delivery_ms is not None
    assert figures.delivery_ms.p99 <= figures.to_100_ms.max == figures.delivery_ms.max
    assert figures.run_to_100_s is not None
    assert figures.network_mib == pytest.approx(figures.rpc.total * 120 / 2**20, rel=0.2)
    assert figures.dht is None
    assert figures.topic_state_bytes.mean > 0


def test_a_graph_of_few_neighbours_leaves_small_topics_in_pieces() -> None:
    network, figures = play(neighbours=4)
    degrees = [len(peers) for peers in network.neighbours]
    assert sum(degrees) == NODES * 4
    assert all(a in network.neighbours[b] for a in range(NODES) for b in network.neighbours[a])
    assert figures.delivered < figures.due
    assert figures.run_to_100_s is None
    popular, *others = figures.per_topic
    assert popular.delivered == popular.due
    assert any(topic.delivered < topic.due for topic in others)


def test_the_dead_are_not_waited_for() -> None:
    network, figures = play(neighbours=NODES - 1, kills=2)
    assert figures.running == NODES - 2
    assert figures.delivered == figures.due < figures.expected
    authors = {topic.author for topic in network.workload.topics}
    assert authors <= set(network.running()), "topics keep their authors"


def test_slow_links_take_half_a_second_more() -> None:
    _, plain = play(neighbours=12)
    _, slow = play(neighbours=12, slow=True)
    assert plain.to_100_ms is not None
    assert slow.to_100_ms is not None
    # The quickest of many ways: some messages are 300 ms early.
    assert 200 < slow.to_100_ms.p50 - plain.to_100_ms.p50 < 1200
    assert slow.coverage_percent == plain.coverage_percent


def test_its_table_says_what_became_of_each_event() -> None:
    network, figures = play(neighbours=4)
    table = topic_events("a-run", network.ledger, network.running())
    assert table.num_rows == EVENTS
    assert pc.sum(table["due"]).as_py() == figures.due
    assert pc.sum(table["delivered"]).as_py() == figures.delivered
    whole = table.filter(pc.equal(table["due"], table["delivered"]))
    assert pc.min(whole["all_tenths_ms"]).as_py() >= 0
    part = table.filter(pc.greater(table["due"], table["delivered"]))
    assert set(part["all_tenths_ms"].to_pylist()) == {-1}


def test_the_kind_runs_it_and_demands_nothing() -> None:
    kind = find_kind("topics", "reddit")
    request = RunRequest(scenario=scenario(neighbours=4), seed=1, check=True)
    outcomes = [kind.run(request) for _ in range(2)]
    assert outcomes[0].checks.safety == "passed"
    assert outcomes[0].checks.liveness.startswith("Floodsub repairs nothing")
    assert outcomes[0].trace_hash == outcomes[1].trace_hash
    figures = outcomes[0].figures
    assert isinstance(figures, TopicsFigures)
    assert msgspec.json.decode(msgspec.json.encode(figures), type=TopicsFigures) == figures
    assert "deliveries" in topics_line(figures)
    rows = dict(topics_rows(figures))
    assert rows["events"].startswith("100 of 100 injected")


def test_floodsub_has_no_order() -> None:
    with pytest.raises(ConfigError, match="Floodsub knows no order"):
        scenario(ordered=True)
