"""Sections about overlays as graphs: redundancy, hops, diameter."""

from __future__ import annotations

from shoal.pipeline.jobs.collected import Collected, Point
from shoal.pipeline.report import published
from shoal.pipeline.report.as_published import (
    comparable,
    fault_kinds,
    network_as_published,
    size_name,
)
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, between, number, percent, spread
from shoal.pipeline.report.svg import COLOURS, PUBLISHED, Series, line_chart

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
