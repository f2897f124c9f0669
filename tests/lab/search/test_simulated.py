"""Simulated search networks, as the lab builds and looks at them; all of them tiny."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.base.units import S_NS
from shoal.protocols.search.messages import Totals
from shoal.sim.simulation import SimulationFailure
from shoal_lab.experiments.search.measurement import Rounds
from shoal_lab.experiments.search.network import GrownNetwork, is_near
from shoal_lab.experiments.search.options import ChurnOptions
from shoal_lab.experiments.search.probes import Looking, Probes, hop_time_s
from shoal_lab.experiments.search.survey import Moments, count_found, shape_of
from shoal_lab.experiments.search.workload import Asked, Churn, Load
from shoal_lab.runs.runner import run_scenario
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, find_scenario, load_scenario

NODES = 40
HOP_MS = 50.0


def grown(seed: int = 1, locations: tuple[int, int] = (3, 3)) -> GrownNetwork:
    settings = NetworkSettings(nodes=NODES, delays=HOP_MS, join_interval_ms=50)
    network = GrownNetwork(Scenario(name="tiny", network=settings), seed, locations)
    network.grow()
    return network


def test_a_network_grows_until_all_know_it() -> None:
    network = grown()
    shape = shape_of(network)
    assert (shape.nodes, shape.largest_part) == (NODES, 1.0)
    assert shape.complete > 0.9
    assert shape.known >= 0.99
    assert network.true_totals().nodes == NODES
    assert {network.circle(node).wanted for node in network.nodes} == {3}


def test_one_that_does_not_grow_is_a_failure_with_its_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a sweep would end with it."""
    monkeypatch.setattr("shoal_lab.experiments.search.network.GROWN_S_MAX", 1.0)
    scenario = load_scenario(find_scenario("search-match"), ["nodes=20", "options.locations=3"])
    with pytest.raises(SimulationFailure, match=r"(?s)seed 4.* know the size .*replay: .*search"):
        run_scenario(scenario, seed=4)


def test_locations_are_drawn_once_for_each_node() -> None:
    network = grown(locations=(2, 6))
    wanted = [network.circle(node).wanted for node in network.nodes]
    assert set(wanted) == {2, 3, 4, 5, 6}
    network.crash(network.nodes[5])
    network.start(network.nodes[5])
    assert network.circle(network.nodes[5]).wanted == wanted[5]


def test_near_is_within_five_per_cent_in_all_three_sums() -> None:
    true = Totals(100, 600, 3600)
    assert is_near(Totals(104, 580, 3700), true)
    assert not is_near(Totals(100, 600, 3790), true)
    assert not is_near(None, true)


def test_bubbles_reach_as_many_nodes_as_their_size_says() -> None:
    network = grown()
    probes = Probes(network)
    probe = probes.cast(1.0, 10, data=True)
    assert len(probe.sizes) == 10
    network.simulation.run_for(2)
    found = probes.gathered(probe, hop_time_s(network))
    reached = [list(found.bubble).count(number) for number in range(10)]
    # Two edges to one node, or one to itself, use up a position.
    pairs = zip(reached, probe.sizes, strict=True)
    assert all(size - 2 <= nodes <= size for nodes, size in pairs)
    assert sum(reached) > 0.95 * sum(probe.sizes)
    assert len(set(zip(found.bubble.tolist(), found.node.tolist(), strict=True))) == sum(reached)
    # The origin needs no message, all others one, and collisions one more.
    assert found.messages == sum(reached) - 10 + found.collisions
    assert found.load.sum() == found.messages
    assert 2 <= found.hops.min() <= found.hops.max() <= 8


def test_what_is_forgotten_is_not_watched_any_more() -> None:
    network = grown()
    probes = Probes(network)
    probe = probes.cast(1.0, 1, data=False)
    probes.forget()
    network.simulation.run_for(2)
    assert len(probe.node) < probe.sizes[0]


def test_a_stage_counts_all_pairs() -> None:
    network = grown()
    looking = Looking(network, 6)
    before = looking.look("before", settled=True)
    assert [match.certainty for match in before.matches] == [0.5, 1.0, 1.5, 2.0, 3.0]
    assert {match.pairs for match in before.matches} == {36}
    assert before.matches[-1].matched > 0.9
    for node in network.nodes[::2]:
        network.crash(node)
    after = looking.look("noticed", settled=False)
    assert {match.data for match in after.matches} == {"old"}
    assert after.nodes == NODES // 2
    assert sum(load.nodes for load in after.loads) == after.nodes


def test_searches_find_what_was_put_and_count_if_their_node_stays() -> None:
    network = grown()
    load = Load(network, 2.0, 0.999, "fading")
    load.put_old(5, 2.0)
    load.begin()
    network.simulation.run_for(10)
    load.stop()
    network.simulation.run_for(10)
    found = count_found(load.asked)
    assert 15 <= found.new_searches <= 21
    assert 18 <= found.old_searches <= 21
    assert found.old is not None
    assert found.new is not None
    assert min(found.old, found.new) > 0.9
    gone = msgspec.structs.replace(load.asked[0], over=False)
    assert count_found([gone]).old is None


def test_searches_belong_to_the_moment_in_which_they_began() -> None:
    network = grown()
    moments = Moments(network, 5.0)
    moments.begin()
    begin_s = network.simulation.time_s
    network.simulation.run_for(11)
    event_s = begin_s + 5
    node: Any = network.nodes[0]
    asked = [
        Asked("old", begin_s + offset_s, node, 1, found, True)
        for offset_s, found in ((0.0, True), (4.9, False), (5.0, True), (10.5, True))
    ]
    told = moments.told(asked, event_s)
    assert [moment.time_s for moment in told] == pytest.approx([-5, 0, 5])
    assert [moment.found.old_searches for moment in told] == [2, 1, 1]
    assert told[0].found.old == 0.5
    assert all(moment.shape.nodes == NODES for moment in told)


def test_rounds_are_watched_from_their_beginning() -> None:
    network = grown()
    rounds = Rounds(network)
    rounds.watch(2, 600)
    first, second = rounds.figures()
    for figures in (first, second):
        assert figures.steps is not None
        assert 1 <= figures.steps < 10  # small networks beat quickly
        assert figures.within == 1.0
        assert figures.off < 0.01
        assert figures.lasted_s >= 5 * (figures.steps - 1)
    curve = [step.within for step in rounds.steps if step.holder == 0]
    assert curve[0] < 0.5
    assert curve[-1] == 1.0


def test_nodes_come_back() -> None:
    network = grown()
    churn = Churn(network, ChurnOptions(session_s=60, away_s=5, crashes=0.5, detect_s=1))
    churn.begin()
    network.simulation.run_for(120)
    churn.stop()
    network.simulation.run_for(100)
    counts = network.counts
    assert counts["leaves"] > 10
    assert counts["crashes"] > 10
    assert counts["starts"] == NODES + counts["leaves"] + counts["crashes"]
    assert len(network.running()) == NODES
    assert network.config.beat_ns == 5 * S_NS
