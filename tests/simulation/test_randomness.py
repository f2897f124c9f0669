"""Whether the random policy's overlays are random: section V-B of the paper, as tests.

1000 nodes join in order, degree 4, over and over; how often each pair is linked is counted. The
statistics are those of the lab (lab/overlays/randomness.py, which says what they are); here they
must find nothing in the policy's overlays, and a bias that was planted.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from scipy.stats import norm

from shoal_lab.experiments.overlays.growing import grow_overlay
from shoal_lab.experiments.overlays.randomness import Matrix, PairSurvey, block_test, dispersion

NODES = 1000
DEGREE = 4
REPEATS = 200
PAIRS = NODES * (NODES - 1) // 2
PAIR_PROBABILITY = DEGREE / (NODES - 1)

# Each statistic rejects truly random overlays for one seed in a hundred; 150 experiments with
# uniform regular graphs and 150 with the policy agreed. The seed is fixed: a failure means that
# the policy changed, and other seeds tell whether it became biased.
LEVEL = 0.01
SEED = 1

T = TypeVar("T")


def pair_counts(rng: Random, repeats: int = REPEATS) -> Matrix:
    """How often i and j were linked, in the upper triangle of a matrix in join order."""
    survey = PairSurvey(NODES, DEGREE)
    for _ in range(repeats):
        survey.add(grow_overlay(NODES, DEGREE, rng, check=False))
    return survey.counts


def block_p_value(counts: Matrix) -> float:
    return block_test(counts, REPEATS, PAIR_PROBABILITY)[1]


def spread(counts: Matrix) -> tuple[float, float]:
    return dispersion(counts, REPEATS, PAIR_PROBABILITY)


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
    index, distance = spread(counts)
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
    assert (spread(counts)[1] > 5) == seen_in_dispersion
