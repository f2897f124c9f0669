"""Places on a map from delays, and stretch from counts. No JVM here."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_lab.report.analysis.policies import (
    CLUSTER,
    lay_out,
    scale_down,
    sum_up_stretch,
    unit_square,
)


def distances(places: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.linalg.norm(places[:, None] - places, axis=2)
    return found


def test_what_lies_in_a_plane_is_laid_out_as_it_lies() -> None:
    true = distances(np.random.default_rng(1).random((30, 2)) * 200)
    np.testing.assert_allclose(distances(scale_down(true)), true, atol=1e-6)


def test_directions_count_with_their_mean_and_the_diagonal_with_nothing() -> None:
    delays = np.array([[9.0, 1.0, 4.0], [3.0, 9.0, 2.0], [4.0, 2.0, 9.0]])
    np.testing.assert_allclose(distances(scale_down(delays))[0], [0, 2, 4], atol=1e-6)


@pytest.mark.parametrize("delays", [np.zeros((1, 1)), np.zeros((4, 4)), np.ones((2, 2))])
def test_small_and_flat_tables_have_a_layout(delays: np.ndarray) -> None:
    places = unit_square(scale_down(delays))
    assert places.shape == (len(delays), 2)
    assert ((places >= 0) & (places <= 1)).all()


def test_nodes_of_a_region_lie_together() -> None:
    names, far = ["x", "y", "z"], 100_000
    rows = [(a, b, 100 if a == b else far) for a in names for b in names]
    rows.append(("x", "nowhere", 7))
    a, b, delay_us = zip(*rows, strict=True)
    regions = ["x", "y", "z", "x", "y", "x"]
    places = lay_out(regions, a, b, delay_us)
    apart = distances(places)
    same = np.array([[one == other for one in regions] for other in regions])
    assert apart[same].max() < 3 * CLUSTER < apart[~same].min()
    assert len({tuple(place) for place in places.tolist()}) == 6, "nobody hides another"
    assert ((places >= 0) & (places <= 1)).all()
    np.testing.assert_array_equal(lay_out(regions, a, b, delay_us), places)


def test_quantiles_of_stretch_come_from_counts() -> None:
    told = sum_up_stretch({50: 10, 100: 40, 250: 49, 10_000: 1})
    assert told.pairs == 100
    assert told.quantiles == ((0.1, 0.5), (0.5, 1.0), (0.9, 2.5), (0.99, 2.5))
    assert told.no_longer == 0.5
    assert told.cdf == ((0.5, 0.1), (1.0, 0.5), (2.5, 0.99), (100.0, 1.0))
    assert sum_up_stretch({101: 3}).no_longer == 0.0
    assert sum_up_stretch({100: 3}).no_longer == 1.0


def test_a_curve_is_thin_and_keeps_its_end() -> None:
    told = sum_up_stretch(dict.fromkeys(range(1, 5001), 1))
    assert len(told.cdf) <= 201
    assert told.cdf[-1] == (50.0, 1.0)
    assert told.cdf[0][0] == 0.01
