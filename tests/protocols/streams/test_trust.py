"""Whose word counts: liars are found, honest members are not taken for liars."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.streams.topology.delay_reports import (
    WORDS_MIN,
    Floats,
    RoundTrips,
    Slots,
    judge,
)
from tests.support.learning import Matrix, Word, over_aws

COUNT = 24


def judged(
    truth: Matrix, measured: dict[int, list[int]], word: Word, *, expected: Matrix | None = None
) -> list[bool]:
    """Who is trusted when each has said its word on those it measured."""
    trips = RoundTrips()
    trips.grow(len(truth))
    for slot, peers in measured.items():
        for peer in peers:
            trips.learn(slot, peer, word(slot, peer), now_ns=0)
    told = truth if expected is None else expected

    def expect(a: Slots, b: Slots) -> Floats:
        delays: Floats = told[a, b]
        return delays

    trusted = judge(trips.words(0), expect, len(truth))
    assert len(trusted) == len(truth)
    return [bool(each) for each in trusted]


members = st.permutations(range(COUNT)).map(lambda order: order[:10])
everybody_measures = st.fixed_dictionaries(dict.fromkeys(range(COUNT), members)).map(
    lambda rows: {slot: [p for p in row if p != slot] for slot, row in rows.items()}
)
lies = st.sampled_from([0.0, 0.1, 900.0, 30_000.0])


@given(
    measured=everybody_measures,
    liars=st.sets(st.integers(0, COUNT - 1), max_size=COUNT // 4),
    lie_ms=lies,
    noise=st.floats(-0.1, 0.1),
)
def test_most_of_a_liars_words_are_contradicted_and_few_of_an_honest_members(
    measured: dict[int, list[int]], liars: set[int], lie_ms: float, noise: float
) -> None:
    truth = over_aws(COUNT) + 20.0

    def word(slot: int, peer: int) -> float:
        honest = float(truth[slot, peer])
        return lie_ms if slot in liars else honest * (1 + noise * (slot > peer))

    trusted = judged(truth, measured, word)
    for slot, peers in measured.items():
        on_liars = sum(peer in liars for peer in peers)
        if 2 * on_liars < len(peers):
            assert trusted[slot] == (slot not in liars)


@pytest.mark.parametrize(("words", "trusted"), [(WORDS_MIN - 1, True), (WORDS_MIN, False)])
def test_too_few_words_say_nothing(words: int, trusted: bool) -> None:
    truth = np.full((COUNT, COUNT), 50.0)
    measured = {0: list(range(1, 1 + words))}
    assert judged(truth, measured, lambda slot, peer: 500.0)[0] is trusted


def test_silence_is_no_offence() -> None:
    assert all(judged(np.full((COUNT, COUNT), 50.0), {}, lambda slot, peer: 0.0))


@pytest.mark.parametrize(("odd", "trusted"), [(4, True), (5, False)])
def test_half_of_the_words_may_be_odd(odd: int, trusted: bool) -> None:
    # As for somebody that measures as many liars as others.
    truth = np.full((COUNT, COUNT), 50.0)
    found = judged(truth, {0: list(range(1, 9))}, lambda slot, peer: 500.0 if peer <= odd else 50.0)
    assert found[0] is trusted


@pytest.mark.parametrize(
    ("here_ms", "there_ms", "odd"),
    [
        (50.0, 50.0, False),
        (50.0, 62.0, False),  # a quarter of the longer one, and a millisecond
        (50.0, 70.0, True),
        (0.1, 1.2, False),
        (0.1, 1.6, True),
    ],
)
def test_two_ends_of_a_link_agree_but_for_a_quarter(
    here_ms: float, there_ms: float, odd: bool
) -> None:
    truth = np.full((COUNT, COUNT), here_ms)
    measured: dict[int, list[int]] = {0: [1, 2, 3, 4], 1: [0], 2: [0], 3: [0], 4: [0]}
    found = judged(truth, measured, lambda slot, peer: here_ms if slot == 0 else there_ms)
    assert found[0] is not odd


@pytest.mark.parametrize(
    ("said_ms", "odd"), [(50.0, False), (24.0, False), (100.0, False), (12.0, True), (145.0, True)]
)
def test_places_are_believed_less_than_the_other_end(said_ms: float, odd: bool) -> None:
    truth = np.full((COUNT, COUNT), 50.0)
    assert judged(truth, {0: [1, 2, 3, 4]}, lambda slot, peer: said_ms)[0] is not odd


def test_what_the_other_end_says_counts_more_than_places() -> None:
    # A route that fits into no space: both ends measure it, and both are believed.
    measured = {slot: [p for p in range(6) if p != slot] for slot in range(6)}
    wrong = np.full((COUNT, COUNT), 5.0)
    truth = np.full((COUNT, COUNT), 200.0)
    assert all(judged(truth, measured, lambda slot, peer: 200.0, expected=wrong))
