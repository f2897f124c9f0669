"""Sections about overlays as graphs: redundancy, hops, diameter."""

from __future__ import annotations

import math

from shoal_lab.report import published
from shoal_lab.report.analysis.report_data import Collected, PairMatrix, Point
from shoal_lab.report.blocks import Block, Comparison, Figure, Section, Table, Text
from shoal_lab.report.labels import NOTHING, between, number, percent, spread
from shoal_lab.report.published import comparable, fault_kinds, network_as_published, size_name
from shoal_lab.report.svg import COLOURS, PUBLISHED, Series, heat_map, line_chart

REDUNDANCY = "streams-redundancy"
REDUNDANCY_TOLERANCE = 0.05  # "about d - 2", say the sources; exactly, 2/n more


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
    published_too = [p for p in points if _redundancy(p) is not None]
    if published_too:
        fewer = _fewer(published_too)
        comparisons.append(fewer)
        blocks.append(_fewer_text(fewer))
    if len(published_too) > 1:
        blocks.append(_redundancy_figure(published_too))
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
                told.verdict if told else "not published",
                spread(point.over_repeats("duplicates_per_message"), 3),
                percent(min(point.values("coverage"), default=None), 3),
            )
        )
    stated = " and ".join(
        f"{hops} hops at {nodes:,} nodes" for nodes, hops in published.HOPS_MAX.items()
    )
    table = Table(
        caption="Links on the way of a message that came first. In the sources the longest ways "
        f"grow from size to size, with {stated}: the verdict is about the longest of ours there.",
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


def _fewer(points: list[Point]) -> Comparison:
    """The thesis has no numbers of it, so that it is one claim about all degrees."""
    above = [
        ours.mean - (point.degree - 2)
        for point in points
        if (ours := point.over_repeats("duplicates_per_message")) is not None
    ]
    return Comparison(
        figure="duplicates per message above d - 2",
        point=f"degree {', '.join(str(point.degree) for point in points)}",
        published=0.0,
        ours=sum(above) / len(above),
        at_most=True,
    )


def _fewer_text(told: Comparison) -> Text:
    return Text(
        "Under latency the thesis measured slightly fewer duplicates than d - 2, at every degree "
        "(5.2, 5.3.1; a picture without numbers). Ours are "
        f"{told.ours:+.3f} from d - 2 in the mean over degrees: {told.verdict}. Where a node "
        "leaves out nobody but the first sender there cannot be fewer, however long links take: "
        "it would have to leave out neighbours that it got further copies from meanwhile."
    )


def _longest(point: Point) -> Comparison | None:
    longest = point.values("hops_max")
    if not longest or point.nodes not in published.HOPS_MAX:
        return None
    return Comparison(
        figure="longest way, hops",
        point=point.label,
        published=published.HOPS_MAX[point.nodes],
        ours=max(longest),
        tolerance=published.HOPS_TOLERANCE,
    )


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


# The section about randomness: is every pair of nodes linked equally often?


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
    lots: half that of the variance, which is derived in experiments/overlays/randomness.py."""
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
