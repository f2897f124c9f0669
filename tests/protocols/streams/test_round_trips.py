"""Words on round trips: how many are kept, for how long, and which of two counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.streams.topology.delay_reports import (
    HALF_LIFE_NS,
    WORDS_MAX,
    Pairs,
    RoundTrips,
)

CAPACITY = 40
EVERYBODY = np.ones(CAPACITY, bool)

Told = dict[tuple[int, int], float]


def told(words: Told, now_ns: int = 0) -> RoundTrips:
    trips = RoundTrips()
    trips.grow(CAPACITY)
    for (slot, peer), ms in words.items():
        trips.learn(slot, peer, ms, now_ns)
    return trips


def said(trips: RoundTrips) -> Told:
    words = trips.words(0)
    pairs = list(zip(words.slot.tolist(), words.peer.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs), "nobody has two words on the same"
    return dict(zip(pairs, words.ms.tolist(), strict=True))


def delays(pairs: Pairs) -> Told:
    both = list(zip(pairs.a.tolist(), pairs.b.tolist(), strict=True))
    assert len(set(both)) == len(both), "a pair is there once"
    assert np.all(np.diff(pairs.key) > 0)
    return dict(zip(both, pairs.ms.tolist(), strict=True))


def test_nothing_was_said_yet() -> None:
    trips = RoundTrips()
    assert said(trips) == {}
    assert delays(trips.pairs(trips.words(5), np.zeros(0, bool))) == {}


def test_the_oldest_word_makes_room_for_the_newest() -> None:
    trips = told({})
    for number in range(WORDS_MAX):
        trips.learn(0, 1 + number, 5.0, now_ns=100 + number)
    trips.learn(0, 1, 6.0, now_ns=200)  # said anew: the second is the oldest now
    trips.learn(0, 30, 7.0, now_ns=201)
    assert sorted(trips.known(0).tolist()) == [1, *range(3, WORDS_MAX + 1), 30]
    assert said(trips)[0, 1] == 6.0


steps = st.one_of(
    st.tuples(st.integers(0, 2), st.integers(3, CAPACITY - 1), st.floats(0, 400)),
    st.tuples(st.integers(3, CAPACITY - 1), st.integers(0, 2), st.floats(0, 400)),
    st.integers(0, CAPACITY - 1),
)


@given(st.lists(steps, max_size=150))
def test_each_has_its_newest_words_on_those_who_are_there(
    history: list[tuple[int, int, float] | int],
) -> None:
    trips = told({})
    model: dict[int, dict[int, float]] = {slot: {} for slot in range(CAPACITY)}
    for now_ns, step in enumerate(history):
        if isinstance(step, int):
            trips.leave(step)
            trips.forget(np.array([step]))
            model[step] = {}
            for row in model.values():
                row.pop(step, None)
            continue
        slot, peer, ms = step
        trips.learn(slot, peer, ms, now_ns)
        row = model[slot]
        row.pop(peer, None)
        if len(row) == WORDS_MAX:
            del row[next(iter(row))]
        row[peer] = ms
    assert said(trips) == {(s, p): ms for s, row in model.items() for p, ms in row.items()}
    for slot, row in model.items():
        assert sorted(trips.known(slot).tolist()) == sorted(row)


def test_who_is_gone_is_forgotten_in_both_directions() -> None:
    trips = told({(0, 1): 10.0, (1, 0): 11.0, (2, 0): 12.0, (2, 1): 13.0})
    trips.leave(0)
    trips.forget(np.array([0]))
    assert said(trips) == {(2, 1): 13.0}
    trips.learn(3, 0, 20.0, now_ns=1)  # somebody else has the slot now
    assert said(trips) == {(2, 1): 13.0, (3, 0): 20.0}


def test_growing_loses_nothing() -> None:
    trips = told({(0, 39): 10.0, (39, 0): 11.0})
    trips.grow(100)
    trips.learn(99, 0, 12.0, now_ns=1)
    assert trips.capacity == 100
    assert said(trips) == {(0, 39): 10.0, (39, 0): 11.0, (99, 0): 12.0}


def test_a_word_comes_with_what_the_other_says() -> None:
    words = told({(0, 1): 10.0, (1, 0): 11.0, (1, 2): 12.0}).words(0)
    assert words.slot.tolist() == [0, 1, 1]
    assert words.peer.tolist() == [1, 0, 2]
    assert words.answer_ms[:2].tolist() == [11.0, 10.0]
    assert np.isnan(words.answer_ms[2])


pair_words = st.dictionaries(
    st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1]),
    st.floats(0, 400),
    max_size=40,
)


@given(words=pair_words, liars=st.sets(st.integers(0, 7)))
def test_of_two_words_that_are_trusted_the_larger_one_counts(words: Told, liars: set[int]) -> None:
    trips = told(words)
    trusted = EVERYBODY.copy()
    trusted[sorted(liars)] = False
    expected: Told = {}
    for (slot, peer), ms in words.items():
        if slot not in liars:
            pair = (min(slot, peer), max(slot, peer))
            expected[pair] = max(ms, expected.get(pair, 0.0))
    assert delays(trips.pairs(trips.words(0), trusted)) == expected


@pytest.mark.parametrize(
    ("age_ns", "weight"),
    [(0, 1.0), (-5, 1.0), (HALF_LIFE_NS, 0.5), (3 * HALF_LIFE_NS, 0.25)],
)
def test_an_older_word_counts_less(age_ns: int, weight: float) -> None:
    now_ns = 10 * HALF_LIFE_NS
    trips = told({(5, 2): 10.0}, now_ns - age_ns)
    words = trips.words(now_ns)
    assert words.weight.tolist() == [weight]
    assert trips.pairs(words, EVERYBODY).weight.tolist() == [weight]
