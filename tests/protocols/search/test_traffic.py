"""What is started decides which bubbles are the large ones; and old data is still found."""

from __future__ import annotations

import pytest

from shoal.base.units import S_NS
from shoal.protocols.search.holdings import MANAGED_LEASE_NS
from shoal.protocols.search.traffic import (
    BALANCE_BOUND,
    DATA_COLUMN,
    QUERY_COLUMN,
    SMOOTH,
    Balance,
    Traffic,
    balance_of,
)


def measured(data: float, query: float) -> dict[str, float]:
    return {DATA_COLUMN: data, QUERY_COLUMN: query}


def test_rates_are_bytes_a_second_and_follow_slowly() -> None:
    traffic = Traffic()
    traffic.started(DATA_COLUMN, 1000)
    rates = traffic.beat(5 * S_NS)
    assert rates[DATA_COLUMN] == pytest.approx(SMOOTH * 200)
    assert rates[QUERY_COLUMN] == 0
    rates = traffic.beat(5 * S_NS)
    assert rates[DATA_COLUMN] == pytest.approx(SMOOTH * 200 * (1 - SMOOTH))


@pytest.mark.parametrize(
    ("data", "query", "balance"),
    [
        (0.0, 0.0, 1.0),
        (100.0, 100.0, 1.0),
        (100.0, 200.0, 2.0),
        (200.0, 100.0, 0.5),
        (1e9, 1.0, 1 / BALANCE_BOUND),
        (1.0, 1e9, BALANCE_BOUND),
        (0.0, 5.0, BALANCE_BOUND),
        (-5.0, 5.0, BALANCE_BOUND),
    ],
)
def test_what_is_sent_less_becomes_larger_within_bounds(
    data: float, query: float, balance: float
) -> None:
    assert balance_of(measured(data, query)) == pytest.approx(balance)


def test_nothing_measured_is_nothing_known() -> None:
    balance = Balance()
    balance.beat({"s:other": 5.0}, 0)
    assert (balance.now, balance.least) == (1.0, 1.0)


def test_questions_are_made_for_the_smallest_data_of_late() -> None:
    balance = Balance()
    balance.beat(measured(200.0, 100.0), 0)
    assert (balance.now, balance.least) == (0.5, 0.5)
    balance.beat(measured(100.0, 400.0), 10 * S_NS)
    assert (balance.now, balance.least) == (4.0, 0.5)
    balance.beat(measured(100.0, 200.0), 20 * S_NS)
    assert (balance.now, balance.least) == (2.0, 0.5)
    balance.beat(measured(100.0, 300.0), MANAGED_LEASE_NS)
    assert (balance.now, balance.least) == (3.0, 2.0)
    balance.beat(measured(100.0, 300.0), MANAGED_LEASE_NS + 20 * S_NS)
    assert balance.least == 3.0


def test_it_remembers_few_values() -> None:
    balance = Balance()
    for beat in range(1000):
        balance.beat(measured(100.0, 100.0 + beat % 7), beat * 5 * S_NS)
    assert len(balance._lately) <= MANAGED_LEASE_NS // (5 * S_NS) + 1
