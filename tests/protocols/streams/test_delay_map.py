"""What a tracker expects of any pair: measured if somebody did, told by places if not."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.protocols.streams.topology.delay_map import CAPACITY_MIN, NEARER_MAX, NEARER_MS, DelayMap
from shoal.protocols.streams.topology.delay_reports import Slots
from tests.support.learning import Matrix, Word

COUNT = 60
EVERYBODY = np.arange(COUNT)
ROUNDS = 40


def world(seed: int = 1) -> Matrix:
    """Two towns, 80 ms apart: even numbers live in one, odd ones in the other."""
    rng = np.random.default_rng(seed)
    positions = np.array([[0.0, 0.0], [80.0, 0.0]])[EVERYBODY % 2] + rng.normal(0, 5, (COUNT, 2))
    apart = positions[:, None] - positions[None]
    delays: Matrix = np.sqrt((apart**2).sum(axis=2)) + 1.0
    np.fill_diagonal(delays, 0)
    return delays


def peers_of(slot: int) -> list[int]:
    """Twelve others, half of them in the same town; the same pairs from either end."""
    steps = (1, 2, 8, 11, 14, 23)
    return [(slot + step) % COUNT for sign in (1, -1) for step in (sign * s for s in steps)]


def measured(a: int, b: int) -> bool:
    return b in peers_of(a)


def learned(
    truth: Matrix, word: Word | None = None, *, seed: int = 1, rounds: int = ROUNDS
) -> DelayMap:
    """After everybody has told its words, and some rounds have passed."""
    map = DelayMap(seed)
    for slot in range(COUNT):
        map.reserve(slot)
    for slot in range(COUNT):
        for peer in peers_of(slot):
            ms = float(truth[slot, peer]) if word is None else word(slot, peer)
            map.round_trips.learn(slot, peer, ms, now_ns=0)
    for number in range(rounds):
        if number < 8:
            map.settle(EVERYBODY)
        map.refresh(EVERYBODY, now_ns=number)
    return map


def pairs(wanted: bool) -> tuple[Slots, Slots]:
    a, b = np.nonzero(~np.eye(COUNT, dtype=bool))
    kept = np.array([measured(x, y) == wanted for x, y in zip(a.tolist(), b.tolist(), strict=True)])
    return a[kept], b[kept]


def test_what_was_measured_is_expected_as_it_was() -> None:
    truth = world()
    a, b = pairs(wanted=True)
    assert np.allclose(learned(truth).expect(a, b), truth[a, b])


@pytest.mark.parametrize("seed", range(3))
def test_what_was_not_measured_follows_from_places(seed: int) -> None:
    truth = world(seed)
    a, b = pairs(wanted=False)
    off_ms = np.abs(learned(truth, seed=seed).expect(a, b) - truth[a, b])
    far = truth[a, b] > 40
    assert np.quantile(off_ms[far], 0.9) < 0.1 * 80
    assert np.quantile(off_ms[~far], 0.9) < 8.0  # of a town that is 20 ms wide


def test_a_measured_detour_is_believed_although_places_say_otherwise() -> None:
    truth = world()
    truth[0, 2] = truth[2, 0] = 150.0
    assert learned(truth).expect(np.array([0, 2]), np.array([2, 0])).tolist() == [150.0, 150.0]


def test_two_who_agree_to_be_near_are_not_believed() -> None:
    # Slots 0 and 1 live in different towns, 80 ms apart. Their word moves them somewhat.
    truth = world()

    def word(slot: int, peer: int) -> float:
        return 0.02 if {slot, peer} == {0, 1} else float(truth[slot, peer])

    map = learned(truth, word)
    [expected] = map.expect(np.array([0]), np.array([1])).tolist()
    [by_places] = map._places.expect(np.array([0]), np.array([1])).tolist()
    assert expected == NEARER_MAX * by_places - NEARER_MS
    assert expected > 0.2 * truth[0, 1]


@pytest.mark.parametrize("lie_ms", [0.1, 400.0, 5000.0])
def test_a_liar_is_where_others_say_that_it_is(lie_ms: float) -> None:
    truth = world()

    def word(slot: int, peer: int) -> float:
        return lie_ms if slot == 0 else float(truth[slot, peer])

    map = learned(truth, word, rounds=12)
    others = np.array([p for p in range(1, COUNT) if not measured(0, p)])
    expected = map.expect(np.zeros_like(others), others)
    assert np.median(np.abs(expected - truth[0, others])) < 10.0
    # The others' words on it are kept, its own are not.
    heard = np.array(peers_of(0))
    assert np.allclose(map.expect(np.zeros_like(heard), heard), truth[0, heard])


def test_the_nearest_live_in_the_same_town() -> None:
    nearest = learned(world()).nearest(EVERYBODY, 12)
    assert nearest.shape == (COUNT, 12)
    assert ((nearest - EVERYBODY[:, None]) % 2 == 0).mean() > 0.99
    for row in nearest.tolist():
        assert len(set(row)) == 12


def test_the_nearest_are_members_and_no_more_than_there_are() -> None:
    map = learned(world())
    few = np.array([50, 3, 7])
    map.refresh(few, now_ns=100)
    nearest = map.nearest(few, 16)
    assert nearest.shape == (3, 3)
    assert {tuple(sorted(row)) for row in nearest.tolist()} == {(3, 7, 50)}


def test_before_anything_is_known_nobody_is_near() -> None:
    map = DelayMap(1)
    assert map.nearest(np.array([4, 5]), 8).tolist() == [[4], [5]]
    for slot in range(10):
        map.reserve(slot)
    map.refresh(np.arange(10), now_ns=0)
    expected = map.expect(np.arange(9), np.arange(1, 10))
    assert np.isfinite(expected).all()
    assert (expected > 0).all()


def test_room_grows_with_the_slots() -> None:
    map = DelayMap(1)
    map.reserve(0)
    assert map.round_trips.capacity == CAPACITY_MIN
    map.reserve(CAPACITY_MIN - 1)
    assert map.round_trips.capacity == CAPACITY_MIN
    map.reserve(CAPACITY_MIN)
    assert map.round_trips.capacity > CAPACITY_MIN


def test_words_that_came_when_there_was_less_room_are_still_found() -> None:
    truth = world()
    map = learned(truth)
    map.reserve(5 * CAPACITY_MIN)
    map.refresh(EVERYBODY, now_ns=100)
    a, b = pairs(wanted=True)
    assert np.allclose(map.expect(a, b), truth[a, b])


def test_a_seed_is_one_map() -> None:
    truth = world()
    a, b = pairs(wanted=False)
    assert np.array_equal(learned(truth, seed=4).expect(a, b), learned(truth, seed=4).expect(a, b))
    assert not np.array_equal(
        learned(truth, seed=4).expect(a, b), learned(truth, seed=5).expect(a, b)
    )
