"""Bubbles that were here before."""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.errors import UsageError
from shoal.protocols.search.bubbles.seen_bubbles import Seen, Verdict

LIFE_NS = 100
A, B, C = b"a", b"b", b"c"


def test_slices_follow_each_other_and_the_rest_are_collisions() -> None:
    seen = Seen(10, LIFE_NS)
    assert seen.arrived(A, 0, 4, 0) is Verdict.NEW
    assert seen.arrived(A, 4, 6, 0) is Verdict.NEXT_SLICE
    assert seen.arrived(A, 4, 6, 0) is Verdict.COLLISION
    assert seen.arrived(A, 0, 4, 0) is Verdict.COLLISION
    assert seen.arrived(A, 6, 9, 0) is Verdict.NEXT_SLICE, "collisions are not ours"
    assert seen.arrived(B, 2, 5, 0) is Verdict.NEW, "earlier slices went elsewhere"
    assert seen.arrived(B, 5, 7, 0) is Verdict.NEXT_SLICE
    assert seen.arrived(B, 8, 9, 0) is Verdict.COLLISION, "no slice of ours: there is a gap"


def test_a_node_passes_on_so_many_collisions_of_a_bubble() -> None:
    seen = Seen(10, LIFE_NS, collisions_max=2)
    seen.arrived(A, 0, 4, 0)
    seen.arrived(B, 0, 4, 0)
    assert [seen.arrived(A, 0, 9, 0) for _ in range(4)] == [
        Verdict.COLLISION,
        Verdict.COLLISION,
        Verdict.DROPPED,
        Verdict.DROPPED,
    ]
    assert seen.arrived(A, 4, 9, 0) is Verdict.NEXT_SLICE
    assert seen.arrived(B, 0, 9, 0) is Verdict.COLLISION


def test_a_bubble_is_forgotten_after_its_time() -> None:
    seen = Seen(10, LIFE_NS)
    seen.arrived(A, 0, 4, 0)
    seen.arrived(B, 0, 4, 1)
    assert seen.arrived(A, 0, 4, LIFE_NS - 1) is Verdict.COLLISION
    seen.expire(LIFE_NS)
    assert A not in seen
    assert B in seen
    assert seen.arrived(A, 0, 4, LIFE_NS) is Verdict.NEW


def test_the_first_to_come_is_the_first_to_go() -> None:
    seen = Seen(2, LIFE_NS)
    for bubble in (A, B, A, C):
        seen.arrived(bubble, 0, 4, 0)
    assert len(seen) == 2
    assert A not in seen


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_bounds_that_cannot_be_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="write"):
        Seen(*wrong)


def test_parts_that_find_nobody_new_come_to_an_end() -> None:
    """A hundred parts in a network where everybody has had the bubble."""
    rng, nodes = Random(1), [Seen(4, LIFE_NS, collisions_max=3) for _ in range(20)]
    for seen in nodes:
        seen.arrived(A, 0, 1, 0)
    steps = 0
    for _ in range(100):
        while rng.choice(nodes).arrived(A, 5, 9, 0) is Verdict.COLLISION:
            steps += 1
    assert 2 * len(nodes) < steps <= 3 * len(nodes)
