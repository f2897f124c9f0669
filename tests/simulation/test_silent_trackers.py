"""A tracker that is there and says nothing: its streams go on to the next, and come back to it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, ns_of_seconds
from shoal.sim.host import SimNode
from shoal.sim.simulation import START_NS
from tests.simulation.failover import BUSY_S, Failover

SEEDS = pytest.mark.parametrize("run", range(2))
PASSED_OVER_S = 12 + 3 + 2  # the patience, the next Join after it, a takeover
BACK_S = 10  # a Leave that is answered, and a takeover


class Places:
    """Where nodes were, each time that it changed."""

    def __init__(self, town: Failover, nodes: Sequence[SimNode]) -> None:
        self._town, self._nodes = town, nodes
        self._seen: dict[NodeId, list[NodeId | None]] = {node.id: [] for node in nodes}

    def watch(self, until_s: float) -> None:
        """Look every tenth of a second."""
        simulation = self._town.simulation
        while simulation.time_s < until_s:
            simulation.run_for(0.1)
            for node in self._nodes:
                self._seen[node.id].append(self._town.at(node))

    def moves(self) -> set[tuple[int, ...]]:
        """The ways that nodes took, as numbers of trackers."""
        numbers = {tracker.id: number for number, tracker in enumerate(self._town.trackers)}
        ways: set[tuple[int, ...]] = set()
        for seen in self._seen.values():
            changes = [b for a, b in pairwise([None, *seen]) if a != b]
            ways.add(tuple(numbers[place] for place in changes if place is not None))
        return ways


@SEEDS
def test_a_tracker_that_answers_nobody_is_passed_over_until_it_speaks(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=30, spare=0)
    speaks_s = BUSY_S + 30
    town.mute(0, speaks_s, town.trackers[0], town.network.nodes)
    town.busy(until_s=speaks_s + 30)
    places = Places(town, town.stayed)
    town.run_until(1)
    places.watch(PASSED_OVER_S)
    assert town.members(town.trackers[1]) == len(town.stayed)
    places.watch(speaks_s)
    assert places.moves() == {(0, 1)}
    before = town.links(town.stayed)
    places.watch(speaks_s + BACK_S)
    assert places.moves() == {(0, 1, 0)}, "there, and back, once"
    assert town.kept(before) >= 0.95
    town.run_until(speaks_s + 60)
    town.check()


@SEEDS
def test_a_tracker_that_comes_back_mute_costs_no_link_and_no_message(seed: int, run: int) -> None:
    # Nodes that have neighbours wait longer; in the end they go on together, and come back.
    town = Failover(seed + run, nodes=30, spare=0)
    speaks_s = BUSY_S + 120
    town.busy(until_s=speaks_s + 30)
    town.crash(BUSY_S + 5, town.trackers[0])
    town.mute(BUSY_S + 5, speaks_s, town.trackers[0], town.network.nodes)
    town.start(BUSY_S + 5.1, town.trackers[0])
    town.run_until(BUSY_S + 5)
    before = town.links(town.stayed)
    places = Places(town, town.stayed)
    places.watch(speaks_s)
    assert places.moves() == {(0, 1)}
    places.watch(speaks_s + BACK_S)
    assert places.moves() == {(0, 1, 0)}
    assert town.kept(before) >= 0.95
    town.run_until(speaks_s + 60)
    town.check()


@SEEDS
def test_a_node_that_alone_is_not_answered_goes_on_and_comes_back(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=20, spare=1)
    (lonely,) = town.spare
    speaks_s = BUSY_S + 60
    town.busy(until_s=speaks_s + 30)
    town.mute(BUSY_S + 5, speaks_s, town.trackers[0], [lonely])
    town.start(BUSY_S + 6, lonely)
    town.run_until(BUSY_S + 7)
    own, others = Places(town, [lonely]), Places(town, town.stayed)
    own.watch(BUSY_S + 6 + PASSED_OVER_S)
    assert town.members(town.trackers[1]) == 1
    # It was in the overlay of the others, without knowing it, and is out again.
    assert town.members(town.trackers[0]) == len(town.stayed)
    others.watch(speaks_s)
    own.watch(speaks_s + BACK_S)
    assert own.moves() == {(0, 1, 0)}
    assert others.moves() == {(0,)}, "nobody else moves"
    assert len(town.network.active(lonely)) == 4
    town.run_until(speaks_s + 60)
    town.check()
    back_ms = (START_NS + ns_of_seconds(speaks_s + BACK_S)) // MS_NS
    after = [id for id in town.once.published if id.timestamp_ms > back_ms]
    assert after
    assert town.once.delivered(lonely).issuperset(after)


@SEEDS
def test_while_one_tracker_is_silent_and_another_dead_the_third_is_found(
    seed: int, run: int
) -> None:
    town = Failover(seed + run, nodes=12, spare=0)
    town.trackers[1].crash()
    town.mute(0, 1000, town.trackers[0], town.network.nodes)
    town.busy(until_s=BUSY_S + 20)
    town.run_until(PASSED_OVER_S + 3)
    assert town.members(town.trackers[2]) == len(town.stayed)
    places = Places(town, town.stayed)
    places.watch(BUSY_S + 40)
    assert places.moves() == {(2,)}
    published = set(town.once.published)
    assert all(town.once.delivered(node) == published for node in town.stayed)
