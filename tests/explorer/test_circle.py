"""The order in which the search network is drawn."""

from __future__ import annotations

from random import Random

from shoal.explorer.searches import Place, around
from tests.support.machines import peer_id


def test_nodes_come_as_they_follow_each_other_on_the_circle() -> None:
    rng = Random(5)
    circle = [(peer_id(node), place) for node in range(20) for place in range(3)]
    rng.shuffle(circle)
    below: dict[Place, Place | None] = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
    shuffled = dict(rng.sample(list(below.items()), len(below)))
    start = circle.index(next(iter(shuffled)))
    expected = dict.fromkeys(node for node, _ in circle[start:] + circle[:start])
    assert around(shuffled) == list(expected)


def test_parts_of_a_circle_with_strangers_or_holes_between_them_come_one_after_the_other() -> None:
    a, b, c, d = map(peer_id, range(4))
    below: dict[Place, Place | None] = {
        (a, 1): (c, 1),
        (b, 1): None,  # a hole
        (c, 1): (peer_id(9), 1),  # not seen here
        (d, 1): (b, 1),
    }
    assert around(below) == [a, c, b, d]
    assert around({}) == []
