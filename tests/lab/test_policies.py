"""Topology policies by name, and the baseline that is told all delays."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from shoal.base.errors import ConfigError
from shoal.base.ids import NodeId, node_id
from shoal.protocols.streams.topology.aware_policy import AwarePolicy
from shoal.protocols.streams.topology.policy import LinkChanges
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.sim import RegionDelay, load_table
from shoal.sim.delays import parse_table
from shoal_lab.baselines.near_half import NearHalfPolicy
from shoal_lab.experiments.streams.network_view import in_one_piece
from shoal_lab.experiments.streams.simulated_network import make_policy, round_trips
from shoal_lab.scenarios.scenario import NetworkSettings, load_scenario

DELAYS = RegionDelay(load_table("aws"))


def members(count: int) -> list[NodeId]:
    # Not in the order of their numbers: nothing may depend on it.
    return [node_id((number * 7919 % 1_000_003).to_bytes(20, "big")) for number in range(count)]


def near_half(
    nodes: list[NodeId], seed: int = 1, degree: int = 4, *, hold: bool = False
) -> NearHalfPolicy:
    index = {node: number for number, node in enumerate(nodes)}
    settings = NetworkSettings(degree=degree, policy="near-half")
    policy = make_policy(settings, Random(seed), DELAYS, index)
    assert isinstance(policy, NearHalfPolicy)
    if hold:
        policy.hold()
    for node in nodes:
        policy.join(node)
    return policy


def links(policy: RandomPolicy) -> dict[NodeId, tuple[NodeId, ...]]:
    return {node: policy.neighbours(node) for node in policy.nodes}


def inside(policy: RandomPolicy, nodes: list[NodeId]) -> float:
    """The share of link ends that stay in their region."""
    region = {node: DELAYS.region(number) for number, node in enumerate(nodes)}
    ends = [region[a] == region[b] for a, row in links(policy).items() for b in row]
    return sum(ends) / len(ends)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("random", RandomPolicy), ("near-half", NearHalfPolicy), ("aware", AwarePolicy)],
)
def test_a_policy_is_made_by_its_name(name: str, kind: type, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'network.policy = "{name}"\nnetwork.degree = 5\n')
    made = make_policy(load_scenario(file).network, Random(1), DELAYS, {})
    assert type(made) is kind
    assert made.degree == 5


def test_a_policy_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('network.policy = "clever"\n')
    with pytest.raises(ConfigError, match=r"network\.policy"):
        load_scenario(file)


@pytest.mark.parametrize("experiment", ["randomness", "diameter", "loss"])
def test_what_has_random_overlays_only_says_so(experiment: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'experiment = "{experiment}"\nnetwork.policy = "near-half"\n')
    complaint = f"network.policy = 'near-half': streams/{experiment} takes no notice of that"
    with pytest.raises(ConfigError, match=complaint):
        load_scenario(file)


def test_round_trips_are_those_of_the_table() -> None:
    delays = RegionDelay(parse_table("from\ta\tb\na\t1\t10\nb\t20\t2\n", "t"))
    nodes = members(3)
    index = {node: number for number, node in enumerate(nodes)}
    trips_ms = round_trips(delays, index, [nodes[2], nodes[1], nodes[0]]) / 1e6
    np.testing.assert_array_equal(trips_ms, [[2, 30, 2], [30, 4, 30], [2, 30, 2]])


@pytest.mark.parametrize("degree", [3, 4, 7])
@pytest.mark.parametrize("count", [2, 5, 17, 128])
def test_half_near_is_regular_and_in_one_piece(count: int, degree: int) -> None:
    policy = near_half(members(count), degree=degree)
    policy.sweep()
    policy.check_invariants()
    full = min(degree, count - 1)
    free = sum(full - len(row) for row in links(policy).values())
    assert free == full * count % 2
    assert in_one_piece(links(policy))


def test_half_of_the_links_stay_near_and_the_rest_does_not() -> None:
    nodes = members(256)  # 16 in each region
    policy = near_half(nodes)
    assert inside(policy, nodes) < 0.15
    changes = policy.sweep()
    assert len(changes.added) == len(changes.removed) > 100
    # Of the random half, one in sixteen is inside by chance.
    assert 0.48 < inside(policy, nodes) < 0.6


def test_a_sweep_that_has_nothing_to_do_changes_nothing() -> None:
    policy = near_half(members(64))
    policy.sweep()
    before = links(policy)
    assert policy.sweep() == LinkChanges()
    assert links(policy) == before


def test_little_changes_when_one_node_goes() -> None:
    nodes = members(256)
    policy = near_half(nodes)
    policy.sweep()
    policy.leave(nodes[77])
    changes = policy.sweep()
    policy.check_invariants()
    assert len(changes.added) + len(changes.removed) < 40
    assert in_one_piece(links(policy))


def test_the_same_seed_gives_the_same_overlay() -> None:
    made = [near_half(members(64), seed) for seed in (1, 1, 2)]
    for policy in made:
        policy.sweep()
    first, again, other = map(links, made)
    assert first == again != other


def test_a_successor_draws_near_links_when_it_has_learned_the_old_ones() -> None:
    nodes = members(64)
    policy = near_half(nodes, hold=True)
    assert not any(links(policy).values())
    assert policy.adopt(nodes[0], nodes[1])
    policy.sweep()
    assert inside(policy, nodes) > 0.45
    assert {len(row) for row in links(policy).values()} == {4}
