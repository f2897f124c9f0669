"""What is believed of what others say about the network."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest

from shoal.protocols.search.measuring.plausibility import (
    BOOTSTRAPS_MAX,
    Bootstraps,
    bounded,
    is_plausible,
)
from shoal.protocols.search.messages import Ping, Totals


def regular(nodes: float, degree: float = 6) -> Totals:
    return Totals(nodes, nodes * degree, nodes * degree * degree)


def ping(totals: Totals, fish: float, *extras: tuple[str, float]) -> Ping:
    return Ping(None, 1, 0, totals, fish, extras)


def test_whatever_honest_nodes_mix_is_plausible() -> None:
    rng = Random(1)
    for _ in range(500):
        parts = [(rng.random() * 10 ** rng.randint(-9, 3), rng.randint(1, 64)) for _ in range(9)]
        totals = Totals(*(sum(part * degree**k for part, degree in parts) for k in range(3)))
        assert is_plausible(ping(totals, rng.random() + 1e-30))
    assert is_plausible(ping(Totals(0, 0, 0), 0))


@pytest.mark.parametrize(
    "lie",
    [
        ping(regular(1), 1.1),
        ping(regular(1), -0.1),
        ping(regular(1), nan),
        ping(regular(1), 0),
        ping(Totals(0, 0, 0), 0.5),
        ping(regular(1e12), 1),
        ping(regular(nan), 1),
        ping(regular(inf), 1),
        ping(regular(-1), 1),
        ping(Totals(1, 0.5, 0.5), 1),  # no edges
        ping(Totals(1, 6, 5), 1),
        ping(Totals(1, 6, 20), 1),  # squares of a mean of 6 cannot be less than 36
        ping(Totals(1, 1000, 1_000_000), 1),
        ping(Totals(1, 6, 6 * 1000), 1),
        ping(regular(1), 1, ("s:load", 1e31)),
        ping(regular(1), 1, ("s:load", nan)),
        ping(regular(1), 1, *[(f"s:{n}", 1.0) for n in range(33)]),
    ],
)
def test_what_no_honest_node_says_is_refused(lie: Ping) -> None:
    assert not is_plausible(lie)


def test_a_result_changes_by_a_factor_of_four_at_most() -> None:
    known = regular(10_000)
    assert bounded(regular(12_000), known) == regular(12_000)
    assert bounded(regular(1e9), known) == regular(40_000)
    assert bounded(regular(100), known) == regular(2_500)
    assert bounded(Totals(10_000, 60_000, 9e6), known).squares == 4 * 360_000


def test_small_networks_may_change_faster() -> None:
    assert bounded(regular(32), regular(1)) == regular(32)
    assert bounded(regular(1e6), regular(10)) == regular(1000)
    assert bounded(regular(3000), regular(900)) == regular(3000)


def test_a_newcomer_believes_the_one_in_the_middle() -> None:
    told = Bootstraps()
    assert told.told(Totals(0, 0, 0)) is None
    assert told.told(regular(1e9)) == regular(1e9)
    told.told(regular(1000))
    assert told.told(regular(1010)) == regular(1010)
    for _ in range(2 * BOOTSTRAPS_MAX):
        told.told(regular(1001))
    assert told.told(regular(1e9)) == regular(1001)
    assert told.told(Totals(5, 1, 1)) == regular(1001)
