"""A search network begins by itself, once, whatever its bootstrap nodes do to each other."""

from __future__ import annotations

from random import Random

import pytest

from shoal.sim.faults import Partition
from tests.support.founding import FoundedNetwork, Naming

SEEDS = 4
SOON_S = 45.0  # 10 s of waiting for each of two below, a walk, and beats
MERGED_S = 300.0  # a look every 30 s, whose answer may be lost; links that time out


def knows_its_size(network: FoundedNetwork) -> bool:
    return all(abs(size / len(network.nodes) - 1) < 0.05 for size in network.sizes())


@pytest.mark.parametrize("naming", ["one list", "each other", "in a ring"])
@pytest.mark.parametrize("bootstraps", [2, 3])
def test_bootstrap_nodes_that_name_each_other_begin_one_network(
    seed: int, bootstraps: int, naming: Naming
) -> None:
    for number in range(SEEDS):
        network = FoundedNetwork(seed + number, bootstraps, 3, naming)
        for node in network.nodes:
            network.start_at(node, Random(seed + number).uniform(0, 1))
        network.simulation.run_for(1)
        assert network.until_together(SOON_S) <= SOON_S, f"seed {seed + number}"
        network.simulation.run_for(180)
        assert network.together()
        assert knows_its_size(network)
        assert network.look().half_open == []


def test_the_lowest_id_begins_it_and_the_others_enter_there(seed: int) -> None:
    network = FoundedNetwork(seed, 4, 0, "one list")
    began: list[int] = []
    for index, node in enumerate(network.nodes):
        node.start()

        def founded(index: int = index) -> None:
            began.append(index)
            parts = network.machine(network.nodes[index]).parts
            parts.measurement.found(parts.circle.degree)

        network.circle(node).founded = founded
    assert network.until_together(SOON_S) <= SOON_S
    lowest = min(range(4), key=lambda index: network.nodes[index].id)
    assert began == [lowest]


def test_a_node_that_others_do_not_enter_through_never_begins_one(seed: int) -> None:
    """It would find nothing, and be sure of it."""
    network = FoundedNetwork(seed, 2, 2, "one list")
    for node in network.nodes[2:]:
        network.start_at(node, 0)
    network.simulation.run_for(600)
    assert not any(network.machine(node).joined for node in network.running())
    network.start(network.nodes[1])
    assert network.until_together(SOON_S) <= SOON_S


def test_networks_that_were_begun_apart_grow_together(seed: int) -> None:
    """Each half has a bootstrap node, and had never heard of the other."""
    for number in range(SEEDS):
        network = FoundedNetwork(seed + number, 4, 6, "one list")
        cut = Partition(start_s=0, end_s=400, fraction=0.5)
        cut.install(network.simulation)
        for node in network.nodes:
            network.start_at(node, 1 + Random(seed + number).uniform(0, 60))
        network.simulation.run_for(400)
        assert network.look().components > 1
        assert network.until_together(MERGED_S) <= MERGED_S, f"seed {seed + number}"
        network.simulation.run_for(300)
        assert network.together(), "and they stay together"
        assert knows_its_size(network)


def test_a_bootstrap_node_that_comes_back_enters_the_network_that_is_there(seed: int) -> None:
    network = FoundedNetwork(seed, 2, 4, "one list")
    for node in network.nodes:
        network.start_at(node, 0)
    network.simulation.run_for(1)
    assert network.until_together(SOON_S) <= SOON_S
    for victim in network.nodes[:2]:
        network.crash(victim)
        network.simulation.run_for(60)
        network.start(victim)
        assert network.until_together(MERGED_S) <= MERGED_S
        network.simulation.run_for(180)
        assert knows_its_size(network)


def test_who_lost_the_network_and_is_alone_knows_it(seed: int) -> None:
    """It has a place again, on a circle of its own, where it finds nothing but what it has."""
    network = FoundedNetwork(seed, 2, 1, "one list")
    for node in network.nodes:
        network.start(node)
    assert network.until_together(SOON_S) <= SOON_S
    last = network.machine(network.nodes[2])
    assert not last.stranded
    for node in network.nodes[:2]:
        network.crash(node)
    network.simulation.run_for(90)
    assert (last.joined, last.stranded) == (True, True)
    network.start(network.nodes[0])
    assert network.until_together(MERGED_S) <= MERGED_S
    assert not last.stranded
    assert not network.machine(network.nodes[0]).stranded, "others enter through it"
