"""Trackers that die, come back, or cannot be reached: nothing is lost, and joins work again."""

from __future__ import annotations

import pytest

from tests.simulation.failover import Failover

KILL_S = 20.0
JOINS_S = 5.0  # what a join may take while a tracker is dead

SEEDS = pytest.mark.parametrize("run", range(2))


@SEEDS
def test_a_killed_tracker_costs_no_message_and_joins_work_again(seed: int, run: int) -> None:
    town = Failover(seed + run)
    town.busy(until_s=KILL_S + 20)
    town.crash(KILL_S, town.trackers[0])
    for number, node in enumerate(town.spare):
        town.start(KILL_S + 0.05 + 0.5 * number, node)
    town.run_until(KILL_S)
    before = town.links(town.stayed)
    town.run_until(KILL_S + JOINS_S)
    assert town.members(town.trackers[1]) == len(town.stayed) + len(town.spare)
    town.run_until(KILL_S + 40)
    assert max(town.ready_s[node.id] for node in town.spare) < JOINS_S
    # Six newcomers go into a dozen links, and that is all that happens.
    assert town.kept(before) >= 1 - 2 * len(town.spare) / len(before) - 0.05
    town.check()


@SEEDS
def test_a_successor_adopts_the_topology(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=200, spare=0, check=False)
    town.busy(until_s=KILL_S + 15)
    town.crash(KILL_S, town.trackers[0])
    town.run_until(KILL_S)
    before = town.links(town.stayed)
    town.run_until(KILL_S + 30)
    assert town.kept(before) >= 0.95
    town.check()


@SEEDS
def test_a_tracker_that_restarts_adopts_what_it_has_forgotten(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=60, spare=1, trackers=1)
    town.busy(until_s=KILL_S + 15)
    town.crash(KILL_S, town.trackers[0])
    town.start(KILL_S + 0.1, town.trackers[0])
    town.start(KILL_S + 0.2, *town.spare)
    town.run_until(KILL_S)
    before = town.links(town.stayed)
    town.run_until(KILL_S + 30)
    assert town.kept(before) >= 0.95
    assert town.ready_s[town.spare[0].id] < JOINS_S
    town.check()


@SEEDS
def test_nodes_that_die_with_the_tracker_cost_their_own_links_only(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=100, spare=1)
    town.busy(until_s=KILL_S + 15)
    dead, alive = town.stayed[:5], town.stayed[5:]
    town.crash(KILL_S, town.trackers[0], *dead)
    town.start(KILL_S + 0.5, *town.spare)
    town.run_until(KILL_S)
    before = town.links(alive)
    town.run_until(KILL_S + 30)
    assert town.kept(before) >= 0.9  # holes are closed by moving a few of the others
    assert town.ready_s[town.spare[0].id] < JOINS_S
    town.check()


@SEEDS
def test_a_tracker_that_half_of_the_nodes_do_not_reach(seed: int, run: int) -> None:
    # Each half has a tracker of its own for a while; then they come together again.
    town = Failover(seed + run, spare=2)
    town.busy(until_s=KILL_S + 40)
    away = town.stayed[::2]
    town.cut(KILL_S, KILL_S + 15, town.trackers[0], [*away, town.spare[0]])
    town.start(KILL_S + 3, *town.spare)
    town.run_until(KILL_S + 14)
    assert town.members(town.trackers[0]) == len(town.stayed) - len(away) + 1
    assert town.members(town.trackers[1]) == len(away) + 1
    town.run_until(KILL_S + 60)
    assert max(town.ready_s[node.id] for node in town.spare) < JOINS_S
    town.check()


@SEEDS
def test_a_tracker_that_falls_silent(seed: int, run: int) -> None:
    # Nobody hears from its kernel: links time out, and so do dials.
    town = Failover(seed + run, spare=3)
    town.busy(until_s=KILL_S + 30)
    town.cut(KILL_S, KILL_S + 20, town.trackers[0], town.network.nodes)
    town.start(KILL_S + 0.1, town.spare[0])
    town.start(KILL_S + 2.5, town.spare[1])
    town.start(KILL_S + 10, town.spare[2])
    town.run_until(KILL_S + 60)
    assert max(town.ready_s[node.id] for node in town.spare) < JOINS_S
    town.check()


@SEEDS
def test_a_tracker_dies_while_nodes_come_and_go(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=40, spare=12)
    town.busy(until_s=KILL_S + 20)
    town.crash(KILL_S, town.trackers[0])
    town.start(KILL_S + 10, town.trackers[0])
    comes = [KILL_S - 1 + 0.25 * number for number in range(12)]
    for when_s, newcomer, old in zip(comes, town.spare, town.stayed[20:], strict=False):
        town.start(when_s, newcomer)
        town.crash(when_s + 0.1, old)
        town.start(when_s + 8, old)
    town.run_until(KILL_S + 60)
    assert max(town.ready_s[node.id] for node in town.spare) < JOINS_S
    town.check()


@SEEDS
def test_all_go_back_to_the_better_tracker_without_losing_a_link(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=100, spare=0, check=False)
    town.busy(until_s=KILL_S + 20)
    town.crash(KILL_S, town.trackers[0])
    town.start(KILL_S + 10, town.trackers[0])
    town.run_until(KILL_S)
    before = town.links(town.stayed)
    for step in range(200):
        town.run_until(KILL_S + step / 10)
        assert town.links(town.stayed) == before
    town.run_until(KILL_S + 40)
    town.check()


@SEEDS
def test_whoever_joins_the_better_tracker_before_the_others_are_back(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=100, spare=1)
    town.busy(until_s=KILL_S + 20)
    town.crash(KILL_S, town.trackers[0])
    town.start(KILL_S + 10, town.trackers[0])
    town.start(KILL_S + 11, *town.spare)
    town.run_until(KILL_S)
    before = town.links(town.stayed)
    town.run_until(KILL_S + 40)
    assert town.ready_s[town.spare[0].id] < JOINS_S
    assert town.kept(before) >= 0.95
    town.check()


@SEEDS
def test_while_no_tracker_is_there_data_flows_and_the_first_to_come_back_is_joined(
    seed: int, run: int
) -> None:
    town = Failover(seed + run)
    town.busy(until_s=KILL_S + 40)
    town.crash(KILL_S, *town.trackers)
    town.start(KILL_S + 15, *town.spare[:2])
    town.run_until(KILL_S)
    before = town.links(town.stayed)
    town.run_until(KILL_S + 19.9)
    assert town.links(town.stayed) == before
    assert town.ready_s.keys().isdisjoint(node.id for node in town.spare)
    town.start(KILL_S + 20, town.trackers[2])
    town.run_until(KILL_S + 20 + JOINS_S)
    assert all(node.id in town.ready_s for node in town.spare[:2])
    town.start(KILL_S + 30, town.trackers[0])
    town.run_until(KILL_S + 60)
    town.check()


@SEEDS
def test_a_join_whose_best_tracker_is_dead_from_the_start(seed: int, run: int) -> None:
    town = Failover(seed + run, nodes=20, spare=4)
    town.trackers[0].crash()
    town.cut(0, 100, town.trackers[1], town.spare[2:])  # these do not hear from the second either
    town.busy(until_s=KILL_S + 5)
    town.start(KILL_S, *town.spare[:2])
    town.run_until(KILL_S + 20)
    assert max(town.ready_s[node.id] for node in town.spare[:2]) < 2.0
    town.start(KILL_S + 20, *town.spare[2:])
    town.run_until(KILL_S + 40)
    assert max(town.ready_s[node.id] for node in town.spare[2:]) < JOINS_S
