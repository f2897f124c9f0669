"""Sections about overlays as graphs: redundancy, hops, randomness, diameter."""

from __future__ import annotations

import math

from shoal.pipeline.jobs.collected import Collected, PairMatrix, Point
from shoal.pipeline.report import published
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, between, number, percent, spread
from shoal.pipeline.report.propagation import comparable
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
        ours = point.over_repeats("duplicates_per_message")
        assert ours is not None
        told = Comparison(
            figure="duplicates per message",
            point=point.label,
            published=float(point.degree - 2),
            spread=published.REDUNDANCY_D4 if point.degree == 4 else None,
            ours=ours.mean,
            tolerance=REDUNDANCY_TOLERANCE,
        )
        comparisons.append(told)
        rows.append(
            (
                str(point.degree),
                f"{point.nodes:,}",
                str(ours.repeats),
                number(told.published, 0),
                between(*told.spread, 2) if told.spread else NOTHING,
                spread(ours, 3),
                percent(told.difference, signed=True),
                told.verdict,
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
    if len(points) > 1:
        blocks.append(_redundancy_figure(points))
    return Section(title="Redundancy", blocks=tuple(blocks)), comparisons


def hops_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """How many links messages take."""
    points = [p for p in comparable(collected) if p.values("hops_mean")]
    if not points:
        return None
    rows = tuple(
        (
            f"{p.nodes:,}",
            spread(p.over_repeats("hops_mean"), 2),
            between(min(longest), max(longest), 0),
            spread(p.over_repeats("duplicates_per_message"), 3),
            percent(min(p.values("coverage"), default=None), 3),
        )
        for p in points
        if (longest := p.values("hops_max"))
    )
    low, high = published.HOPS_MAX
    table = Table(
        caption="Links on the way of a message that came first. In the sources the longest ways "
        f"are {low} to {high} hops, over all sizes.",
        columns=("nodes", "mean hops", "longest", "duplicates per message", "least coverage"),
        rows=rows,
    )
    return Section(title="Hops", blocks=(table,)), []


def randomness_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Is every pair linked equally often?"""
    points = [(point, point.matrix) for point in collected.points if point.matrix is not None]
    if not points:
        return None
    comparisons, rows, figures = [], [], []
    for point, matrix in points:
        expected = matrix.degree / (matrix.nodes - 1)
        chance = math.sqrt(expected * (1 - expected) / matrix.overlays)
        # Four standard errors of a mean over this many pairs, if they were independent.
        error = 4 * chance / math.sqrt(matrix.pairs)
        told = Comparison(
            figure="mean pair probability",
            point=point.label,
            published=expected,
            spread=(expected - error, expected + error),
            ours=matrix.mean,
        )
        noise = Comparison(
            figure="deviation between pairs",
            point=point.label,
            published=chance,
            spread=None,
            ours=matrix.deviation,
            tolerance=NOISE_TOLERANCE,
        )
        comparisons += [told, noise]
        rows.append(
            (
                point.label,
                f"{matrix.overlays:,}",
                number(expected, 7),
                number(matrix.mean, 7),
                percent(told.difference, 2, signed=True),
                told.verdict,
                number(matrix.deviation, 6),
                number(chance, 6),
                between(matrix.least, matrix.most, 4),
                number(matrix.block_p_value, 3),
            )
        )
        figures.append(_matrix_figure(point, matrix))
    table = Table(
        caption="Probability that a pair of nodes is linked. Published: d/(n - 1), which is "
        f"{published.PAIR_PROBABILITY:.7f} for 1,000 nodes of degree 4. The deviation between "
        "pairs is that of chance if links are drawn "
        "like lots; the last column is the chance of links between early and late nodes at least "
        "as uneven as ours.",
        columns=(
            "point",
            "overlays",
            "published",
            "ours",
            "difference",
            "verdict",
            "deviation",
            "of chance",
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
        inside = low <= ours.min and ours.max <= high
        comparisons.append(
            Comparison(
                figure="diameter, hops",
                point=point.label,
                published=(low + high) / 2,
                spread=(low, high),
                # The one that is farther out: either both are inside, or this one is not.
                ours=ours.max if ours.max > high or ours.min >= low else ours.min,
            )
        )
        rows.append(
            (
                f"{ours.nodes:,}",
                str(ours.degree),
                f"{ours.overlays:,}",
                f"{low}–{high}",
                number(ours.mean, 2),
                f"{ours.min}–{ours.max}",
                "inside" if inside else "outside",
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
