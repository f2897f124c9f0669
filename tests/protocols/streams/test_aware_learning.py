"""The policy that knows delays, over the delays between the regions of a cloud: how good overlays
become, after what, and what liars get out of lying."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from shoal.base.ids import NodeId
from shoal.protocols.streams.topology.policy import LinkChanges
from tests.protocols.streams.test_topology_policy import assert_regular, is_connected
from tests.support.learning import Learning, over_aws, shortest_ms

LEARN_S = 100.0


@pytest.mark.parametrize("count", [64, 128])
def test_messages_take_hardly_longer_than_the_direct_way(count: int) -> None:
    learning = Learning(over_aws(count), seed=count)
    learning.run(6)
    assert learning.stretch() > 1.8
    learning.run(LEARN_S)
    assert learning.stretch() < 1.15
    assert_regular(learning.policy)
    assert is_connected(learning.policy)


def test_it_stays_good_when_a_third_is_gone() -> None:
    learning = Learning(over_aws(96), seed=1)
    learning.run(LEARN_S)
    left = sorted(Random(1).sample(range(96), 64))
    for number in set(range(96)) - set(left):
        learning.policy.leave(learning.nodes[number])
    learning.policy.sweep()
    assert _stretch(learning, left) > 1.1, "random links are in the place of those that went"
    learning.run(60)
    assert _stretch(learning, left) < 1.1
    assert_regular(learning.policy)


def test_without_words_nothing_is_known_and_nothing_gets_better_by_much() -> None:
    # The other tests would pass, too, if the policy knew delays that nobody told.
    rng = Random(2)
    learning = Learning(over_aws(64), seed=64, word=lambda a, b: rng.uniform(1, 150))
    learning.run(LEARN_S)
    assert learning.stretch() > 1.5
    assert_regular(learning.policy)


def test_members_that_never_settle_keep_their_links() -> None:
    learning = Learning(over_aws(64), seed=3)
    learning.run(10)
    stuck = set(learning.nodes[::2])
    policy = learning.policy

    def settled(member: NodeId) -> bool:
        return member not in stuck

    for number in range(30):
        changes: LinkChanges = policy.improve(settled, (20 + 2 * number) * 10**9).changes
        assert not stuck & set(changes.touched())
    assert policy.improve(lambda member: True, 90 * 10**9).changes.added, "there was much to do"


# Liars


def lie(kind: str, true_ms: float, *, on_liar: bool) -> float:
    """What one of a fifth of all members says, who know each other."""
    match kind:
        case "near":  # to everybody, so as to be in the middle of all
            return 0.1
        case "club":  # to each other, so as to be linked
            return 0.1 if on_liar else true_ms
        case "shy":  # to all others, so as to surround them
            return 400.0 if on_liar else 0.1
        case _:  # far from each other, so as not to waste links
            return 400.0 if on_liar else true_ms


@pytest.mark.parametrize("kind", ["near", "club", "shy", "avoid"])
def test_liars_get_no_better_place_and_no_more_neighbours(kind: str) -> None:
    delays = over_aws(80)
    liars = sorted(Random(8).sample(range(80), 16))
    honest = [number for number in range(80) if number not in liars]

    def word(a: int, b: int) -> float:
        true_ms = float(delays[a, b])
        return lie(kind, true_ms, on_liar=b in liars) if a in liars else true_ms

    learning = Learning(delays, seed=1, word=word)
    learning.run(LEARN_S)
    links = learning.links()
    ms = shortest_ms(delays, links)
    assert ms[np.ix_(honest, honest)].sum() < 1.3 * delays[np.ix_(honest, honest)].sum()
    # How far they are from everybody, by how far they have to be.
    of_liars = ms[liars].sum() / delays[liars].sum()
    of_others = ms[honest].sum() / delays[honest].sum()
    assert of_liars > 0.95 * of_others
    # A fifth of all neighbours are liars by chance, and four of four, one time in 600.
    near = {number: {a + b - number for a, b in links if number in (a, b)} for number in honest}
    share = sum(len(near[number] & set(liars)) for number in honest) / (4 * len(honest))
    assert share < 0.3
    assert sum(near[number] <= set(liars) for number in honest) <= 1


def _stretch(learning: Learning, members: list[int]) -> float:
    """Of those who are left; the others have no links."""
    ms = shortest_ms(learning.delays, learning.links())[np.ix_(members, members)]
    return float(ms.sum() / learning.delays[np.ix_(members, members)].sum())
