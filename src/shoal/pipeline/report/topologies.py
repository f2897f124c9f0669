"""Sections about overlays as graphs: redundancy, hops, randomness, diameter."""

from __future__ import annotations

import math

from shoal.pipeline.jobs.collected import Collected, PairMatrix, Point
from shoal.pipeline.report import published
from shoal.pipeline.report.as_published import (
    comparable,
    fault_kinds,
    network_as_published,
    size_name,
)
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, between, number, percent, spread
from shoal.pipeline.report.svg import COLOURS, PUBLISHED, Series, heat_map, line_chart

REDUNDANCY = "streams-redundancy"
REDUNDANCY_TOLERANCE = 0.05  # "about d - 2", say the sources; exactly, 2/n more
NOISE_TOLERANCE = 0.02
"""Of the deviation between pairs, against white noise: of half a million pairs it is known to
0.1 %, and a preference for early or near-by nodes shows in tens of per cent."""


def redundancy_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Duplicates per message by number of neighbours."""
    points = [p for p in collected.of(REDUNDANCY) if p.values("duplicates_per_message")]
    if not points:
        return None
    comparisons, rows = [], []
    for point in points:
        ours, told = point.over_repeats("duplicates_per_message"), _redundancy(point)
        assert ours is not None
        if told is not None:
            comparisons.append(told)
        rows.append(
            (
                str(point.degree),
                f"{point.nodes:,}",
                str(ours.repeats),
                number(told.published if told else None, 0),
                between(*told.spread, 2) if told and told.spread else NOTHING,
                spread(ours, 3),
                percent(told.difference if told else None, signed=True),
                told.verdict if told else "set up otherwise",
            )
        )
    blocks: list[Block] = [
        Table(
            caption="Copies of a message that a node gets besides the first. Published: about "
            "d - 2; in a d-regular graph of n nodes it is d - 2 + 2/n.",
            columns=(
                "degree d",
                "nodes",
                "runs",
                "published",
                "spread",
                "ours",
                "difference",
                "verdict",
            ),
            rows=tuple(rows),
        )
    ]
    if len(comparisons) > 1:
        blocks.append(_redundancy_figure([p for p in points if _redundancy(p) is not None]))
    return Section(title="Redundancy", blocks=tuple(blocks)), comparisons


def hops_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """How many links messages take."""
    points = [p for p in comparable(collected) if p.values("hops_mean")]
    if not points:
        return None
    comparisons, rows = [], []
    for point in points:
        told = _longest(point)
        if told is not None:
            comparisons.append(told)
        longest = point.values("hops_max")
        rows.append(
            (
                size_name(point, points),
                spread(point.over_repeats("hops_mean"), 2),
                between(min(longest), max(longest), 0) if longest else NOTHING,
                told.verdict if told else "size not published",
                spread(point.over_repeats("duplicates_per_message"), 3),
                percent(min(point.values("coverage"), default=None), 3),
            )
        )
    low, high = published.HOPS_MAX
    table = Table(
        caption="Links on the way of a message that came first. In the sources the longest ways "
        f"are {low} to {high} hops, over all sizes: the verdict is about the longest of ours.",
        columns=(
            "nodes",
            "mean hops",
            "longest",
            "verdict",
            "duplicates per message",
            "least coverage",
        ),
        rows=tuple(rows),
    )
    return Section(title="Hops", blocks=(table,)), comparisons


def randomness_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Is every pair linked equally often?"""
    points = [(point, point.matrix) for point in collected.points if point.matrix is not None]
    if not points:
        return None
    comparisons, rows, figures = [], [], []
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
        figures.append(_matrix_figure(point, matrix))
    table = Table(
        caption="Probability that a pair of nodes is linked, over the overlays of all runs. By "
        f"theory it is d/(n - 1); {published.PAIR_PROBABILITY:.7f} is published for "
        f"{published.RANDOM_NODES:,} nodes of degree {published.DEGREE}, and otherwise four "
        "standard errors are allowed. The deviation between pairs is that of chance if links are "
        "drawn like lots; the last column is the chance of links between early and late nodes at "
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
    return Section(title="Randomness", blocks=(table, *figures)), comparisons


def diameter_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Are diameters those of random regular graphs?"""
    found = [(point, diameter) for point in collected.points for diameter in point.diameters]
    if not found:
        return None
    comparisons, rows = [], []
    for point, ours in found:
        low, high = published.diameter_bounds(ours.nodes, ours.degree)
        told = Comparison(
            figure="diameter, hops",
            point=point.label,
            against="theory",
            spread=(low, high),
            # The one that is farther out: either both are inside, or this one is not.
            ours=ours.max if ours.max > high or ours.min >= low else ours.min,
        )
        comparisons.append(told)
        rows.append(
            (
                f"{ours.nodes:,}",
                str(ours.degree),
                f"{ours.overlays:,}",
                f"{low}–{high}",
                number(ours.mean, 2),
                f"{ours.min}–{ours.max}",
                told.verdict,
            )
        )
    blocks: list[Block] = [
        Table(
            caption="Longest of all shortest paths, in hops, beside the bounds for random regular "
            "graphs (the upper one with epsilon towards 0).",
            columns=(
                "nodes",
                "degree",
                "overlays",
                "bounds",
                "mean",
                "least to greatest",
                "verdict",
            ),
            rows=tuple(rows),
        ),
        Text(
            "Bounds: 1 + floor(log(d-1) n) + floor(log(d-1) ((d-2)/(6d) log n)) and "
            "1 + ceil(log(d-1) ((2 + epsilon) d n log n))."
        ),
    ]
    return Section(title="Diameter", blocks=tuple(blocks)), comparisons


def _redundancy(point: Point) -> Comparison | None:
    """None if nothing is published of such a network."""
    ours = point.over_repeats("duplicates_per_message")
    settings = point.settings
    as_published = network_as_published(settings, "network.degree") and not fault_kinds(settings)
    if ours is None or not as_published or point.nodes != published.REDUNDANCY_NODES:
        return None
    return Comparison(
        figure="duplicates per message",
        point=point.label,
        published=float(point.degree - 2),
        spread=published.REDUNDANCY_D4 if point.degree == published.DEGREE else None,
        ours=ours.mean,
        tolerance=REDUNDANCY_TOLERANCE,
    )


def _longest(point: Point) -> Comparison | None:
    longest = point.values("hops_max")
    if not longest or point.nodes not in published.propagation():
        return None
    return Comparison(
        figure="longest way, hops",
        point=point.label,
        spread=published.HOPS_MAX,
        ours=max(longest),
    )


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
    # Four standard errors of a mean over this many pairs, if they were independent.
    error = 4 * _deviation_of_chance(matrix) / math.sqrt(matrix.pairs)
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
    return Comparison(
        figure="deviation between pairs",
        point=point.label,
        against="theory",
        expected=chance,
        ours=matrix.deviation,
        tolerance=NOISE_TOLERANCE,
    )


def _expected_probability(matrix: PairMatrix) -> float:
    return min(1.0, matrix.degree / (matrix.nodes - 1))


def _deviation_of_chance(matrix: PairMatrix) -> float:
    expected = _expected_probability(matrix)
    return math.sqrt(expected * (1 - expected) / matrix.overlays)


def _redundancy_figure(points: list[Point]) -> Figure:
    degrees = sorted({p.degree for p in points})
    ours = [(p.degree, s) for p in points if (s := p.over_repeats("duplicates_per_message"))]
    return Figure(
        caption="Duplicates per message by number of neighbours.",
        svg=line_chart(
            [
                Series(
                    name="d - 2",
                    points=tuple((d, d - 2) for d in degrees),
                    colour=PUBLISHED,
                    dashed=True,
                    dots=False,
                ),
                Series(
                    name="Shoal",
                    points=tuple((d, s.mean) for d, s in ours),
                    spread=tuple((s.min, s.max) for _, s in ours),
                    colour=COLOURS[0],
                ),
            ],
            x_title="degree",
            y_title="duplicates per message",
            keep_x=True,
        ),
    )


def _matrix_figure(point: Point, matrix: PairMatrix) -> Figure:
    side = math.ceil(matrix.nodes / len(matrix.cells))
    return Figure(
        caption=f"How often pairs are linked ({point.label}): each dot is {side} by {side} nodes. "
        "Structure would show as lines or blocks; noise is what a random topology gives.",
        svg=heat_map(matrix.cells, title="probability of a link", nodes=matrix.nodes),
    )
