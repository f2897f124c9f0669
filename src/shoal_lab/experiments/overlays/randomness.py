"""Whether overlays are random (paper, section V-B): how often each pair of nodes is linked.

The paper looked at the matrix of counts and saw white noise. Here two statistics look at it:

Blocks. The join order is cut into 10 blocks, and links are counted per pair of blocks: 55 cells,
so that a preference for early, late or near-by newcomers piles up. If links pair up free slots
blindly, the cells of one overlay are independent Poisson counts under the condition that each
block has exactly its nodes * d link ends: 10 linear conditions, none of which follows from the
others. Pearson's sum over the cells then has 55 - 10 = 45 degrees of freedom.

Dispersion. Over r independent overlays each pair's count is binomial (r, p = d / (n - 1)), so that
the mean square deviation over the mean is 1 - p; pairs with a preference of any kind raise it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc

from shoal_lab.experiments.overlays.growing import (
    OVERLAY_SETTINGS,
    Ends,
    OverlayOptions,
    overlay_cost,
    surveyed,
)
from shoal_lab.scenarios.experiment_kinds import ExperimentKind, Rows
from shoal_lab.scenarios.scenario import Scenario

BLOCKS = 10
BLOCK_NODES_MIN = 10  # smaller blocks have cells with next to no links, which are not Poisson

Matrix = npt.NDArray[np.int64]


class RandomnessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the pair counts of a run say."""

    nodes: int
    degree: int
    overlays: int
    pair_probability: float
    """Mean over all pairs."""
    pair_probability_expected: float
    """d / (n - 1): regularity alone gives it."""
    dispersion: float | None
    """Variance over mean of the counts; None where all pairs are linked."""
    dispersion_expected: float
    dispersion_distance: float | None
    """From the expected one, in standard errors."""
    block_chi_square: float | None
    """None with nodes too few for blocks."""
    block_p_value: float | None
    """The chance of block counts at least this uneven in random overlays."""
    count_max: int


class PairSurvey:
    """Counts pairs."""

    def __init__(self, nodes: int, degree: int) -> None:
        self.degree = degree
        self.overlays = 0
        self._counts: Matrix = np.zeros((nodes, nodes), dtype=np.int64)

    @property
    def counts(self) -> Matrix:
        """In the upper triangle of a matrix in join order."""
        return np.triu(self._counts)

    def add(self, ends: Ends) -> None:
        """One more overlay."""
        rows, slots = np.nonzero(ends >= 0)
        self._counts[rows, ends[rows, slots]] += 1
        self.overlays += 1

    def figures(self) -> RandomnessFigures:
        """All that they say."""
        counts, nodes = self.counts, len(self._counts)
        pairs = nodes * (nodes - 1) // 2
        p = min(1.0, self.degree / (nodes - 1)) if nodes > 1 else 0.0
        spread = dispersion(counts, self.overlays, p) if 0 < p < 1 else (None, None)
        enough = nodes >= BLOCKS * BLOCK_NODES_MIN
        blocks = block_test(counts, self.overlays, p) if enough else (None, None)
        return RandomnessFigures(
            nodes=nodes,
            degree=self.degree,
            overlays=self.overlays,
            pair_probability=float(counts.sum() / self.overlays / pairs) if pairs else 0.0,
            pair_probability_expected=p,
            dispersion=spread[0],
            dispersion_expected=1 - p,
            dispersion_distance=spread[1],
            block_chi_square=blocks[0],
            block_p_value=blocks[1],
            count_max=int(counts.max()),
        )

    def columns(self) -> Mapping[str, Mapping[str, Any]]:
        """The table `pairs`."""
        a, b = np.triu_indices(len(self._counts), 1)
        return {"pairs": {"a": a, "b": b, "count": self._counts[a, b]}}


def block_test(counts: Matrix, overlays: int, p: float) -> tuple[float, float]:
    """Pearson's sum over pairs of blocks, and the chance of one at least as large."""
    edges = np.linspace(0, len(counts), BLOCKS + 1).round().astype(int)
    sizes = np.diff(edges)
    cells = np.add.reduceat(np.add.reduceat(counts, edges[:-1], axis=0), edges[:-1], axis=1)
    pairs = np.outer(sizes, sizes).astype(float)
    np.fill_diagonal(pairs, sizes * (sizes - 1) / 2)
    expected = overlays * p * pairs
    upper = np.triu_indices(BLOCKS)
    statistic = float(((cells - expected) ** 2 / expected)[upper].sum())
    return statistic, float(chdtrc(len(upper[0]) - BLOCKS, statistic))


def dispersion(counts: Matrix, overlays: int, p: float) -> tuple[float, float]:
    """Variance over mean of the pair counts, and its distance from binomial in standard errors."""
    values = counts[np.triu_indices(len(counts), 1)]
    variance = overlays * p * (1 - p)
    index = float(((values - overlays * p) ** 2).mean() / (overlays * p))
    # From the third and fourth central moments of a binomial count. The total is fixed, so what
    # squares share with plain counts cannot vary; otherwise pairs count as independent.
    third = variance * (1 - 2 * p)
    fourth = variance * (1 + 3 * (overlays - 2) * p * (1 - p))
    square = fourth - variance**2 - third**2 / variance
    if square <= 0:  # one overlay: counts are 0 or 1, and their squares say nothing new
        return index, 0.0
    error = float(np.sqrt(square / len(values)) / (overlays * p))
    return index, (index - (1 - p)) / error


def _make(scenario: Scenario) -> PairSurvey:
    return PairSurvey(scenario.network.nodes, scenario.network.degree)


def _rows(figures: RandomnessFigures) -> Rows:
    rows = [
        ("overlays", f"{figures.overlays:,} of {figures.nodes:,} nodes, degree {figures.degree}"),
        (
            "pair probability",
            f"mean {figures.pair_probability:.7f}, "
            f"d / (n - 1) is {figures.pair_probability_expected:.7f}",
        ),
    ]
    if figures.dispersion is not None:
        rows.append(
            (
                "dispersion",
                f"{figures.dispersion:.4f}, of white noise {figures.dispersion_expected:.4f} "
                f"({figures.dispersion_distance:+.2f} standard errors)",
            )
        )
    if figures.block_chi_square is not None:
        rows.append(
            (
                "blocks",
                f"chi-square {figures.block_chi_square:.1f} with 45 degrees of freedom, "
                f"p = {figures.block_p_value:.3f}",
            )
        )
    return rows


def _line(figures: RandomnessFigures) -> str:
    return "; ".join(value for _, value in _rows(figures))


RANDOMNESS = ExperimentKind(
    name="streams/randomness",
    run=surveyed(_make),
    figures=RandomnessFigures,
    rows=_rows,
    line=_line,
    cost=overlay_cost,
    reads=OVERLAY_SETTINGS,
    options=OverlayOptions,
)
