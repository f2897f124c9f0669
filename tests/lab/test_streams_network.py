"""The simulated network, driven by hand, and what is said when it is not as it must be."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import InvariantViolated, UsageError
from shoal.kernel.records import Delivered, Published
from shoal.protocols.streams.commands import LeaveStream, MessageArrived, StreamReady
from shoal.sim.trace import Row
from shoal_lab.experiments.streams.delivery import StreamsExperiment
from shoal_lab.experiments.streams.network_view import check_overlay
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings


def scenario(nodes: int = 8, **workload: Any) -> Scenario:
    return Scenario(
        name="test",
        network=NetworkSettings(nodes=nodes, delays=20.0),
        workload=WorkloadSettings(**{"messages": 5, "settle_s": 15.0, "drain_s": 3.0} | workload),
    )


def joined(nodes: int = 8, seed: int = 3) -> StreamsNetwork:
    network = StreamsNetwork(scenario(nodes), seed)
    network.join_all()
    network.simulation.run_for(20)
    return network


def test_a_message_reaches_every_application() -> None:
    network = joined()
    got: list[tuple[int, bytes]] = []
    for node in network.nodes:

        def listen(event: Any, index: int = node.index) -> None:
            if isinstance(event, MessageArrived):
                got.append((index, event.message.content))

        node.listeners.append(listen)
    network.publish(network.nodes[2], b"hello")
    network.simulation.run_for(2)
    assert sorted(got) == [(index, b"hello") for index in range(8)]
    check_overlay(network)


def test_nodes_fill_the_regions_and_the_tracker_has_a_place_too() -> None:
    network = StreamsNetwork(Scenario(name="test", network=NetworkSettings(nodes=20)))
    assert len({node.region for node in network.nodes[:16]}) == 16
    assert network.nodes[16].region == network.nodes[0].region
    assert network.tracker.index == 20
    assert network.tracker.role == "tracker"


def test_keys_depend_on_the_seed_and_not_on_the_number_of_nodes() -> None:
    few, many, other = (
        [node.id for node in StreamsNetwork(scenario(n), seed).nodes]
        for n, seed in ((4, 1), (8, 1), (4, 2))
    )
    assert few == many[:4]
    assert not {*few} & {*other}


def test_a_node_that_restarts_joins_again() -> None:
    network = joined()
    node = network.nodes[5]
    events: list[Any] = []
    node.listeners.append(events.append)
    began_ns = network.started_ns[node.id]
    node.crash()
    assert node not in network.running()
    network.simulation.run_for(10)
    assert node.id not in network.policy().nodes
    node.start()
    network.simulation.run_for(20)
    assert StreamReady(network.stream) in events
    assert len(network.active(node)) == 4
    assert network.started_ns[node.id] > began_ns
    check_overlay(network)


def test_a_node_that_dies_as_it_starts_does_not_join() -> None:
    network = joined()
    node = network.nodes[5]
    node.crash()
    node.start()
    node.crash()
    network.simulation.run_for(1)
    assert node.host is None


def test_before_the_first_join_there_is_no_topology() -> None:
    network = StreamsNetwork(scenario())
    with pytest.raises(UsageError, match="no tracker has members"):
        network.policy()
    network.tracker.start()
    with pytest.raises(UsageError, match="join_all comes first"):
        network.policy()
    assert network.is_connected(), "nobody is apart from nobody"


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 6, 9])
def test_networks_of_any_size_come_to_rest(nodes: int) -> None:
    experiment = StreamsExperiment(scenario(nodes), 1, (), "")
    experiment.run()
    figures = experiment.figures()
    experiment.check_liveness(figures)
    assert figures.published == 5
    assert figures.delivered == figures.expected == 5 * (nodes - 1)
    assert figures.degree.max == min(4, nodes - 1)


def test_messages_come_from_each_node_in_turn_if_asked() -> None:
    network = StreamsNetwork(scenario(4, messages=9, publishers="in-turn"), 1)
    publishers: list[int] = []

    def sink(rows: list[Row]) -> None:
        ids = [node for _, node, record in rows if type(record) is Published]
        publishers.extend(network.simulation.nodes[node].index for node in ids)

    network.simulation.trace.to(sink)
    network.run()
    assert publishers == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_another_publishes_for_a_node_that_is_dead() -> None:
    experiment = StreamsExperiment(scenario(3, messages=6, publishers="in-turn"), 1, (), "")
    network = experiment.network
    network.simulation.at_s(5, network.nodes[1].crash)
    experiment.run()
    assert experiment.figures().published == 6


def test_if_all_are_dead_nobody_publishes() -> None:
    experiment = StreamsExperiment(scenario(2), 1, (), "")
    for node in experiment.network.nodes:
        experiment.simulation.at_s(5, node.crash)
    experiment.run()
    figures = experiment.figures()
    experiment.check_liveness(figures)
    assert (figures.published, figures.degree.max) == (0, 0)


def test_true_delays_and_those_of_the_hop_header_agree() -> None:
    experiment = StreamsExperiment(scenario(16), 1, (), "")
    ages_us: list[int] = []
    experiment.simulation.trace.to(
        lambda rows: ages_us.extend(
            record.age_us for _, _, record in rows if type(record) is Delivered and record.hops
        )
    )
    experiment.run()
    delay = experiment.figures().delay_ms
    assert delay is not None
    # Each hop of the header drops up to a microsecond twice.
    assert sum(ages_us) / len(ages_us) / 1000 == pytest.approx(delay.mean, abs=0.02)


# Liveness finds what is planted


def test_a_member_that_does_not_run_is_found() -> None:
    network = joined()
    network.nodes[3].crash()
    with pytest.raises(InvariantViolated, match="1 members that do not run"):
        check_overlay(network)


def test_a_node_that_the_tracker_does_not_know_is_found() -> None:
    network = joined()
    network.policy().leave(network.nodes[3].id)
    with pytest.raises(InvariantViolated, match="lacks 1 that do"):
        check_overlay(network)


def test_a_link_that_only_the_tracker_knows_is_found() -> None:
    network = joined()
    node = network.nodes[3]
    policy = network.policy()
    policy.link_failed(node.id, policy.neighbours(node.id)[0])
    with pytest.raises(InvariantViolated, match="its tracker wants"):
        check_overlay(network)


def test_a_link_that_is_being_made_or_cut_may_be_known_to_the_tracker_alone() -> None:
    network = joined()
    node = network.nodes[3]
    policy = network.policy()
    changes = policy.link_failed(node.id, policy.neighbours(node.id)[0])
    young = {(pair.a, pair.b) for pair in (*changes.added, *changes.removed)}
    check_overlay(network, young)
    old = young - {(changes.added[0].a, changes.added[0].b)}
    with pytest.raises(InvariantViolated, match="its tracker wants"):
        check_overlay(network, old)


def test_a_network_in_two_parts_is_found() -> None:
    network = joined(nodes=8)
    network.tracker.crash()  # else it would repair, and complain first
    network.nodes[0].command(0, LeaveStream(network.stream))
    network.simulation.run_for(1)
    assert not network.is_connected()
    with pytest.raises(InvariantViolated, match="not connected"):
        check_overlay(network)


def test_free_slots_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network = joined(nodes=8)
    monkeypatch.setattr(type(network.policy()), "degree", 6)
    with pytest.raises(InvariantViolated, match="16 free slots in the overlay, degree 6"):
        check_overlay(network)
