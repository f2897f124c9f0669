"""A tracker that takes a stream over: what it believes, and whom it tells what when."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Started, TimerFired
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.messages import Instruction, Join, Leave, Report, Status
from shoal.protocols.streams.topology.policy import LinkChanges, Pair, pair_of
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.stream_record import Takeover
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    MALLORY,
    NOW_MS,
    STREAM,
    Bench,
    contact,
    node,
    sent,
)

CONFIG = TrackerConfig()
SETTLE = ("settle", STREAM)


class Successor(Bench[Tracker]):
    """A tracker that has just started, and nodes that come with what they have."""

    def __init__(self) -> None:
        super().__init__(Tracker(lambda stream: RandomPolicy(CONFIG.degree, Random(1)), CONFIG))
        self.feed(Started())

    def join(self, peer: NodeId, *claimed: NodeId, epoch: int = 0) -> dict[NodeId, Instruction]:
        effects = self.receive(peer, Join(STREAM, contact(peer), epoch, 0, claimed))
        self.link_up(peer)
        return told(effects)

    def links(self) -> set[Pair]:
        policy = self.machine.streams[STREAM].policy
        return {pair_of(a, b) for a in policy.nodes for b in policy.neighbours(a)}


def told(effects: list[Effect]) -> dict[NodeId, Instruction]:
    return {peer: message for message, peers in sent(effects, Instruction) for peer in peers}


def names(order: Instruction) -> set[NodeId]:
    return {contact.node for contact in order.neighbours}


def overlay(count: int, seed: int = 3) -> dict[NodeId, tuple[NodeId, ...]]:
    """Neighbours of every node in an overlay that some tracker made."""
    policy = RandomPolicy(CONFIG.degree, Random(seed))
    nodes = [node(100 + number) for number in range(count)]
    for each in nodes:
        policy.join(each)
    return {each: policy.neighbours(each) for each in nodes}


# Whom it waits for


def test_nobody_is_told_anything_until_all_who_were_named_have_come() -> None:
    tracker = Successor()
    assert tracker.join(ALICE, BOB, CAROL) == {}
    assert tracker.join(BOB, ALICE, CAROL) == {}
    orders = tracker.join(CAROL, ALICE, BOB)
    assert {peer: names(order) for peer, order in orders.items()} == {
        ALICE: {BOB, CAROL},
        BOB: {ALICE, CAROL},
        CAROL: {ALICE, BOB},
    }
    assert SETTLE not in tracker.timers


def test_a_whole_overlay_is_taken_over_as_it_is() -> None:
    tracker, before = Successor(), overlay(60)
    orders: dict[NodeId, Instruction] = {}
    for peer, neighbours in before.items():
        assert orders == {}, "the last one ends it"
        orders = tracker.join(peer, *neighbours)
    assert {peer: names(order) for peer, order in orders.items()} == {
        peer: set(neighbours) for peer, neighbours in before.items()
    }


def test_those_who_do_not_come_are_waited_for_so_long() -> None:
    tracker, before = Successor(), overlay(60)
    dead = next(iter(before))
    for peer, neighbours in before.items():
        if peer != dead:
            assert tracker.join(peer, *neighbours) == {}
            tracker.now_ns += 10 * MS_NS
    tracker.now_ns -= 10 * MS_NS
    wait_ns = tracker.timers[SETTLE] - tracker.now_ns
    assert wait_ns == CONFIG.settle_ns
    orders = told(tracker.fire(SETTLE))
    assert set(orders) == set(before) - {dead}
    kept = {pair_of(a, b) for a, row in before.items() for b in row if dead not in (a, b)}
    assert len(tracker.links() & kept) >= len(kept) - 2, "its four neighbours are linked anew"
    assert all(len(order.neighbours) == CONFIG.degree for order in orders.values())


def test_the_wait_ends_whoever_keeps_coming() -> None:
    tracker = Successor()
    begun_ns = tracker.now_ns
    for number in range(100):
        tracker.join(node(100 + number), node(1000 + number))
        tracker.advance(100 * MS_NS)
        if tracker.machine.streams[STREAM].takeover is None:
            break
    assert tracker.now_ns - begun_ns <= CONFIG.settle_max_ns + 100 * MS_NS


def test_a_member_that_asks_again_meanwhile_is_not_told_before_the_others() -> None:
    tracker = Successor()
    tracker.join(ALICE, BOB)
    tracker.join(BOB, ALICE, CAROL)
    assert tracker.join(ALICE, BOB) == {}
    assert set(tracker.join(CAROL, BOB)) == {ALICE, BOB, CAROL}


def test_instructions_go_beyond_what_anybody_has_seen() -> None:
    tracker = Successor()
    tracker.join(ALICE, BOB, epoch=NOW_MS + 50)
    orders = tracker.join(BOB, ALICE, epoch=NOW_MS + 90)
    assert min(order.epoch for order in orders.values()) > NOW_MS + 90


def test_one_that_leaves_meanwhile_is_neither_waited_for_nor_linked() -> None:
    tracker = Successor()
    tracker.join(ALICE, BOB, MALLORY)
    tracker.join(BOB, ALICE, CAROL)
    tracker.receive(ALICE, Leave(STREAM))
    orders = tracker.join(CAROL, BOB)
    assert {peer: names(order) for peer, order in orders.items()} == {BOB: {CAROL}, CAROL: {BOB}}


def test_the_sweep_leaves_a_takeover_alone() -> None:
    tracker, before = Successor(), overlay(30)
    some = list(before)[:20]
    for peer in some:
        tracker.join(peer, *before[peer])
    links = tracker.links()
    assert told(tracker.feed(TimerFired("sweep"))) == {}
    assert tracker.links() == links


# Newcomers


def test_a_newcomer_goes_between_nodes_whose_neighbours_are_all_here() -> None:
    tracker, before = Successor(), overlay(60)
    late = list(before)[-1]
    for peer, neighbours in before.items():
        if peer != late:
            tracker.join(peer, *neighbours)
    orders = tracker.join(EVE)
    assert len(orders[EVE].neighbours) == CONFIG.degree
    assert len(orders) == CONFIG.degree + 1
    assert not set(orders) & set(before[late]), "these still wait for their neighbour"
    for peer in names(orders[EVE]):
        assert EVE in names(orders[peer])
        assert len(names(orders[peer]) & set(before[peer])) == CONFIG.degree - 1


def test_a_newcomer_that_is_too_early_waits_for_the_first_that_can_be_told() -> None:
    tracker, before = Successor(), overlay(60)
    peers = list(before)
    tracker.join(peers[0], *before[peers[0]])
    assert tracker.join(EVE) == {}
    placed_after = 0
    for at, peer in enumerate(peers[1:-1], start=2):
        if EVE in tracker.join(peer, *before[peer]):
            placed_after = at
            break
    assert 0 < placed_after < len(peers) - 1


def test_newcomers_that_were_too_early_are_all_placed_when_there_is_room() -> None:
    tracker, before = Successor(), overlay(60)
    peers = list(before)
    tracker.join(peers[0], *before[peers[0]])
    early = [node(200 + number) for number in range(6)]
    for peer in early:
        tracker.join(peer)
    for peer in peers[1:-1]:
        tracker.join(peer, *before[peer])
    state = tracker.machine.streams[STREAM]
    assert state.takeover is not None, "the last one has not come"
    assert all(state.policy.neighbours(peer) for peer in early)


class Picky(RandomPolicy):
    """Finds no place for one node."""

    def place(self, node: NodeId, suits: Callable[[NodeId], bool]) -> LinkChanges:
        return LinkChanges() if node == MALLORY else super().place(node, suits)


def test_a_newcomer_for_whom_there_is_no_place_does_not_hold_up_those_behind_it() -> None:
    policy = Picky(CONFIG.degree, Random(1))
    takeover = Takeover(policy, CONFIG, 0)
    for each, neighbours in (
        (ALICE, (BOB, DAVE)),
        (BOB, (ALICE,)),
        (MALLORY, ()),
        (CAROL, ()),
        (EVE, ()),
    ):
        policy.join(each)
        takeover.came(each, neighbours, 0)
    made = takeover.place()
    assert {peer for changes in made for peer in changes.touched()} >= {CAROL, EVE}
    assert not takeover.is_over, "one is still waited for"


def test_a_liar_does_not_hold_up_newcomers() -> None:
    tracker = Successor()
    tracker.join(MALLORY, node(666), node(667))
    tracker.join(ALICE)
    assert names(tracker.join(BOB)[BOB]) == {ALICE}


def test_a_newcomer_before_all_others_does_not_keep_them_from_being_taken_over() -> None:
    tracker, before = Successor(), overlay(30)
    tracker.join(EVE)
    for peer, neighbours in before.items():
        tracker.join(peer, *neighbours)
    links = {pair_of(a, b) for a, row in before.items() for b in row}
    assert len(tracker.links() & links) >= len(links) - 2


# What is believed


def test_a_link_that_only_one_end_names_is_not_taken_over() -> None:
    tracker = Successor()
    tracker.join(MALLORY, ALICE, BOB, CAROL)
    tracker.join(ALICE, BOB)
    tracker.join(BOB, ALICE)
    members = tracker.machine.streams[STREAM].policy
    assert MALLORY not in members.neighbours(ALICE)
    assert members.neighbours(ALICE) == (BOB,)


@pytest.mark.parametrize("count", [4, 64])
def test_no_claim_goes_beyond_the_degree(count: int) -> None:
    tracker = Successor()
    crowd = [node(100 + number) for number in range(count)]
    tracker.join(MALLORY, *crowd)
    for peer in crowd:
        tracker.join(peer, MALLORY)
    tracker.advance(CONFIG.settle_max_ns)
    policy = tracker.machine.streams[STREAM].policy
    assert len(policy.neighbours(MALLORY)) == CONFIG.degree


def test_a_stream_that_is_well_known_is_not_put_on_hold_by_a_claim() -> None:
    tracker = Successor()
    for number in range(10):
        tracker.join(node(100 + number))
    tracker.advance(CONFIG.settle_max_ns)
    assert MALLORY in tracker.join(MALLORY, node(666))
    assert tracker.machine.streams[STREAM].takeover is None


def test_naming_oneself_and_the_same_twice_is_harmless() -> None:
    tracker = Successor()
    tracker.join(ALICE, ALICE, BOB, BOB)
    orders = tracker.join(BOB, ALICE, BOB, ALICE)
    assert {peer: names(order) for peer, order in orders.items()} == {ALICE: {BOB}, BOB: {ALICE}}


NODES = [node(100 + number) for number in range(9)]
GHOSTS = [node(900 + number) for number in range(3)]
peers = st.sampled_from(NODES)


class AnyTracker(RuleBasedStateMachine):
    """Joins with any claims, leaves, failures and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Successor()
        self.orders: dict[NodeId, Instruction] = {}
        self.joined: set[NodeId] = set()

    def note(self, effects: list[Effect]) -> None:
        """Of one step, or of several during which members may have gone."""
        for peer, order in told(effects).items():
            before = self.orders.get(peer)
            if before is not None:
                assert (order.epoch, order.counter) >= (before.epoch, before.counter)
            self.orders[peer] = order
            assert len(order.neighbours) <= CONFIG.degree
            assert names(order) <= self.joined, "nobody is linked to a stranger"

    @rule(peer=peers, claims=st.lists(st.sampled_from(NODES + GHOSTS), max_size=6))
    def join(self, peer: NodeId, claims: list[NodeId]) -> None:
        join = Join(STREAM, contact(peer), 0, 0, tuple(claims))
        self.joined.add(peer)
        self.note(self.tracker.receive(peer, join))
        self.note(self.tracker.link_up(peer))

    @rule(peer=peers)
    def leave(self, peer: NodeId) -> None:
        self.note(self.tracker.receive(peer, Leave(STREAM)))

    @rule(peer=peers, missing=peers)
    def status(self, peer: NodeId, missing: NodeId) -> None:
        order = self.orders.get(peer)
        if order is not None:
            connected = tuple(names(order) - {missing})
            status = Status(STREAM, order.epoch, order.counter, connected)
            self.note(self.tracker.receive(peer, status))

    @rule(peer=peers, lost=peers)
    def report(self, peer: NodeId, lost: NodeId) -> None:
        self.note(self.tracker.receive(peer, Report(STREAM, (), (lost,), ())))

    @rule(peer=peers)
    def hang_up(self, peer: NodeId) -> None:
        self.note(self.tracker.link_down(peer))

    @rule(wait_ns=st.sampled_from([100 * MS_NS, S_NS, 7 * S_NS]))
    def wait(self, wait_ns: int) -> None:
        self.note(self.tracker.advance(wait_ns))

    @invariant()
    def a_takeover_ends(self) -> None:
        state = self.tracker.machine.streams.get(STREAM)
        if state is not None and state.takeover is not None:
            assert SETTLE in self.tracker.timers
            assert self.tracker.timers[SETTLE] - self.tracker.now_ns <= CONFIG.settle_ns

    def teardown(self) -> None:
        for _ in range(3):
            self.note(self.tracker.advance(20 * S_NS))
        state = self.tracker.machine.streams.get(STREAM)
        if state is not None:
            full = min(CONFIG.degree, len(state.members) - 1)
            short = [p for p in state.members if len(state.policy.neighbours(p)) < full]
            assert len(short) <= 1
            for peer in state.members:
                assert names(self.orders[peer]) == set(state.policy.neighbours(peer))


def test_any_order_of_claims_and_failures() -> None:
    run_state_machine_as_test(
        AnyTracker, settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
    )


def test_what_dave_says_of_a_takeover_is_kept_apart_from_other_streams() -> None:
    tracker = Successor()
    tracker.join(ALICE, BOB)
    other = Join(type(STREAM)("elsewhere"), contact(DAVE), 0, 0, ())
    assert DAVE in told(tracker.receive(DAVE, other))
