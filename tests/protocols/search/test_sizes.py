"""Sizes of bubbles, from what was measured."""

from __future__ import annotations

from math import ceil, exp, inf, nan, sqrt

import pytest

from shoal.base.errors import UsageError
from shoal.protocols.search.bubbles.bubble_size import (
    BALANCE_MAX,
    CERTAINTY_MAX,
    LIMIT_UNKNOWN,
    balance,
    bubble_size,
    certainty_of,
    confidence_of,
    size_limit,
    threshold,
)
from shoal.protocols.search.config import INT32_MAX
from shoal.protocols.search.messages import Totals


def regular(nodes: float, degree: float) -> Totals:
    return Totals(nodes, nodes * degree, nodes * degree * degree)


def test_certainty_and_confidence_are_two_words_for_one_thing() -> None:
    assert confidence_of(2) == pytest.approx(1 - exp(-4))
    assert certainty_of(0.99) == pytest.approx(2.146, abs=0.001)
    for confidence in (0.01, 0.5, 0.9999):
        assert confidence_of(certainty_of(confidence)) == pytest.approx(confidence)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 1.5, nan])
def test_a_confidence_that_cannot_be_is_refused(confidence: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        certainty_of(confidence)
    with pytest.raises(UsageError, match="0 or more"):
        confidence_of(-1)


def test_the_threshold_is_the_number_of_nodes_corrected_for_degrees() -> None:
    assert threshold(regular(1000, 6)) == pytest.approx(1500)  # n d / (d - 2)
    mixed = Totals(4, 2 * 4 + 2 * 8, 2 * 16 + 2 * 64)
    assert threshold(mixed) == pytest.approx(24 * 24 / (160 - 48))


@pytest.mark.parametrize("degree", [1, 2])
def test_where_nothing_branches_a_bubble_floods(degree: float) -> None:
    assert threshold(regular(10, degree)) is None
    assert bubble_size(0.1, 1, regular(10.5, degree)) == 11


def test_sizes_multiply_to_what_a_match_needs() -> None:
    totals = regular(10_000, 6)
    for certainty, ratio in ((1, 1), (2, 4), (2, 0.25), (3, 10)):
        size = bubble_size(certainty, ratio, totals)
        assert size == ceil(certainty * sqrt(15_000 * ratio))
        product = size * bubble_size(certainty, 1 / ratio, totals)
        assert product == pytest.approx(certainty * certainty * 15_000, rel=0.02)


def test_a_size_has_a_cap_and_a_floor() -> None:
    assert bubble_size(2, BALANCE_MAX, regular(20, 6)) == 2 * 30
    assert bubble_size(0.001, 1 / BALANCE_MAX, regular(2, 4)) == 1
    assert bubble_size(4, 1, Totals(1e10, 1e20, 2e20 + 1e5)) == INT32_MAX


@pytest.mark.parametrize(("certainty", "of"), [(0, 1), (5, 1), (nan, 1), (1, 0.001), (1, 1000)])
def test_a_size_of_nonsense_is_refused(certainty: float, of: float) -> None:
    with pytest.raises(UsageError, match="write"):
        bubble_size(certainty, of, regular(10, 6))


def test_the_balance_puts_the_load_on_what_is_rare() -> None:
    assert balance(10, 40) == 4
    assert balance(40, 10) == 0.25
    assert balance(0, 0) == balance(7, 7) == 1
    for own, other in ((0, 5), (1, 1e9), (1e-300, 1e300), (3, 17)):
        assert balance(own, other) * balance(other, own) == pytest.approx(1)
        assert 1 / BALANCE_MAX <= balance(own, other) <= BALANCE_MAX
    for wrong in (-1, nan, inf):
        with pytest.raises(UsageError, match="bytes a second"):
            balance(wrong, 1)


def test_larger_bubbles_than_anybody_needs_are_not_passed_on() -> None:
    totals = regular(100_000, 6)
    assert bubble_size(CERTAINTY_MAX, BALANCE_MAX, totals) <= size_limit(totals) <= 2_000_000
    assert size_limit(None) == size_limit(regular(1, 4)) == LIMIT_UNKNOWN
