"""Which bubbles met."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_lab.experiments.search_model.cast import Bubbles, match

RNG = np.random.default_rng(1)


def bubbles(sets: list[list[int]]) -> Bubbles:
    numbers = np.repeat(np.arange(len(sets)), [len(one) for one in sets]).astype(np.int32)
    nodes = np.array([node for one in sets for node in one], np.int32)
    zeros = np.zeros(len(sets), np.int64)
    return Bubbles(numbers, nodes, zeros, 0, 0, zeros)


def test_pairs_meet_at_living_nodes() -> None:
    data, queries = bubbles([[0, 1, 2], [3]]), bubbles([[2, 3], [0, 1], [4]])
    everybody = np.ones(5, np.bool_)
    assert match(data, queries, everybody).part == 3 / 6
    some = everybody.copy()
    some[[0, 2]] = False
    found = match(data, queries, some)
    assert (found.pairs, found.part) == (6, 2 / 6)


def test_its_error_is_what_repeats_show() -> None:
    parts, errors = [], []
    for _ in range(60):
        sizes = RNG.integers(1, 60, 40)  # as uneven as in an outage
        data = bubbles([RNG.choice(500, size, replace=False).tolist() for size in sizes])
        queries = bubbles([RNG.choice(500, 20, replace=False).tolist() for _ in range(40)])
        found = match(data, queries, np.ones(500, np.bool_))
        parts.append(found.part)
        errors.append(found.error)
    assert np.mean(errors) == pytest.approx(np.std(parts), rel=0.4)
