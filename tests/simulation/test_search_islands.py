"""Parts of a search network that lost each other: after a crash of most, and after a cut."""

from __future__ import annotations

from shoal.base.units import S_NS
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import EdgeName
from shoal.sim.faults import Partition
from shoal_lab.experiments.search.network import SearchNetwork
from shoal_lab.experiments.search.survey import Survey, survey

JOIN_S = 0.1
STEP_S = 5.0
DETECT_S = 15
TOGETHER_S_MAX = 420.0  # docs/search.md says 300 s of larger networks, in which more are looking


CALM = SearchConfig(quick_nodes=0)  # they ping as seldom as large networks do


def grown(seed: int, nodes: int) -> SearchNetwork:
    network = SearchNetwork(seed, nodes, CALM)
    network.join_all(JOIN_S)
    network.simulation.run_for(nodes * JOIN_S + 60)
    assert survey(network.circles()).whole
    return network


def run_until_together(network: SearchNetwork, within_s: float) -> Survey:
    end_s = network.simulation.time_s + within_s
    while True:
        seen = survey(network.circles())
        if seen.components == 1 or network.simulation.time_s >= end_s:
            return seen
        network.simulation.run_for(STEP_S)
        for node in network.running():
            network.machine(node).check_invariants()


def edges_of(network: SearchNetwork) -> list[list[EdgeName]]:
    return [[edge.name for edge in network.circle(node).edges] for node in network.running()]


def test_whoever_a_crash_of_nine_tenths_leaves_finds_together(seed: int) -> None:
    network = grown(seed, 100)
    for node in network.simulation.random("victims").sample(network.nodes, 90):
        network.crash(node, DETECT_S * S_NS)
    network.simulation.run_for(DETECT_S + STEP_S)
    assert survey(network.circles()).components > 1
    seen = run_until_together(network, TOGETHER_S_MAX)
    assert (seen.nodes, seen.components) == (10, 1)
    network.simulation.run_for(300)
    seen = survey(network.circles())
    assert (seen.components, seen.half_open) == (1, []), "and they stay together"
    assert min(seen.degrees) >= 5


def test_two_halves_grow_together_when_they_can(seed: int) -> None:
    network = grown(seed, 24)
    begin_s = network.simulation.time_s
    cut = Partition(start_s=begin_s + 1, end_s=begin_s + 400, fraction=0.5)
    cut.install(network.simulation)
    network.simulation.run_for(400)
    seen = survey(network.circles())
    assert seen.components == 2, "each half is in one piece"
    seen = run_until_together(network, TOGETHER_S_MAX)
    assert seen.components == 1
    network.simulation.run_for(300)
    seen = survey(network.circles())
    assert (seen.components, seen.half_open) == (1, [])
    assert min(seen.degrees) >= 5
    for node in network.running():
        known = network.machine(node).parts.measurement.known
        assert known is not None
        assert abs(known.nodes / 24 - 1) < 0.05, "and know how many they are"


def test_where_nobody_is_lost_nobody_looks_for_others(seed: int) -> None:
    """Who moves without need takes bubbles off their ways."""
    network = grown(seed, 24)
    for node in network.nodes[20:]:
        network.leave(node)
    network.simulation.run_for(60)
    before = edges_of(network)
    network.simulation.run_for(600)
    assert edges_of(network) == before
