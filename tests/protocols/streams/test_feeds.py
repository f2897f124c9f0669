"""Feeds, copy by copy: who is asked to hold a chain back, who is asked for it again, and when."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import Effect
from shoal.protocols.streams.config import HEADS_MAX
from shoal.protocols.streams.delivery import chain_feeds as module
from shoal.protocols.streams.delivery.chain_feeds import (
    ANSWER_NS,
    COUNTED_MAX,
    IGNORED,
    LATE_IN_A_ROW,
    ON_TRIAL,
    UNANSWERED_MAX,
    Feeds,
)
from shoal.protocols.streams.messages import Feed
from shoal.protocols.streams.signed_message import Chain, Number
from tests.support.streams import ALICE, BOB, CAROL, DAVE, NOW_NS, STREAM, node, reasons, sent

CHAIN: Chain = (CAROL, 0, "c")
OTHER: Chain = (CAROL, 1, "c")


def hold_back(*peers: NodeId, chains: tuple[Chain, ...] = (CHAIN,)) -> list[object]:
    return [(Feed(STREAM, chains, False), peers)]


def resume(*peers: NodeId, chains: tuple[Chain, ...] = (CHAIN,)) -> list[object]:
    return [(Feed(STREAM, chains, True), peers)]


class Chained:
    """A chain whose messages come from some neighbours, in the order in which they are named."""

    def __init__(self, redundant: int | None = 0, chain: Chain = CHAIN) -> None:
        self.feeds = Feeds(STREAM, redundant)
        self.chain = chain
        self.number = 0

    def come(self, first: NodeId, *others: NodeId) -> list[Effect]:
        """One message, from the first of these and then from all others."""
        self.number += 1
        effects = self.feeds.first(self.chain, (self.number, 0), first)
        for peer in others:
            effects += self.feeds.again(self.chain, (self.number, 0), peer)
        return effects

    def late(self, times: int, peer: NodeId = BOB) -> list[Effect]:
        """Alice is first and somebody last, so many times."""
        return [effect for _ in range(times) for effect in self.come(ALICE, peer)]


# Held back


def test_a_link_that_is_late_a_few_times_in_a_row_is_asked_for_names_only() -> None:
    chained = Chained()
    assert chained.late(LATE_IN_A_ROW - 1) == []
    assert sent(chained.late(1)) == hold_back(BOB)


def test_a_link_that_was_first_in_between_goes_on() -> None:
    chained = Chained()
    for _ in range(5):
        assert chained.late(LATE_IN_A_ROW - 1) == []
        assert chained.come(BOB, ALICE) == []


def test_one_redundant_feed_is_the_second_fastest() -> None:
    chained = Chained(redundant=1)
    for _ in range(LATE_IN_A_ROW - 1):
        assert chained.come(ALICE, BOB, DAVE) == []
    assert sent(chained.come(ALICE, BOB, DAVE)) == hold_back(DAVE)
    for _ in range(20):
        assert chained.come(ALICE, BOB) == []


def test_a_copy_of_something_long_past_is_late_however_many_are_wanted() -> None:
    chained = Chained(redundant=2)
    for _ in range(COUNTED_MAX + LATE_IN_A_ROW):
        chained.come(ALICE)
    effects = [
        effect
        for number in range(1, 1 + LATE_IN_A_ROW)
        for effect in chained.feeds.again(CHAIN, (number, 0), BOB)
    ]
    assert sent(effects) == hold_back(BOB)


def test_copies_under_way_when_a_link_is_asked_do_not_have_it_asked_each_time() -> None:
    chained = Chained()
    assert len(sent(chained.late(100))) == 5  # at 4, 8, 16, 32 and 64


def test_a_link_that_does_not_heed_is_counted() -> None:
    chained = Chained()
    assert reasons(chained.late(IGNORED - 1)) == []
    assert reasons(chained.late(1)) == ["not-held-back"]
    assert reasons(chained.late(IGNORED)) == ["not-held-back"]


def test_own_messages_need_no_copies_at_all() -> None:
    feeds = Feeds(STREAM, 3)
    for number in range(1, LATE_IN_A_ROW):
        assert feeds.own(CHAIN) == []
        assert feeds.again(CHAIN, (number, 0), ALICE) == []
    assert sent(feeds.again(CHAIN, (LATE_IN_A_ROW, 0), ALICE)) == hold_back(ALICE)
    feeds.again(CHAIN, (1, 0), BOB)
    assert feeds.lost([BOB]) == []


def test_chains_are_told_apart() -> None:
    chained = Chained()
    chained.late(LATE_IN_A_ROW)
    chained.feeds.first(OTHER, (1, 0), BOB)
    assert chained.feeds.again(OTHER, (1, 0), ALICE) == []
    assert sent(chained.feeds.resume(CHAIN)) == resume(BOB)
    assert chained.feeds.resume(OTHER) == []


# Asked for again


def test_a_gap_brings_all_back_once() -> None:
    chained = Chained()
    for _ in range(LATE_IN_A_ROW):
        chained.come(ALICE, BOB, DAVE)
    assert sent(chained.feeds.resume(CHAIN)) == resume(BOB, DAVE)
    assert chained.feeds.resume(CHAIN) == []
    assert chained.feeds.resume(OTHER) == []


def test_a_link_that_is_back_is_on_trial() -> None:
    chained = Chained()
    chained.late(LATE_IN_A_ROW)
    chained.feeds.resume(CHAIN)
    assert chained.late(LATE_IN_A_ROW - ON_TRIAL - 1) == []
    assert sent(chained.late(1)) == hold_back(BOB)


def test_a_link_that_is_first_though_held_back_is_asked_to_go_on() -> None:
    chained = Chained()
    chained.late(LATE_IN_A_ROW)
    assert sent(chained.come(BOB, ALICE)) == resume(BOB)
    assert chained.come(BOB, ALICE) == []


def test_when_a_feed_is_lost_the_others_are_asked_at_once() -> None:
    chained = Chained()
    for _ in range(LATE_IN_A_ROW):
        chained.come(ALICE, BOB, DAVE)
    effects = chained.feeds.lost([ALICE])
    assert sent(effects) == resume(BOB) + resume(DAVE)
    assert chained.feeds.resume(CHAIN) == []  # they are back


def test_whoever_was_held_back_or_brought_nothing_is_no_loss() -> None:
    chained = Chained()
    for _ in range(LATE_IN_A_ROW):
        chained.come(ALICE, BOB, DAVE)
    assert chained.feeds.lost([BOB, node(99)]) == []
    assert sent(chained.feeds.resume(CHAIN)) == resume(DAVE)  # and not Bob, who is gone


def test_the_chains_of_a_lost_feed_go_into_few_messages() -> None:
    chained = Chained()
    many = HEADS_MAX + 1
    for number in range(many):
        chained.chain = (CAROL, 0, f"{number}")
        chained.late(LATE_IN_A_ROW)
    asked = sent(chained.feeds.lost([ALICE]))
    assert [len(feed.chains) for feed, _ in asked] == [HEADS_MAX, 1]
    assert {peers for _, peers in asked} == {(BOB,)}
    assert len({chain for feed, _ in asked for chain in feed.chains}) == many


def test_whoever_announces_what_we_lack_feeds_on_trial() -> None:
    chained = Chained()
    chained.late(LATE_IN_A_ROW)
    assert chained.feeds.wanted(CHAIN, BOB, NOW_NS) == []
    assert chained.feeds.resume(CHAIN) == []  # it is not held back any more
    assert chained.late(LATE_IN_A_ROW - ON_TRIAL - 1) == []
    assert sent(chained.late(1)) == hold_back(BOB)


def test_an_announcement_nobody_asked_for_is_counted() -> None:
    assert reasons(Feeds(STREAM).wanted(CHAIN, BOB, NOW_NS)) == ["unasked-announce"]
    assert reasons(Feeds(STREAM, 0).wanted(CHAIN, BOB, NOW_NS)) == ["unasked-announce"]


def test_whoever_announces_and_never_sends_is_counted() -> None:
    chained = Chained()
    chained.late(LATE_IN_A_ROW)
    for times in range(4 * UNANSWERED_MAX):
        effects = chained.feeds.wanted(CHAIN, BOB, NOW_NS + times)
        assert effects == []  # many may be under way
    late_ns = NOW_NS + ANSWER_NS
    assert reasons(chained.feeds.wanted(CHAIN, BOB, late_ns)) == ["announced-not-sent"]
    assert chained.feeds.wanted(CHAIN, BOB, late_ns) == []


@pytest.mark.parametrize("first", [ALICE, BOB])
def test_whoever_sends_what_it_announced_is_not(first: NodeId) -> None:
    chained = Chained()
    chained.late(LATE_IN_A_ROW)
    for second in range(60):
        assert chained.feeds.wanted(CHAIN, BOB, NOW_NS + second * S_NS) == []
        chained.come(first, BOB if first == ALICE else ALICE)


# What others want


def test_a_neighbour_is_told_names_until_it_wants_messages_again() -> None:
    feeds = Feeds(STREAM)
    feeds.told(ALICE, (CHAIN, OTHER), wanted=False)
    feeds.told(BOB, (CHAIN,), wanted=False)
    assert feeds.names_only == {CHAIN: {ALICE, BOB}, OTHER: {ALICE}}
    feeds.told(ALICE, (CHAIN,), wanted=True)
    feeds.told(DAVE, (CHAIN,), wanted=True)  # it gets them anyway
    assert feeds.names_only == {CHAIN: {BOB}, OTHER: {ALICE}}
    feeds.lost([ALICE])
    assert feeds.names_only == {CHAIN: {BOB}}


def test_one_neighbour_cannot_take_the_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHAINS_MAX", 8)
    feeds = Feeds(STREAM)
    feeds.told(ALICE, (CHAIN,), wanted=False)
    feeds.told(BOB, [(BOB, 0, f"{number}") for number in range(1000)], wanted=False)
    assert len(feeds.names_only) == 8 + 1
    assert feeds.names_only[CHAIN] == {ALICE}
    assert (BOB, 0, "999") in feeds.names_only  # the last ones count


def test_the_oldest_chains_go_back_to_flooding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHAINS_MAX", 2)
    chained = Chained()
    chained.late(LATE_IN_A_ROW)
    assert chained.feeds.first(OTHER, (1, 0), ALICE) == []
    assert sent(chained.feeds.first((CAROL, 2, "c"), (1, 0), ALICE)) == resume(BOB)
    assert chained.feeds.again(CHAIN, (1, 0), BOB) == []


# Any order of all of these


class _Neighbourhood(RuleBasedStateMachine):
    """Neighbours that do as they are told, against what they were told."""

    peers = st.sampled_from([ALICE, BOB, DAVE])
    some = st.sampled_from([CHAIN, OTHER])

    def __init__(self) -> None:
        super().__init__()
        self.feeds = Feeds(STREAM, 1)
        self.held: dict[Chain, set[NodeId]] = {CHAIN: set(), OTHER: set()}
        self.late: dict[tuple[Chain, NodeId], int] = {}
        self.wishes: set[tuple[Chain, NodeId]] = set()
        self.number = 0

    def obey(self, effects: Iterable[Effect]) -> None:
        for feed, peers in sent(effects):
            for chain in feed.chains:
                for peer in peers:
                    if feed.wanted:
                        assert peer in self.held[chain]
                        self.held[chain].discard(peer)
                    else:
                        assert self.late[chain, peer] >= LATE_IN_A_ROW - ON_TRIAL
                        self.held[chain].add(peer)

    @rule(
        chain=some,
        order=st.permutations([ALICE, BOB, DAVE]),
        lost=st.integers(0, 2),
        times=st.integers(1, LATE_IN_A_ROW + 1),
    )
    def come(self, chain: Chain, order: list[NodeId], lost: int, times: int) -> None:
        """Messages come from all who send this chain, but for some whose copies are lost."""
        for _ in range(times):
            self.one_comes(chain, order, lost)

    def one_comes(self, chain: Chain, order: list[NodeId], lost: int) -> None:
        self.number += 1
        number: Number = (self.number, 0)
        senders = [peer for peer in order if peer not in self.held[chain]][lost:]
        for place, peer in enumerate(senders):
            useful = place < 2
            before = self.late.get((chain, peer), 0)
            self.late[chain, peer] = 0 if useful else before + 1
            take = self.feeds.first if place == 0 else self.feeds.again
            self.obey(take(chain, number, peer))

    @rule(chain=some)
    def gap(self, chain: Chain) -> None:
        self.obey(self.feeds.resume(chain))
        assert not self.held[chain]

    @rule(chain=some, peer=peers)
    def announced(self, chain: Chain, peer: NodeId) -> None:
        """A neighbour that holds back has what we lack: a Want has it feed again."""
        if peer in self.held[chain]:
            assert not reasons(self.feeds.wanted(chain, peer, NOW_NS))
            self.held[chain].discard(peer)

    @rule(peer=peers)
    def lose(self, peer: NodeId) -> None:
        """The link breaks and comes back: it feeds everything, and was told nothing."""
        fed = [c for c in self.held if (c, peer) in self.late and peer not in self.held[c]]
        for chain in self.held:
            self.held[chain].discard(peer)
        self.obey(self.feeds.lost([peer]))
        assert not any(self.held[chain] for chain in fed)
        self.late = {key: late for key, late in self.late.items() if key[1] != peer}
        self.wishes = {wish for wish in self.wishes if wish[1] != peer}

    @rule(chain=some, peer=peers, wanted=st.booleans())
    def told(self, chain: Chain, peer: NodeId, wanted: bool) -> None:
        self.feeds.told(peer, (chain,), wanted=wanted)
        (self.wishes.discard if wanted else self.wishes.add)((chain, peer))

    @invariant()
    def two_are_left(self) -> None:
        """Who is held back was late: somebody else was first, and another second."""
        assert all(len(held) <= 1 for held in self.held.values())

    @invariant()
    def names_go_to_whoever_wants_them(self) -> None:
        told = {(c, peer) for c, peers in self.feeds.names_only.items() for peer in peers}
        assert told == self.wishes


def test_nobody_is_held_back_but_the_late_and_all_are_back_when_it_matters() -> None:
    run_state_machine_as_test(
        _Neighbourhood, settings=settings(max_examples=100, stateful_step_count=40)
    )
