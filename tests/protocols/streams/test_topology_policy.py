"""What every topology policy must keep; a new policy is added to POLICIES, of
tests/support/policy_history.py, and passes unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.protocols.streams.topology.policy import LinkChanges, Pair, TopologyPolicy, pair_of
from tests.support.policy_history import DEGREES, POLICIES, PolicyFactory, history_digest
from tests.support.streams import node

every_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
every_degree = pytest.mark.parametrize("degree", DEGREES)


def links_of(policy: TopologyPolicy) -> set[Pair]:
    return {pair_of(a, b) for a in policy.nodes for b in policy.neighbours(a)}


def is_connected(policy: TopologyPolicy) -> bool:
    unseen = dict.fromkeys(policy.nodes)
    if unseen:
        stack = [unseen.popitem()[0]]
        while stack:
            for neighbour in policy.neighbours(stack.pop()):
                if neighbour in unseen:
                    del unseen[neighbour]
                    stack.append(neighbour)
    return not unseen


def assert_regular(policy: TopologyPolicy) -> None:
    """Every slot is filled that can be: a full mesh up to d + 1 nodes, one odd slot at most."""
    n, d = len(policy.nodes), policy.degree
    full = min(d, n - 1)
    missing = [full - len(policy.neighbours(member)) for member in policy.nodes]
    assert sorted(missing, reverse=True)[:1] in ([], [n * full % 2])
    assert sum(missing) == (n * full % 2 if n else 0)


class PolicyMachine(RuleBasedStateMachine):
    """Any order of events, with a plain set of links on the side that only changes tell."""

    make: PolicyFactory
    degree: int

    @initialize(seed=st.integers(0, 2**32), size=st.integers(0, 40), parts=st.integers(0, 4))
    def start(self, seed: int, size: int, parts: int) -> None:
        self.policy = type(self).make(self.degree, Random(seed))
        self.links: set[Pair] = set()
        self.members: list[NodeId] = []
        self.next = 0
        # Churn hardly ever disconnects an overlay: most starts have separate meshes, taken over
        # from another tracker, for the sweep to find.
        for _ in range(parts):
            mesh = [node(self.next + each) for each in range(self.degree + 1)]
            self.next += len(mesh)
            self.members += mesh
            for a, b in combinations(mesh, 2):
                assert self.policy.adopt(a, b)
                self.links.add(pair_of(a, b))
        for _ in range(size if not parts else size // 20):
            self.join()

    def apply(self, changes: LinkChanges) -> None:
        added, removed = set(changes.added), set(changes.removed)
        assert (len(added), len(removed)) == (len(changes.added), len(changes.removed))
        assert not added & self.links
        assert removed <= self.links
        self.links = self.links - removed | added

    @rule()
    def join(self) -> None:
        newcomer = node(self.next)
        self.next += 1
        self.members.append(newcomer)
        self.apply(self.policy.join(newcomer))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), count=st.integers(1, 12))
    def leave(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.members))):
            at = data.draw(st.integers(0, len(self.members) - 1))
            self.apply(self.policy.leave(self.members.pop(at)))

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def link_failed(self, data: st.DataObject) -> None:
        failed = data.draw(st.sampled_from(sorted(self.links)))
        changes = self.policy.link_failed(failed.b, failed.a)
        assert failed in changes.removed
        self.apply(changes)

    @precondition(lambda self: len(self.members) >= 2)
    @rule(data=st.data(), rtt_ns=st.integers(0, 400 * MS_NS))
    def delay_learned(self, data: st.DataObject, rtt_ns: int) -> None:
        a, b = data.draw(st.permutations(self.members))[:2]
        self.apply(self.policy.delay_learned(a, b, rtt_ns))

    @rule()
    def hold(self) -> None:
        self.policy.hold()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), modulus=st.integers(1, 3))
    def place(self, data: st.DataObject, modulus: int) -> None:
        placed = data.draw(st.sampled_from(self.members))
        suited = {n for n in self.members if n[-1] % modulus == 0}
        changes = self.policy.place(placed, suited.__contains__)
        assert set(changes.touched()) <= suited | {placed}
        assert all(placed in (pair.a, pair.b) for pair in changes.added)
        self.apply(changes)

    @rule()
    def sweep(self) -> None:
        self.apply(self.policy.sweep())
        assert_regular(self.policy)
        assert is_connected(self.policy)

    @invariant()
    def nothing_impossible(self) -> None:
        if hasattr(self, "policy"):
            self.policy.check_invariants()
            assert list(self.policy.nodes) == self.members
            assert links_of(self.policy) == self.links


@every_policy
@every_degree
def test_any_order_of_events(make: PolicyFactory, degree: int) -> None:
    machine = type("Machine", (PolicyMachine,), {"make": staticmethod(make), "degree": degree})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


def grown(make: PolicyFactory, degree: int, n: int, seed: int) -> TopologyPolicy:
    policy = make(degree, Random(seed))
    for number in range(n):
        policy.join(node(number))
    return policy


@every_policy
@every_degree
def test_joins_alone_keep_the_overlay_connected(make: PolicyFactory, degree: int) -> None:
    policy = make(degree, Random(3))
    for number in range(60):
        policy.join(node(number))
        assert is_connected(policy)


@every_policy
@every_degree
@pytest.mark.parametrize(("n", "share"), [(50, 0.5), (500, 0.4), (3000, 0.3), (3000, 0.5)])
def test_a_mass_crash_is_healed_by_one_sweep(
    make: PolicyFactory, degree: int, n: int, share: float
) -> None:
    policy = grown(make, degree, n, seed=n)
    crashed = Random(n + 1).sample(list(policy.nodes), round(n * share))
    for victim in crashed:
        policy.leave(victim)
    policy.sweep()
    policy.check_invariants()
    assert len(policy.nodes) == n - len(crashed)
    assert_regular(policy)
    assert is_connected(policy)


@every_policy
def test_a_crash_that_comes_in_waves_is_healed_after_each(make: PolicyFactory) -> None:
    policy = grown(make, 3, 2000, seed=8)
    rng = Random(9)
    while len(policy.nodes) > 10:
        for victim in rng.sample(list(policy.nodes), len(policy.nodes) // 3):
            policy.leave(victim)
        policy.sweep()
        assert_regular(policy)
        assert is_connected(policy)
    policy.check_invariants()


@every_policy
def test_the_loss_of_one_neighbourhood_is_healed(make: PolicyFactory) -> None:
    # Worse than random crashes: everybody within three hops of one node goes at once.
    policy = grown(make, 4, 1500, seed=4)
    near = {node(0): 0}
    queue = [node(0)]
    for member in queue:
        for neighbour in policy.neighbours(member):
            if neighbour not in near and near[member] < 3:
                near[neighbour] = near[member] + 1
                queue.append(neighbour)
    for victim in queue:
        policy.leave(victim)
    policy.sweep()
    policy.check_invariants()
    assert_regular(policy)
    assert is_connected(policy)


@every_policy
@every_degree
@pytest.mark.parametrize("parts", [2, 3, 200])
def test_separate_parts_are_joined_by_one_sweep(
    make: PolicyFactory, degree: int, parts: int
) -> None:
    policy = make(degree, Random(parts))
    for first in range(0, parts * (degree + 1), degree + 1):
        for a, b in combinations(range(first, first + degree + 1), 2):
            policy.adopt(node(a), node(b))
    assert not is_connected(policy)
    changes = policy.sweep()
    assert len(changes.added) == len(changes.removed) <= 2 * (parts - 1)
    policy.check_invariants()
    assert_regular(policy)
    assert is_connected(policy)


@every_policy
def test_the_leave_of_a_cut_node_is_healed_whatever_it_tears(make: PolicyFactory) -> None:
    # Two meshes of five hang together by node 0 alone, which sits in one link of each.
    links = [*combinations(range(1, 6), 2), *combinations(range(6, 11), 2)]
    links = [link for link in links if link not in ((1, 2), (6, 7))]
    links += [(0, 1), (0, 2), (0, 6), (0, 7)]
    torn = 0
    for seed in range(60):
        policy = make(4, Random(seed))
        for a, b in links:
            policy.adopt(node(a), node(b))
        policy.leave(node(0))
        torn += not is_connected(policy)
        policy.sweep()
        policy.check_invariants()
        assert_regular(policy)
        assert is_connected(policy)
    assert torn, "no seed put the sweep to the test"


@every_policy
def test_a_second_sweep_has_nothing_to_repair(make: PolicyFactory) -> None:
    policy = grown(make, 4, 200, seed=2)
    for number in range(0, 200, 3):
        policy.leave(node(number))
    policy.sweep()
    links = links_of(policy)
    policy.sweep()
    assert len(links_of(policy)) == len(links)
    assert is_connected(policy)


@every_policy
def test_a_successor_adopts_what_both_ends_claim(make: PolicyFactory) -> None:
    old = grown(make, 4, 300, seed=6)
    new = make(4, Random(7))
    for pair in sorted(links_of(old)):
        assert new.adopt(pair.b, pair.a)
        assert new.adopt(pair.a, pair.b), "told twice, once by either end"
    new.check_invariants()
    assert links_of(new) == links_of(old)
    changes = new.join(node(300))
    assert all(node(300) in (pair.a, pair.b) for pair in changes.added)


@every_policy
def test_adoption_stops_at_the_degree(make: PolicyFactory) -> None:
    policy = make(3, Random(1))
    assert [policy.adopt(node(0), node(number)) for number in range(1, 6)] == [True] * 3 + [
        False
    ] * 2
    assert policy.neighbours(node(0)) == (node(1), node(2), node(3))
    policy.check_invariants()
    policy.sweep()
    assert_regular(policy)
    assert is_connected(policy)
    with pytest.raises(UsageError, match="itself"):
        policy.adopt(node(7), node(7))


@every_policy
def test_a_successor_that_adopts_half_of_the_links_fills_the_rest(make: PolicyFactory) -> None:
    old = grown(make, 4, 2000, seed=6)
    new = make(4, Random(7))
    for pair in sorted(links_of(old))[::2]:
        new.adopt(pair.a, pair.b)
    changes = new.sweep()
    assert not set(changes.added) & set(changes.removed)
    new.check_invariants()
    assert_regular(new)
    assert is_connected(new)


@every_policy
def test_on_hold_nothing_is_filled_until_the_sweep(make: PolicyFactory) -> None:
    policy = grown(make, 4, 30, seed=2)
    policy.hold()
    gone, failed = node(3), next(iter(links_of(policy)))
    assert policy.join(node(100)) == LinkChanges()
    assert policy.link_failed(failed.a, failed.b) == LinkChanges(removed=(failed,))
    assert policy.leave(gone).added == ()
    assert policy.neighbours(node(100)) == ()
    assert policy.sweep().added
    assert_regular(policy)
    assert len(policy.join(node(101)).added) == 4, "and then as always"


@every_policy
def test_a_node_is_placed_between_those_that_suit_and_others_keep_their_slots(
    make: PolicyFactory,
) -> None:
    policy = grown(make, 4, 30, seed=2)
    policy.hold()
    open_pair = next(iter(links_of(policy)))
    policy.link_failed(open_pair.a, open_pair.b)
    policy.join(node(100))
    assert policy.place(node(100), lambda other: False) == LinkChanges()
    changes = policy.place(node(100), lambda other: other not in (open_pair.a, open_pair.b))
    assert len(changes.added) == 4
    assert len(changes.removed) == 2
    assert not {open_pair.a, open_pair.b} & set(changes.touched())


@every_policy
def test_misuse_raises_and_late_reports_change_nothing(make: PolicyFactory) -> None:
    policy = grown(make, 4, 20, seed=1)
    links = links_of(policy)
    with pytest.raises(UsageError, match="already"):
        policy.join(node(3))
    with pytest.raises(UsageError, match="not in the graph"):
        policy.leave(node(99))
    with pytest.raises(UsageError, match="not in the graph"):
        policy.neighbours(node(99))
    strangers = [number for number in range(1, 20) if pair_of(node(0), node(number)) not in links]
    assert policy.link_failed(node(0), node(strangers[0])) == LinkChanges()
    assert policy.link_failed(node(0), node(99)) == LinkChanges()
    assert policy.link_failed(node(99), node(0)) == LinkChanges()
    assert links_of(policy) == links


def test_a_history_depends_on_the_seed_only() -> None:
    here = [history_digest(make, seed) for make in POLICIES.values() for seed in range(4)]
    assert len(set(here)) == len(here)
    script = (
        "from tests.support.policy_history import POLICIES, history_digest; "
        "print(*(history_digest(make, seed) for make in POLICIES.values() for seed in range(4)))"
    )
    for hash_seed in ("0", "1", "4242"):
        result = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.split() == here
