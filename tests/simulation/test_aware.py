"""Overlays that know delays, in a whole network: as fast as the direct ways, and as hard to break
as random ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np
import pytest

from shoal.kernel.records import Rejected
from shoal.sim.checkers import MachineInvariants
from shoal.sim.host import SimNode
from shoal.sim.trace import Row
from shoal_lab.experiments.streams.network_view import check_overlay
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario
from tests.simulation.test_repair import Audience
from tests.support.learning import shortest_ms

NODES = 64
LEARN_S = 180.0
PUBLISHERS = 16
INTERVAL_S = 0.5  # between messages of one publisher
BEFORE_S, HEAL_S, QUIET_S = 5.0, 10.0, 30.0

Choose = Callable[[StreamsNetwork, int], list[SimNode]]


def learned(seed: int) -> StreamsNetwork:
    network = StreamsNetwork(
        Scenario(name="aware", network=NetworkSettings(nodes=NODES, policy="aware")), seed
    )
    network.join_all()
    network.simulation.run_until_s(LEARN_S)
    return network


def stretch(network: StreamsNetwork) -> float:
    """The mean delay over links that carry data, by that of the direct ways."""
    running, delays = network.running(), network.simulation.delays
    one_way_ns = [[delays.one_way_ns(a.index, b.index) for b in running] for a in running]
    direct = np.array(one_way_ns) / 1e6
    np.fill_diagonal(direct, 0)
    at = {node.id: number for number, node in enumerate(running)}
    links = [(at[node.id], at[peer]) for node in running for peer in network.active(node)]
    return float(shortest_ms((direct + direct.T) / 2, links).sum() / direct.sum())


def degrees(network: StreamsNetwork) -> set[int]:
    return {len(network.active(node)) for node in network.running()}


def test_messages_take_hardly_longer_than_the_direct_way(seed: int) -> None:
    refused: list[str] = []

    def note(rows: list[Row]) -> None:
        refused.extend(r.reason for _, _, r in rows if isinstance(r, Rejected))

    settings = NetworkSettings(nodes=NODES, policy="aware", wire=True)
    network = StreamsNetwork(Scenario(name="aware", network=settings), seed)
    network.simulation.trace.to(note)
    network.join_all()
    network.simulation.run_until_s(3)
    assert stretch(network) > 1.6, "random links, so far"
    network.simulation.run_until_s(LEARN_S)
    assert stretch(network) <= 1.15
    assert degrees(network) == {4}
    assert network.is_connected()
    check_overlay(network)
    MachineInvariants().quiet(network.simulation)
    assert not {"unasked-probe", "unasked-pong", "not-my-tracker"} & set(refused)


def third(network: StreamsNetwork, seed: int) -> list[SimNode]:
    return Random(seed).sample(network.nodes, round(0.3 * NODES))


def continent(network: StreamsNetwork, seed: int) -> list[SimNode]:
    """All regions of one part of the world, whose nodes are each other's neighbours mostly."""
    return [node for node in network.nodes if node.region.startswith("us-")]


@pytest.mark.parametrize("choose", [third, continent])
def test_many_crash_at_once_and_whoever_stays_misses_nothing(seed: int, choose: Choose) -> None:
    network = learned(seed)
    simulation = network.simulation
    audience = Audience()
    simulation.trace.to(audience)
    victims = choose(network, seed)
    stay = [node for node in network.nodes if node not in victims]
    publishers = Random(seed).sample(stay, PUBLISHERS)
    rounds = round((BEFORE_S + HEAL_S) / INTERVAL_S)
    for number in range(rounds * PUBLISHERS):
        when_s = LEARN_S + number * INTERVAL_S / PUBLISHERS
        publish = partial(network.publish, publishers[number % PUBLISHERS], b"x" * 100)
        simulation.at_s(when_s, publish)
    simulation.run_for(BEFORE_S)
    for node in victims:
        node.crash()
    simulation.run_for(HEAL_S)
    assert len(victims) >= 16
    assert network.is_connected()
    simulation.run_for(QUIET_S)
    assert degrees(network) == {4}
    assert network.is_connected()
    assert len(audience.published) == rounds * PUBLISHERS
    for node in stay:
        audience.check(node)
    simulation.run_for(60)
    assert stretch(network) <= 1.15, "and it is a good overlay again"
