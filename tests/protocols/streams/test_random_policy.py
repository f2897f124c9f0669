"""The paper's algorithm, step by step: exact small cases and uniform choices."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, node_id
from shoal.base.units import MS_NS
from shoal.protocols.streams.topology import random_policy
from shoal.protocols.streams.topology.policy import LinkChanges, Pair, TopologyPolicy, pair_of
from shoal.protocols.streams.topology.random_policy import LINK_TRIES, RandomPolicy

DEGREES = (3, 4, 5, 6)

every_degree = pytest.mark.parametrize("degree", DEGREES)


def node(number: int) -> NodeId:
    return node_id(number.to_bytes(20, "big"))


def number(member: NodeId) -> int:
    return int.from_bytes(member, "big")


def grown(degree: int, n: int, rng: Random) -> RandomPolicy:
    policy = RandomPolicy(degree, rng)
    for each in range(n):
        policy.join(node(each))
    return policy


def adopted(degree: int, links: list[tuple[int, int]], rng: Random) -> RandomPolicy:
    policy = RandomPolicy(degree, rng)
    assert all(policy.adopt(node(a), node(b)) for a, b in links)
    return policy


def links_of(policy: TopologyPolicy) -> set[tuple[int, int]]:
    return {(number(a), number(b)) for a in policy.nodes for b in policy.neighbours(a) if a < b}


def numbers(pairs: tuple[Pair, ...]) -> set[tuple[int, int]]:
    return {(number(pair.a), number(pair.b)) for pair in pairs}


def mesh(size: int) -> set[tuple[int, int]]:
    return set(combinations(range(size), 2))


def test_it_is_a_topology_policy() -> None:
    policy: TopologyPolicy = RandomPolicy(4, Random(1))
    assert policy.degree == 4


@pytest.mark.parametrize("degree", [-1, 0, 1, 2])
def test_a_degree_below_three_is_refused_with_the_reason(degree: int) -> None:
    with pytest.raises(UsageError, match="26 to 62 times in 100"):
        RandomPolicy(degree, Random(1))


@every_degree
def test_up_to_d_plus_1_nodes_form_a_full_mesh(degree: int) -> None:
    policy = RandomPolicy(degree, Random(1))
    for n in range(1, degree + 2):
        changes = policy.join(node(n - 1))
        assert changes.removed == ()
        assert numbers(changes.added) == {(old, n - 1) for old in range(n - 1)}
        assert links_of(policy) == mesh(n)
    assert policy.sweep() == LinkChanges()


@every_degree
def test_node_d_plus_2_goes_into_disjoint_links(degree: int) -> None:
    policy = grown(degree, degree + 1, Random(2))
    changes = policy.join(node(degree + 1))
    cut = [each for pair in changes.removed for each in (pair.a, pair.b)]
    assert len(cut) == len(set(cut)) == degree // 2 * 2
    assert set(changes.added) == {pair_of(node(degree + 1), each) for each in cut}


@every_degree
def test_a_leave_back_to_d_plus_1_nodes_restores_the_full_mesh(degree: int) -> None:
    for gone in range(degree + 2):
        policy = grown(degree, degree + 2, Random(gone))
        policy.leave(node(gone))
        members = [each for each in range(degree + 2) if each != gone]
        assert links_of(policy) == set(combinations(members, 2))


@every_degree
def test_every_run_leaves_at_most_the_odd_slot_free(degree: int) -> None:
    rng = Random(degree)
    policy = RandomPolicy(degree, Random(degree))
    members: list[NodeId] = []
    for each in range(1500):
        if len(members) < 12 or rng.random() < 0.5:
            members.append(node(each))
            policy.join(members[-1])
        else:
            policy.leave(members.pop(rng.randrange(len(members))))
        if len(members) >= degree + 2:
            a = rng.choice(members)
            policy.link_failed(a, rng.choice(policy.neighbours(a)))
        n = len(members)
        full = min(degree, n - 1)
        assert n * full - 2 * len(links_of(policy)) == n * full % 2


def test_step_1_pairs_the_orphans_of_a_leave() -> None:
    # An octahedron on 1..6 (all links but 1-4, 2-5 and 3-6), with node 0 inside 1-2 and 4-5.
    links = sorted(set(combinations(range(1, 7), 2)) - {(1, 4), (2, 5), (3, 6)})
    links = [link for link in links if link not in {(1, 2), (4, 5)}] + [
        (0, each) for each in (1, 2, 4, 5)
    ]
    policy = adopted(4, links, Random(1))
    changes = policy.leave(node(0))
    assert numbers(changes.removed) == {(0, 1), (0, 2), (0, 4), (0, 5)}
    assert numbers(changes.added) in ({(1, 4), (2, 5)}, {(1, 2), (4, 5)})


@pytest.mark.parametrize(("n", "suitable"), [(5, 8), (12, 64)])
def test_step_1_is_uniform_among_suitable_pairs(n: int, suitable: int) -> None:
    # Of n nodes only 0-1 and 0-2 are linked. What counts is the first link made: five nodes are
    # gone through in random order, twelve are drawn from.
    rng = Random(11)
    first: Counter[Pair] = Counter()
    for _ in range(200 * suitable):
        policy = adopted(4, [(0, 1), (0, 2)], rng)
        for each in range(3, n):
            policy._graph.add_node(node(each))
        first[policy.sweep().added[0]] += 1
    assert len(first) == suitable
    assert all(abs(count - 200) < 5 * 200**0.5 for count in first.values())


def circulant(n: int, first: int = 0) -> set[tuple[int, int]]:
    """The 4-regular ring where each node is linked to the next two on either side."""
    return {
        (min(a, b) + first, max(a, b) + first) for a in range(n) for b in ((a + 1) % n, (a + 2) % n)
    }


@pytest.mark.parametrize("tries", [LINK_TRIES, 0], ids=["drawn", "listed"])
def test_step_3_is_uniform_among_suitable_links(
    tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_policy, "LINK_TRIES", tries)
    # Node 10 sits in 0-1 of a ring and has two free slots: links at 0 and 1 do not suit it.
    links = sorted(circulant(10) - {(0, 1)} | {(0, 10), (1, 10)})
    suitable = {(a, b) for a, b in links if a > 1 and b < 10}
    rng = Random(12)
    cut: Counter[tuple[int, int]] = Counter()
    for _ in range(200 * len(suitable)):
        changes = adopted(4, links, rng).sweep()
        (pair,) = numbers(changes.removed)
        assert numbers(changes.added) == {(pair[0], 10), (pair[1], 10)}
        cut[pair] += 1
    assert set(cut) == suitable
    assert all(abs(count - 200) < 5 * 200**0.5 for count in cut.values())


@pytest.mark.parametrize("tries", [LINK_TRIES, 0], ids=["drawn", "listed"])
def test_step_4_is_uniform_among_switches(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_policy, "LINK_TRIES", tries)
    # 0 and 1 are linked and lack one link each, all others are full.
    links = sorted(circulant(10) - {(0, 8), (1, 3)} | {(3, 8)})
    near = {each: {a + b - each for a, b in links if each in (a, b)} | {each} for each in (0, 1)}
    possible = {
        (c, e)
        for link in links
        for c, e in (link, link[::-1])
        if c not in near[0] and e not in near[1]
    }
    rng = Random(13)
    switched: Counter[tuple[int, int]] = Counter()
    for _ in range(200 * len(possible)):
        changes = adopted(4, links, rng).sweep()
        (at_0,) = (b for a, b in numbers(changes.added) if a == 0)
        (at_1,) = (b for a, b in numbers(changes.added) if a == 1)
        assert numbers(changes.removed) == {(min(at_0, at_1), max(at_0, at_1))}
        switched[at_0, at_1] += 1
    assert set(switched) == possible
    assert all(abs(count - 200) < 5 * 200**0.5 for count in switched.values())


@pytest.mark.parametrize(
    ("degree", "links", "left_free"),
    [
        # Four nodes linked to each other only, with one slot left each: two switches.
        (4, sorted(mesh(4) | circulant(10, first=4)), 0),
        # Three of them, and n * d odd: one switch, one slot stays.
        (3, sorted(mesh(3) | {(a + 3, b + 3) for a, b in mesh(4)}), 1),
        # Four with two slots left each.
        (5, sorted(mesh(4) | {(a + 4, b + 4) for a, b in mesh(6)}), 0),
    ],
)
def test_open_nodes_that_are_all_linked_to_each_other_are_filled(
    degree: int, links: list[tuple[int, int]], left_free: int
) -> None:
    for seed in range(50):
        policy = adopted(degree, links, Random(seed))
        policy.sweep()
        policy.check_invariants()
        free = [degree - len(policy.neighbours(member)) for member in policy.nodes]
        assert sum(free) == left_free


@every_degree
def test_a_failed_link_of_a_full_mesh_stays_free_until_the_sweep(degree: int) -> None:
    for n in range(2, degree + 2):
        policy = grown(degree, n, Random(1))
        failed = Pair(node(0), node(1))
        assert policy.link_failed(node(1), node(0)) == LinkChanges(removed=(failed,))
        assert policy.sweep() == LinkChanges(added=(failed,))
        assert links_of(policy) == mesh(n)


def test_a_failed_pair_is_barred_in_its_own_run_only() -> None:
    policy = grown(4, 5, Random(1))
    policy.link_failed(node(0), node(1))
    changes = policy.link_failed(node(2), node(3))
    assert numbers(changes.removed) == {(2, 3)}
    assert numbers(changes.added) == {(0, 1)}


def test_the_smallest_replacement_of_a_failed_link_is_forced() -> None:
    # The octahedron: 0-1 fails, and only the strangers of 0 and 1 can take their places.
    links = sorted(mesh(6) - {(0, 3), (1, 4), (2, 5)})
    changes = adopted(4, links, Random(1)).link_failed(node(0), node(1))
    assert numbers(changes.removed) == {(0, 1), (3, 4)}
    assert numbers(changes.added) == {(0, 3), (1, 4)}


@every_degree
def test_a_failed_link_is_replaced_by_others(degree: int) -> None:
    for n in (degree + 2, degree + 3, 30):
        for a, b in links_of(grown(degree, n, Random(5))):
            policy = grown(degree, n, Random(5))
            changes = policy.link_failed(node(a), node(b))
            assert Pair(node(a), node(b)) not in changes.added
            assert n * degree - 2 * len(links_of(policy)) == n * degree % 2


def test_a_delay_changes_nothing() -> None:
    policy = grown(4, 30, Random(1))
    assert policy.delay_learned(node(1), node(2), 80 * MS_NS) == LinkChanges()


def test_an_idle_sweep_draws_nothing() -> None:
    rng = Random(1)
    policy = grown(4, 30, rng)
    policy.sweep()
    before = rng.getstate()
    assert policy.sweep() == LinkChanges()
    assert rng.getstate() == before
