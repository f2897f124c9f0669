"""Underlays that are drawn: their shape, and that those that ship are what their seed gives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from scripts.underlays import MAKERS, PLACES, SEED, table_text
from shoal.base.units import MS_NS
from shoal.sim import load_table
from shoal.sim.delays import RegionTable, parse_table
from shoal_lab.scenarios.delay_tables import sphere, transit_stub


def matrix_ms(table: RegionTable) -> npt.NDArray[np.float64]:
    return np.array(table.delays_ns) / MS_NS


def apart(delays_ms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of distinct places."""
    return delays_ms[~np.eye(len(delays_ms), dtype=np.bool_)]


@pytest.mark.parametrize("name", MAKERS)
def test_the_table_that_ships_is_made_by_its_seed(name: str) -> None:
    shipped = load_table(name)
    assert shipped == MAKERS[name](PLACES, SEED)
    assert len(shipped.names) == 1000


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_table_is_symmetric_and_another_for_another_seed(make: object) -> None:
    assert callable(make)
    table = make(40, 7)
    delays_ms = matrix_ms(table)
    assert (delays_ms == delays_ms.T).all()
    assert delays_ms.min() > 0
    assert make(40, 7) == table
    assert make(40, 8) != table
    assert parse_table(table_text(table), "again") == table


def test_a_globe_has_the_distances_of_a_globe() -> None:
    delays_ms = matrix_ms(load_table("sphere"))
    # Half of pi times the radius in the mean, as light goes in fibre, with detours, and two
    # accesses of 2 ms each.
    assert apart(delays_ms).mean() == pytest.approx(50.04 * 1.6 + 4, rel=0.03)
    access_ms = delays_ms.diagonal() / 2
    assert access_ms.mean() == pytest.approx(2.0, rel=0.1)
    # The farthest way, half around, with a long detour.
    assert 120 < apart(delays_ms - access_ms[:, None] - access_ms).max() < 100.1 * 1.6 * 1.6


def test_some_detours_on_a_globe_are_short_cuts() -> None:
    delays_ms = matrix_ms(sphere(300, 3))
    best_ms = np.array([(row[:, None] + delays_ms).min(axis=0) for row in delays_ms])
    better = apart(best_ms) < 0.9 * apart(delays_ms)
    assert 0.1 < better.mean() < 0.6


def test_stubs_are_near_and_domains_are_far() -> None:
    delays_ms = apart(matrix_ms(load_table("transit-stub")))
    # One node in sixty is in the same stub, one in four in the same transit domain.
    assert np.quantile(delays_ms, 0.012) < 15
    assert np.quantile(delays_ms, 0.24) < 100 < np.quantile(delays_ms, 0.5)
    assert delays_ms.max() < 300


def test_ways_between_routers_are_the_shortest() -> None:
    delays_ms = matrix_ms(transit_stub(120, 5))
    detours_ms = np.array([(row[:, None] + delays_ms).min(axis=0) for row in delays_ms])
    assert (delays_ms <= detours_ms + 0.15).all()  # to the grain of the table
