"""The policy that knows delays: what it must never do, in any order of events, and how often."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from shoal.base.ids import NodeId
from shoal.base.units import S_NS, US_NS
from shoal.protocols.streams.config import PROBES_MAX, RTT_US_MAX
from shoal.protocols.streams.topology.aware_policy import (
    FIRST_PROBES,
    KEPT_ONE_IN,
    KEPT_SPARE,
    NEAR_PROBES,
    NEAR_ROUNDS,
    ROUND_MAX_NS,
    ROUND_NS,
    SWAPS_PER_MINUTE,
    AwarePolicy,
)
from shoal.protocols.streams.topology.policy import Improvement, LinkChanges, Pair, TopologyPolicy
from tests.protocols.streams.test_topology_policy import (
    PolicyMachine,
    assert_regular,
    is_connected,
    links_of,
)
from tests.support.learning import Learning, over_aws
from tests.support.streams import node

NONSENSE_US = st.sampled_from([0, 1, 700, 80_000, RTT_US_MAX])


def everybody(member: NodeId) -> bool:
    return True


def kept_by(policy: AwarePolicy) -> set[Pair]:
    """Links that it keeps, as far as they are there."""
    return {Pair(*link) for link in policy._kept} & links_of(policy)


class AwareMachine(PolicyMachine):
    """Whatever other policies go through, and words, true or not, and rounds of improvement."""

    make = AwarePolicy
    policy: AwarePolicy
    now_ns = 0
    swaps = 0

    @precondition(lambda self: len(self.members) >= 2)
    @rule(data=st.data(), share=st.floats(0, 1))
    def tell(self, data: st.DataObject, share: float) -> None:
        """Each link is told of, from either end, or from none; here and there a probe is."""
        rng = Random(data.draw(st.integers(0, 2**32)))
        rtt_us = data.draw(st.lists(NONSENSE_US | st.integers(0, 400_000), min_size=1, max_size=9))
        pairs = [(p.a, p.b) for p in sorted(self.links)]
        pairs += [(b, a) for a, b in pairs]
        pairs += [(a, b) for a, b in (rng.sample(self.members, 2) for _ in range(20))]
        for a, b in pairs:
            if rng.random() < share:
                changes = self.policy.delay_learned(a, b, rng.choice(rtt_us) * US_NS)
                assert changes == LinkChanges()

    @rule(data=st.data(), busy=st.floats(0, 1), pause_ns=st.integers(0, 3 * ROUND_MAX_NS))
    def improve(self, data: st.DataObject, busy: float, pause_ns: int) -> None:
        rng = Random(data.draw(st.integers(0, 2**32)))
        unsettled = {member for member in self.members if rng.random() < busy}
        kept, before = kept_by(self.policy), Counter(e for p in self.links for e in (p.a, p.b))
        self.now_ns += pause_ns
        improved = self.policy.improve(lambda member: member not in unsettled, self.now_ns)
        changes = improved.changes
        self.apply(changes)
        self.swaps += len(changes.added) // 2
        assert len(changes.added) == len(changes.removed)
        assert not unsettled & set(changes.touched())
        assert not kept & set(changes.removed)
        assert Counter(e for p in self.links for e in (p.a, p.b)) == before, "all keep their degree"
        assert len(changes.touched()) == 2 * len(changes.added), "no two exchanges touch"
        assert len(changes.added) // 2 <= max(1.0, len(self.members) / 6)
        self.check_probes(improved)

    def check_probes(self, improved: Improvement) -> None:
        asked = [member for member, _ in improved.probes]
        assert len(asked) == len(set(asked))
        for member, others in improved.probes:
            assert 1 <= len(others) == len(set(others)) <= PROBES_MAX
            assert {member, *others} <= set(self.members)
            assert member not in others

    def teardown(self) -> None:
        if hasattr(self, "policy"):
            self.sweep()
            self.nothing_impossible()


@pytest.mark.parametrize("degree", [3, 4])
def test_any_order_of_events(degree: int) -> None:
    machine = type("Machine", (AwareMachine,), {"degree": degree})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


# Rounds


def grown(count: int, seed: int = 1) -> AwarePolicy:
    policy = AwarePolicy(4, Random(seed))
    for number in range(count):
        policy.join(node(number))
    return policy


def test_it_is_a_topology_policy() -> None:
    policy: TopologyPolicy = AwarePolicy(4, Random(1))
    assert policy.degree == 4


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6])
def test_the_smallest_overlays_have_nothing_to_exchange(count: int) -> None:
    policy = grown(count)
    for number in range(1, 20):
        for member in policy.nodes:
            for other in policy.neighbours(member):
                policy.delay_learned(member, other, number * S_NS // 10)
        assert policy.improve(everybody, number * ROUND_NS).changes == LinkChanges()
    assert_regular(policy)


def test_rounds_that_find_nothing_become_rare_until_somebody_comes_or_goes() -> None:
    policy = grown(7)
    pauses: list[int] = []
    for number in range(1, 80):
        policy.improve(everybody, number * S_NS)
        pauses.append(policy.pause_ns or 0)
    assert pauses[0] == ROUND_NS, "all were just asked to probe"
    assert pauses[-1] == ROUND_MAX_NS
    assert pauses == sorted(pauses)
    policy.join(node(100))
    assert policy.pause_ns == ROUND_NS
    for number in range(80, 160):
        policy.improve(everybody, number * S_NS)
    assert policy.pause_ns == ROUND_MAX_NS
    policy.leave(node(3))
    assert policy.pause_ns == ROUND_NS
    policy.leave(node(2))
    assert policy.pause_ns is None, "all are linked to nearly all others: nothing to choose"


def test_members_are_not_moved_more_often_than_once_a_minute_in_the_mean() -> None:
    learning = Learning(over_aws(60), seed=3)
    learning.run(61)
    swaps = sum(len(improved.changes.added) // 2 for improved in learning.rounds)
    assert 20 < swaps <= 60 * SWAPS_PER_MINUTE


def test_nothing_moves_while_a_successor_learns_the_links() -> None:
    learning = Learning(over_aws(40), seed=3)
    learning.run(10)
    policy = learning.policy
    policy.hold()
    policy.join(node(200))
    policy.leave(node(3))
    before = links_of(policy)
    for number in range(20):
        improved = policy.improve(everybody, (20 + 10 * number) * S_NS)
        assert improved.changes == LinkChanges()
    assert links_of(policy) == before
    policy.sweep()
    assert_regular(policy)


# Links that are kept


def test_one_newcomer_in_four_keeps_one_of_its_first_links() -> None:
    kept = 0
    for seed in range(10):
        policy = AwarePolicy(4, Random(seed))
        for number in range(200):
            before = len(policy._kept)
            policy.join(node(number))
            assert len(policy._kept) - before in (0, 1)
            kept += len(policy._kept) - before
    assert abs(kept / 2000 - 1 / KEPT_ONE_IN) < 0.05


def test_links_that_are_gone_are_not_kept_for_ever_in_small_streams() -> None:
    policy = AwarePolicy(4, Random(1))
    policy.join(node(0))
    for number in range(1, 2000):
        policy.join(node(number))
        policy.leave(node(number))
    assert len(policy._kept) <= KEPT_SPARE + len(policy._graph.links) + 1


def test_kept_links_stay_whatever_is_said_of_them() -> None:
    delays = over_aws(64)
    kept: set[Pair] = set()

    def slander(a: int, b: int) -> float:
        pair = Pair(node(min(a, b)), node(max(a, b)))
        return 400.0 if pair in kept else float(delays[a, b])

    learning = Learning(delays, seed=5, word=slander)
    learning.run(6)
    kept |= kept_by(learning.policy)
    assert len(kept) > 4
    learning.run(120)
    assert kept <= links_of(learning.policy)
    others = [p for improved in learning.rounds for p in improved.changes.removed]
    assert len(others) > 64, "while others were moved"


# Probes


def test_newcomers_measure_anybody_first_and_then_those_who_are_near() -> None:
    delays = over_aws(60)
    learning = Learning(delays, seed=2)
    learning.run(40)
    asked: dict[NodeId, list[list[NodeId]]] = {}
    for improved in learning.rounds:
        for member, others in improved.probes:
            asked.setdefault(member, []).append(list(others))
    first, later = [], []
    number = {member: at for at, member in enumerate(learning.nodes)}
    for member, times in asked.items():
        assert len(times) <= 1 + NEAR_ROUNDS
        assert all(len(others) <= FIRST_PROBES for others in times[:1])
        assert all(len(others) <= NEAR_PROBES for others in times[1:])
        named = [other for others in times for other in others]
        assert len(named) == len(set(named)), "nobody is measured twice"
        first += [delays[number[member], number[other]] for other in times[0]]
        later += [delays[number[member], number[other]] for others in times[1:] for other in others]
    assert len(asked) == 60
    assert sum(later) / len(later) < 0.6 * sum(first) / len(first)
    quiet = learning.rounds[-3:]
    assert all(improved.probes == () for improved in quiet), "then they are left alone"


def test_whoever_never_answers_is_asked_once() -> None:
    policy = grown(30)
    asked: Counter[NodeId] = Counter()
    for number in range(1, 20):
        asked.update(member for member, _ in policy.improve(everybody, number * S_NS).probes)
    assert set(asked.values()) == {1}
    assert len(asked) == 30


def test_who_comes_back_is_a_newcomer_and_nobody_inherits_its_words() -> None:
    learning = Learning(over_aws(30), seed=2)
    learning.run(30)
    policy = learning.policy
    slot = policy._slots[node(7)]
    assert len(policy._map.round_trips.known(slot)) >= 4
    policy.leave(node(7))
    policy.join(node(100))
    policy.join(node(7))
    probes = dict(policy.improve(everybody, 100 * S_NS).probes)
    assert set(probes) == {node(7), node(100)}
    assert policy._slots[node(100)] == slot, "or this test shows nothing"
    assert policy._map.round_trips.known(slot).tolist() == []
    told_of = {
        p for each in policy.nodes for p in policy._map.round_trips.known(policy._slots[each])
    }
    assert slot not in told_of


def test_slots_are_given_again_also_if_many_come_and_go_between_rounds() -> None:
    learning = Learning(over_aws(30), seed=3)
    learning.run(10)
    policy = learning.policy
    for number in range(100, 1000):
        policy.join(node(number))
        policy.delay_learned(node(number), node(1), 10_000_000)
        policy.leave(node(number))
    assert policy._map.round_trips.capacity <= 128
    learning.run(5)
    told_of = {
        int(p) for each in policy.nodes for p in policy._map.round_trips.known(policy._slots[each])
    }
    assert told_of <= set(policy._slots.values())


# Determinism


def test_a_seed_is_one_history() -> None:
    histories = []
    for seed in (4, 4, 5):
        learning = Learning(over_aws(40), seed)
        learning.run(30)
        learning.policy.leave(node(5))
        learning.run(10)
        histories.append(learning.rounds)
        assert is_connected(learning.policy)
    assert histories[0] == histories[1] != histories[2]
