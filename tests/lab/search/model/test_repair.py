"""Networks that fill up again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from shoal_lab.experiments.search_model.circle import (
    Circle,
    Numbers,
    check_circle,
    crash,
    draw_circle,
    draw_locations,
    largest_part,
)
from shoal_lab.experiments.search_model.stages import degrees, repair

NODES = 4000


def crashed(part: float) -> tuple[Circle, Numbers, npt.NDArray[np.bool_]]:
    rng = np.random.default_rng(1)
    locations = draw_locations(NODES, 2, 10, rng)
    living = rng.random(NODES) >= part
    return crash(draw_circle(locations, rng), living), locations, living


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_all_come_back_to_their_degree_give_or_take_one(part: float) -> None:
    cut, locations, living = crashed(part)
    repaired = repair(cut, 2 * locations, living, 1, np.random.default_rng(2))
    check_circle(repaired.circle)
    off = degrees(repaired.circle, NODES) - 2 * locations
    assert np.abs(off[living]).max() <= 1
    assert not degrees(repaired.circle, NODES)[~living].any()
    assert np.abs(degrees(cut, NODES) - 2 * locations)[living].max() > 1
    assert 2 <= repaired.rounds < 20


def test_parts_stay_apart_unless_their_last_nodes_ask_elsewhere() -> None:
    cut, locations, living = crashed(0.9)
    parts = [largest_part(cut, living)]
    for rejoin_below in (1, 2):
        repaired = repair(cut, 2 * locations, living, rejoin_below, np.random.default_rng(2))
        parts.append(largest_part(repaired.circle, living))
    before, lonely_ones_asked, leaves_asked = parts
    assert before < 0.5
    assert 0.8 < lonely_ones_asked < 0.99
    assert leaves_asked > 0.999


def test_who_is_whole_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    locations = draw_locations(50, 2, 10, rng)
    circle = draw_circle(locations, rng)
    repaired = repair(circle, 2 * locations, np.ones(50, np.bool_), 1, rng)
    assert repaired.circle is circle
    assert (repaired.rounds, repaired.splits) == (0, 0)


def test_those_who_lost_everybody_begin_anew() -> None:
    nobody = np.empty(0, np.int32)
    wanted, living = np.array([4, 6, 8], np.int32), np.array([False, True, True])
    repaired = repair(Circle(nobody, nobody, nobody), wanted, living, 1, np.random.default_rng(1))
    check_circle(repaired.circle)
    assert largest_part(repaired.circle, living) == 1.0
    assert np.abs(degrees(repaired.circle, 3) - [0, 6, 8]).max() <= 1
