"""Whether the random policy's overlays are random: section V-B of the paper, as tests.

1000 nodes join in order, degree 4, over and over; how often each pair is linked is counted. The
paper looked at the matrix of counts and saw white noise. Here two statistics look at it:

Blocks. The join order is cut into 10 blocks of 100 nodes, and links are counted per pair of
blocks: 55 cells, so that a preference for early, late or near-by newcomers piles up. If links
pair up free slots blindly, the cells of one overlay are independent Poisson counts under the
condition that each block has exactly 100 * 4 link ends: 10 linear conditions, none of which
follows from the others. Pearson's sum over the cells then has 55 - 10 = 45 degrees of freedom.

Dispersion. Over r independent overlays each pair's count is binomial (r, p = d / (n - 1)), so that
the mean square deviation over the mean is 1 - p; pairs with a preference of any kind raise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2, norm

from shoal.base.ids import NodeId, node_id
from shoal.protocols.streams.random_policy import RandomPolicy

NODES = 1000
DEGREE = 4
REPEATS = 200
BLOCKS = 10
PAIRS = NODES * (NODES - 1) // 2
PAIR_PROBABILITY = DEGREE / (NODES - 1)

# Each statistic rejects truly random overlays for one seed in a hundred; 150 experiments with
# uniform regular graphs and 150 with the policy agreed. The seed is fixed: a failure means that
# the policy changed, and other seeds tell whether it became biased.
LEVEL = 0.01
SEED = 1

Matrix = npt.NDArray[np.int64]
T = TypeVar("T")


def pair_counts(rng: Random, repeats: int = REPEATS) -> Matrix:
    """How often i and j were linked, in the upper triangle of a matrix in join order."""
    members = [node_id(number.to_bytes(20, "big")) for number in range(NODES)]
    position: dict[NodeId, int] = {member: at for at, member in enumerate(members)}
    counts: Matrix = np.zeros((NODES, NODES), dtype=np.int64)
    for _ in range(repeats):
        policy = RandomPolicy(DEGREE, rng)
        for member in members:
            policy.join(member)
        ends = [[position[end] for end in policy.neighbours(member)] for member in members]
        counts[np.arange(NODES)[:, None], np.array(ends)] += 1
    return np.triu(counts)


def block_p_value(counts: Matrix, repeats: int = REPEATS) -> float:
    """The chance of block counts at least this uneven in random overlays."""
    size = NODES // BLOCKS
    cells = counts.reshape(BLOCKS, size, BLOCKS, size).sum(axis=(1, 3))
    pairs = np.full((BLOCKS, BLOCKS), float(size * size))
    np.fill_diagonal(pairs, size * (size - 1) / 2)
    expected = repeats * PAIR_PROBABILITY * pairs
    upper = np.triu_indices(BLOCKS)
    statistic = ((cells - expected) ** 2 / expected)[upper].sum()
    return float(chi2.sf(statistic, len(upper[0]) - BLOCKS))


def dispersion(counts: Matrix, repeats: int = REPEATS) -> tuple[float, float]:
    """Variance over mean of the pair counts, and its distance from binomial in standard errors."""
    values = counts[np.triu_indices(NODES, 1)]
    p = PAIR_PROBABILITY
    variance = repeats * p * (1 - p)
    index = float(((values - repeats * p) ** 2).mean() / (repeats * p))
    # From the third and fourth central moments of a binomial count. The total is fixed, so what
    # squares share with plain counts cannot vary; otherwise pairs count as independent.
    third = variance * (1 - 2 * p)
    fourth = variance * (1 + 3 * (repeats - 2) * p * (1 - p))
    square = fourth - variance**2 - third**2 / variance
    error = float(np.sqrt(square / PAIRS) / (repeats * p))
    return index, (index - (1 - p)) / error


class RecentRandom(Random):
    """A planted bias: a share of the choices takes the newer of two (lists grow at the end)."""

    share = 0.0

    def choice(self, seq: Sequence[T] | Any) -> T | Any:
        """One of the sequence, with a preference for its end."""
        at = self.randrange(len(seq))
        if self.random() < self.share:
            at = max(at, self.randrange(len(seq)))
        return seq[at]


def test_overlays_of_nodes_that_join_in_order_are_random() -> None:
    counts = pair_counts(Random(SEED))
    # Regularity alone fixes the mean: every overlay has n * d / 2 links.
    assert counts.sum() == REPEATS * NODES * DEGREE // 2
    assert abs(counts.sum() / REPEATS / PAIRS - PAIR_PROBABILITY) < 1e-12
    assert block_p_value(counts) > LEVEL
    index, distance = dispersion(counts)
    assert abs(index - 1) < 0.02
    assert 2 * norm.sf(abs(distance)) > LEVEL


@pytest.mark.parametrize(
    ("share", "seen_in_blocks", "seen_in_dispersion"),
    [(0.05, True, False), (1.0, True, True)],
)
def test_a_planted_preference_for_recent_links_is_seen(
    share: float, seen_in_blocks: bool, seen_in_dispersion: bool
) -> None:
    rng = RecentRandom(SEED)
    rng.share = share
    counts = pair_counts(rng)
    assert counts.sum() == REPEATS * NODES * DEGREE // 2, "the bias is not in the mean"
    # A diffuse preference of one choice in twenty shifts no single pair by much: the blocks
    # gather it, the dispersion over half a million pairs does not show it.
    assert (block_p_value(counts) < 1e-9) == seen_in_blocks
    assert (dispersion(counts)[1] > 5) == seen_in_dispersion
