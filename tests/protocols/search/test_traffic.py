"""What is started decides which bubbles are the large ones."""

from __future__ import annotations

import pytest

from shoal.base.units import S_NS
from shoal.protocols.search.bubbles.data_density import BALANCE_BOUND, SMOOTH, Traffic, balance_of


def test_rates_are_bytes_a_second_and_follow_slowly() -> None:
    traffic = Traffic()
    traffic.open("s:data", "s:query")
    traffic.started("s:data", 1000)
    rates = traffic.beat(5 * S_NS)
    assert rates["s:data"] == pytest.approx(SMOOTH * 200)
    assert rates["s:query"] == 0
    rates = traffic.beat(5 * S_NS)
    assert rates["s:data"] == pytest.approx(SMOOTH * 200 * (1 - SMOOTH))


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
    assert balance_of(data, query) == pytest.approx(balance)
