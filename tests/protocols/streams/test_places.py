"""Places: found from a part of the delays, moved by corrections, hardly by lies."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.protocols.streams.topology.delay_map import LEAST_MS, Places
from shoal.protocols.streams.topology.delay_reports import NOBODY, WORDS_MAX, Pairs
from tests.support.learning import Matrix

Mask = NDArray[np.bool_]

SEEDS = range(3)
every_seed = pytest.mark.parametrize("seed", SEEDS)


def in_space(seed: int, count: int = 60) -> Matrix:
    """Delays between members in a cube of 100 ms, each behind an access line of its own."""
    rng = np.random.default_rng(seed)
    return _between(rng.uniform(0, 100, (count, 3)), rng.exponential(3, count))


def _between(positions: Matrix, heights: Matrix) -> Matrix:
    apart = positions[:, None] - positions[None]
    delays: Matrix = np.sqrt((apart**2).sum(axis=2)) + heights[:, None] + heights
    np.fill_diagonal(delays, 0)
    return delays


def some(seed: int, count: int, share: float = 0.5) -> Mask:
    """A part of all pairs."""
    drawn: Mask = np.random.default_rng(seed + 1000).random((count, count)) < share
    return np.triu(drawn, 1)


def pairs_of(delays: Matrix, measured: Mask) -> Pairs:
    a, b = np.nonzero(measured)
    return Pairs(a, b, delays[a, b], np.ones(len(a)), a * len(delays) + b)


def fitted(delays: Matrix, measured: Mask, seed: int, steps: int = 300) -> Places:
    places = Places(seed)
    places.grow(len(delays))
    places.fit(pairs_of(delays, measured), steps)
    return places


def errors(places: Places, delays: Matrix, looked_at: Mask) -> Matrix:
    """Relative ones."""
    a, b = np.nonzero(np.triu(looked_at, 1))
    off: Matrix = np.abs(places.expect(a, b) - delays[a, b]) / delays[a, b]
    return off


@every_seed
def test_delays_that_nobody_measured_follow_from_those_that_were(seed: int) -> None:
    delays, measured = in_space(seed), some(seed, 60)
    off = errors(fitted(delays, measured, seed), delays, ~measured)
    assert np.median(off) < 0.02
    assert np.quantile(off, 0.95) < 0.1


@every_seed
def test_a_member_behind_a_slow_line_is_far_from_all_and_its_neighbour_is_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions, heights = rng.uniform(0, 100, (40, 3)), np.full(40, 1.0)
    positions[0], heights[0] = positions[1], 30.0
    delays = _between(positions, heights)
    places = fitted(delays, some(seed, 40), seed)
    others = np.arange(2, 40)
    farther = places.expect(np.zeros_like(others), others) - places.expect(
        np.ones_like(others), others
    )
    assert abs(np.median(farther) - 29.0) < 4.0


@every_seed
def test_a_newcomer_is_placed_by_a_few_words(seed: int) -> None:
    delays = in_space(seed)
    old, new = np.arange(50), np.arange(50, 60)
    known = np.zeros((60, 60), bool)
    known[:50, :50] = True
    places = fitted(delays, np.triu(known, 1), seed)
    before = places.positions(old).copy()
    rng = np.random.default_rng(seed)
    peers = np.array([rng.permutation(50)[:WORDS_MAX] for _ in new])
    ms = delays[new[:, None], peers]
    peers[:, 12:] = NOBODY  # what is in a row beyond its words must not matter
    places.settle(new, peers, ms)
    looked_at = np.zeros((60, 60), bool)
    looked_at[:50, 50:] = True
    off = errors(places, delays, looked_at)
    assert np.median(off) < 0.05
    assert np.quantile(off, 0.9) < 0.25
    assert np.array_equal(places.positions(old), before), "nobody moves for a newcomer"


# Corrections

COUNT = 160
PLACE = np.arange(COUNT) % 4  # three towns in a row, and one apart
DETOUR = np.triu((PLACE[:, None] + PLACE == 1) & (PLACE[:, None] != PLACE), 1)


def with_detour(seed: int) -> Matrix:
    """From the first town to the third, 60 ms away, one takes 120 ms, but 30 to the second."""
    rng = np.random.default_rng(seed)
    towns = np.array([[0.0, 0.0], [60.0, 0.0], [30.0, 0.0], [30.0, 60.0]])
    delays = _between(towns[PLACE] + rng.normal(0, 2, (COUNT, 2)), np.full(COUNT, 0.5))
    delays[DETOUR | DETOUR.T] += 60
    return delays


@every_seed
def test_what_fits_into_no_space_is_corrected(seed: int) -> None:
    delays, measured = with_detour(seed), some(seed, COUNT)
    places = fitted(delays, measured, seed, steps=100)
    before = errors(places, delays, DETOUR & ~measured)
    assert np.median(before) > 0.12, "or there is nothing to correct"
    places.correct(pairs_of(delays, measured), np.arange(COUNT), np.arange(COUNT))
    assert np.median(errors(places, delays, DETOUR & ~measured)) < 0.03
    assert np.median(errors(places, delays, ~measured)) < 0.05


@every_seed
def test_a_fifth_of_lies_does_not_move_a_median(seed: int) -> None:
    delays, measured = with_detour(seed), some(seed, COUNT)
    places = fitted(delays, measured, seed, steps=100)
    lies = np.where(some(seed + 1, COUNT, 0.2), 0.1, delays)
    places.correct(pairs_of(lies, measured), np.arange(COUNT), np.arange(COUNT))
    assert np.median(errors(places, delays, DETOUR & ~measured)) < 0.05


# Lies


@every_seed
@pytest.mark.parametrize("lie_ms", [0.1, 400.0])
def test_a_few_liars_do_not_move_everybody(seed: int, lie_ms: float) -> None:
    delays, measured = in_space(seed), some(seed, 60)
    lies = delays.copy()
    lies[:3] = lies[:, :3] = lie_ms
    places = fitted(lies, measured, seed)
    honest = ~measured
    honest[:3] = honest[:, :3] = False
    assert np.median(errors(places, delays, honest)) < 0.12


@every_seed
def test_nonsense_stays_finite(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nonsense = rng.choice([0.0, 1e-6, 5.0, 30_000.0], (60, 60))
    measured = some(seed, 60)
    places = fitted(nonsense, measured, seed, steps=500)
    places.correct(pairs_of(nonsense, measured), np.arange(60), np.arange(60))
    a, b = np.nonzero(~np.eye(60, dtype=bool))
    expected = places.expect(a, b)
    assert np.isfinite(expected).all()
    assert expected.min() >= LEAST_MS
    assert expected.max() < 1e6


def test_nobody_has_said_anything() -> None:
    places = Places(1)
    places.grow(10)
    nothing = pairs_of(np.zeros((10, 10)), np.zeros((10, 10), bool))
    before = places.positions(np.arange(10)).copy()
    places.fit(nothing, 10)
    places.correct(nothing, np.arange(10), np.arange(10))
    assert np.array_equal(places.positions(np.arange(10)), before)
    assert (places.expect(np.arange(9), np.arange(1, 10)) > 0).all()


def test_room_for_more_moves_nobody() -> None:
    delays = in_space(1)
    places = fitted(delays, some(1, 60), 1)
    everybody = np.arange(60)
    before = places.positions(everybody).copy()
    places.grow(200)
    assert np.array_equal(places.positions(everybody), before)
