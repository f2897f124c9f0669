"""Circles: drawn, cut, closed again."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.base.errors import InvariantViolated
from shoal_lab.experiments.search_model.circle import (
    NOBODY,
    Circle,
    Flags,
    build_graph,
    check_circle,
    components,
    crash,
    draw_circle,
    draw_locations,
    largest_part,
    leave,
    lone_circle,
    merge,
)

RING = Circle(
    # Owners 0 1 2 0 3 in the order of the circle: node 0 is on it twice.
    np.array([0, 1, 2, 0, 3], np.int32),
    np.array([4, 0, 1, 2, 3], np.int32),
    np.array([1, 2, 3, 4, 0], np.int32),
)


def living(*nodes: int) -> Flags:
    flags = np.zeros(4, np.bool_)
    flags[list(nodes)] = True
    return flags


def around(circle: Circle, start: int = 0) -> list[int]:
    """Owners in the order of the circle, up to a hole or once round."""
    owners: list[int] = []
    at = start
    while at != NOBODY and len(owners) < len(circle.owner):
        owners.append(int(circle.owner[at]))
        at = int(circle.slave[at])
    return owners


def test_a_drawn_circle_is_one_with_everybodys_locations() -> None:
    rng = np.random.default_rng(1)
    locations = draw_locations(1000, 2, 10, rng)
    assert {*locations.tolist()} == {*range(2, 11)}
    circle = draw_circle(locations, rng)
    check_circle(circle)
    owners = around(circle)
    assert np.bincount(owners).tolist() == locations.tolist()
    assert owners != sorted(owners)


def test_a_crash_leaves_holes_and_dismisses_what_has_two() -> None:
    # Without 1 and 3: node 0 keeps its second location, beside 2, and the first has nobody left.
    cut = crash(RING, living(0, 2))
    check_circle(cut)
    assert cut.owner.tolist() == [2, 0]
    assert cut.slave.tolist() == [1, NOBODY]
    assert cut.master.tolist() == [NOBODY, 0]


def test_leaving_closes_the_circle() -> None:
    left = leave(RING, living(0, 2))
    check_circle(left)
    assert around(left) == [0, 2, 0]
    alone = leave(RING, living(3))
    assert (alone.slave.tolist(), alone.master.tolist()) == ([0], [0]), "a self loop"


def test_ninety_per_cent_leave_and_it_is_still_one_circle() -> None:
    rng = np.random.default_rng(2)
    circle = draw_circle(draw_locations(2000, 2, 10, rng), rng)
    stays = rng.random(2000) < 0.1
    left = leave(circle, stays)
    check_circle(left)
    assert len(around(left)) == len(left.owner) == stays[circle.owner].sum()
    # The same owners in the same order, wherever one begins.
    first = int(np.flatnonzero(stays[circle.owner])[0])
    assert around(left) == [owner for owner in around(circle, first) if stays[owner]]
    assert largest_part(left, stays) == 1.0


def test_merging_beside_a_hole_moves_the_hole() -> None:
    chain = Circle(
        np.array([0, 1, 2], np.int32),
        np.array([NOBODY, 0, 1], np.int32),
        np.array([1, 2, NOBODY], np.int32),
    )
    merged = merge(chain, np.array([True, True, False]))
    check_circle(merged)
    assert merged.slave.tolist() == [1, NOBODY]
    middle = merge(chain, np.array([True, False, True]))
    assert (middle.owner.tolist(), middle.slave.tolist()) == ([0, 2], [1, NOBODY])
    assert not len(merge(chain, np.array([False, True, False])).owner), "nobody is left beside it"


def test_neighbours_that_do_not_know_each_other_are_found() -> None:
    broken = RING._replace(master=np.array([4, 0, 0, 2, 3], np.int32))
    with pytest.raises(InvariantViolated, match="locations, 1 among them, are unknown to their sl"):
        check_circle(broken)


def test_edges_have_two_ends() -> None:
    graph = build_graph(RING, 4)
    assert graph.degree.tolist() == [4, 2, 2, 2]
    slots = np.arange(len(graph.peer))
    assert (graph.back[graph.back] == slots).all()
    owner = np.repeat(np.arange(4), graph.degree)
    assert (graph.peer == owner[graph.back]).all()
    assert sorted(graph.peer[:4].tolist()) == [1, 2, 3, 3]


def test_a_first_node_is_its_own_neighbour() -> None:
    graph = build_graph(lone_circle(1, 3), 2)
    assert graph.degree.tolist() == [0, 6]
    assert set(graph.peer.tolist()) == {1}


def test_components_are_counted_among_the_living() -> None:
    cut = crash(RING, living(0, 1, 2, 3))
    assert len(set(components(cut, 4).tolist())) == 1
    apart = merge(RING, np.array([False, True, True, False, False]))
    assert largest_part(apart, living(1, 2, 3)) == 2 / 3
