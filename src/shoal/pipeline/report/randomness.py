"""The section about randomness: is every pair of nodes linked equally often?"""

from __future__ import annotations

import math

from shoal.pipeline.jobs.collected import Collected, PairMatrix, Point
from shoal.pipeline.report import published
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, between, number, percent
from shoal.pipeline.report.svg import heat_map

ERRORS = 4
"""Standard errors that are chance: once in 16,000 there are more."""
NOISE_MIN = 0.02
"""Of the deviation between pairs, which may lie so far from that of chance whatever the standard
error: of half a million pairs it is known to 0.1 %, and a preference for early or near-by nodes
shows in tens of per cent."""


def randomness_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Figure 2 of the paper, 5.1 of the thesis."""
    points = [(point, point.matrix) for point in collected.points if point.matrix is not None]
    if not points:
        return None
    comparisons, rows, blocks = [], [], list[Block]()
    for point, matrix in points:
        told, noise = _pair_probability(point, matrix), _pair_noise(point, matrix)
        comparisons += [told] if noise is None else [told, noise]
        rows.append(
            (
                point.label,
                f"{matrix.overlays:,}",
                number(told.reference, 7),
                number(matrix.mean, 7),
                percent(told.difference, 2, signed=True),
                told.verdict,
                number(matrix.deviation, 6),
                number(noise.expected if noise else None, 6),
                noise.verdict if noise else NOTHING,
                between(matrix.least, matrix.most, 4),
                number(matrix.block_p_value, 3),
            )
        )
        early = _early_text(point, matrix)
        blocks += [_matrix_figure(point, matrix), *([early] if early else [])]
    table = Table(
        caption="Probability that a pair of nodes is linked, over the overlays of all runs. By "
        f"theory it is d/(n - 1); {published.PAIR_PROBABILITY:.7f} is published for "
        f"{published.RANDOM_NODES:,} nodes of degree {published.DEGREE}, and otherwise four "
        "standard errors are allowed. The deviation between pairs is that of chance if links are "
        f"drawn like lots, but for four standard errors, or {100 * NOISE_MIN:g} % if that is more; "
        "the last column is the chance of links between early and late nodes at "
        "least as uneven as ours (of several runs by Fisher's method).",
        columns=(
            "point",
            "overlays",
            "d/(n - 1)",
            "ours",
            "difference",
            "verdict",
            "deviation",
            "of chance",
            "verdict",
            "least to most",
            "blocks, p",
        ),
        rows=tuple(rows),
    )
    return Section(title="Randomness", blocks=(table, *blocks)), comparisons


def _pair_probability(point: Point, matrix: PairMatrix) -> Comparison:
    """Held against the source where it has a number, else against theory."""
    asked = matrix.nodes, matrix.degree
    if (
        asked == (published.RANDOM_NODES, published.DEGREE)
        and matrix.overlays >= published.RANDOM_REPEATS
    ):
        return Comparison(
            figure="mean pair probability",
            point=point.label,
            published=published.PAIR_PROBABILITY,
            ours=matrix.mean,
            tolerance=published.PAIR_TOLERANCE,
        )
    expected = _expected_probability(matrix)
    # Of a mean over this many pairs, if they were independent.
    error = ERRORS * _deviation_of_chance(matrix) / math.sqrt(matrix.pairs)
    return Comparison(
        figure="mean pair probability",
        point=point.label,
        against="theory",
        expected=expected,
        spread=(expected - error, expected + error),
        ours=matrix.mean,
    )


def _pair_noise(point: Point, matrix: PairMatrix) -> Comparison | None:
    """None where every pair is linked, so that nothing is left to chance."""
    chance = _deviation_of_chance(matrix)
    if chance == 0:
        return None
    allowed = max(NOISE_MIN, ERRORS * _deviation_error(matrix)) * chance
    return Comparison(
        figure="deviation between pairs",
        point=point.label,
        against="theory",
        expected=chance,
        spread=(chance - allowed, chance + allowed),
        ours=matrix.deviation,
    )


def _expected_probability(matrix: PairMatrix) -> float:
    return min(1.0, matrix.degree / (matrix.nodes - 1))


def _deviation_of_chance(matrix: PairMatrix) -> float:
    expected = _expected_probability(matrix)
    return math.sqrt(expected * (1 - expected) / matrix.overlays)


def _deviation_error(matrix: PairMatrix) -> float:
    """The standard error of the deviation between pairs, as a part of it, if links are drawn like
    lots: half that of the variance, which is derived in shoal/lab/overlays/randomness.py."""
    p, overlays = _expected_probability(matrix), matrix.overlays
    variance = overlays * p * (1 - p)
    third = variance * (1 - 2 * p)
    fourth = variance * (1 + 3 * (overlays - 2) * p * (1 - p))
    square = fourth - variance**2 - third**2 / variance
    # Of one overlay nothing is left to chance: counts are 0 or 1, and their sum is fixed.
    return math.sqrt(max(0.0, square) / matrix.pairs) / variance / 2


def _early_text(point: Point, matrix: PairMatrix) -> Text | None:
    """Of the first nodes alone; None of another network than the thesis looked at."""
    if (matrix.nodes, matrix.degree) != (published.RANDOM_NODES, published.DEGREE):
        return None
    first = math.ceil(matrix.nodes / len(matrix.cells))
    times = matrix.cells[0][0] / matrix.mean
    links = _expected_probability(matrix) * matrix.overlays * first * (first - 1) / 2
    error = 1 / math.sqrt(links)
    seen = "Here, too, they are linked more often" if times > 1 + ERRORS * error else "Not here"
    return Text(
        "In the thesis (5.1.1) the first few nodes were linked to one another up to "
        f"{published.EARLY_LINKED_TIMES:g} times as often as others. {seen}: the first {first} "
        f"({point.label}) {times:.2f} times as often as pairs are in the mean, by chance 1 with a "
        f"standard error of {error:.2f}."
    )


def _matrix_figure(point: Point, matrix: PairMatrix) -> Figure:
    side = math.ceil(matrix.nodes / len(matrix.cells))
    return Figure(
        caption=f"How often pairs are linked ({point.label}): each dot is {side} by {side} nodes. "
        "Structure would show as lines or blocks; noise is what a random topology gives.",
        svg=heat_map(matrix.cells, title="probability of a link", nodes=matrix.nodes),
    )
