"""The section about search: which bubbles meet, beside theory, simulated and modelled."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from shoal.pipeline.jobs.collected import Collected, Point
from shoal.pipeline.jobs.searched import LoadOfSearch, MatchOfSearch, SearchPoint
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, number
from shoal.pipeline.report.search_time import time_blocks
from shoal.pipeline.report.svg import COLOURS, PUBLISHED, Series, line_chart

HEALTHY = "before"
STAGES = (HEALTHY, "unnoticed", "rerouted", "noticed", "repaired", "left")
"""In the order in which they come."""
THEORY_STEPS = 30
ABOUT = (
    "Two bubbles of certainty c meet with probability 1 - exp(-c²), by theory. The simulator runs "
    "the real nodes, message by message; the model has the same rules in columns, for networks "
    "that the simulator cannot hold. New data was put in the stage that is looked at; old data "
    "before the event, and what of it died with its nodes is gone."
)


def search_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """No figure is compared as published: the sources have none that were measured."""
    points = [(p, p.search) for p in collected.points if p.search is not None]
    if not points:
        return None
    blocks: list[Block] = [Text(ABOUT)]
    blocks += _matches([(p, s) for p, s in points if s.matches])
    blocks += _loads([(p, s) for p, s in points if s.loads])
    blocks += time_blocks(points)
    return Section(title="Search", blocks=tuple(blocks)), []


def _matches(points: Sequence[tuple[Point, SearchPoint]]) -> list[Block]:
    healthy = [_row(p, m) for p, s in points for m in s.matches if m.stage == HEALTHY]
    later = [
        _row(p, m)
        for p, s in points
        for m in sorted(s.matches, key=_order)
        if m.stage != HEALTHY and m.certainty.is_integer()
    ]
    blocks: list[Block] = []
    if healthy:
        blocks += [_table("Pairs of bubbles that met in a healthy network.", healthy)]
        blocks.append(_curve(points))
    if later:
        caption = (
            "The same after an event, for whole certainties. Unnoticed: sends to the dead vanish; "
            "rerouted: they go to others at once; noticed: neighbours know who is gone; repaired: "
            "all have neighbours again, and have measured the network."
        )
        blocks.append(_table(caption, later))
    return blocks


def _row(point: Point, match: MatchOfSearch) -> tuple[str, ...]:
    return (
        *names(point),
        str(point.settings.get("options.event", NOTHING)),
        match.stage,
        match.data,
        f"{match.certainty:g}",
        f"{match.pairs:,}",
        f"{match.theory:.4f}",
        f"{match.matched:.4f} ± {match.error:.4f}",
        f"{match.matched - match.theory:+.4f}",
        f"{match.data_size:,.0f} / {match.query_size:,.0f}",
        number(match.messages, 0),
        number(match.collisions, 1),
        NOTHING if match.hops_max < 0 else f"{match.hops_max} / {match.hops_bound}",
    )


def _table(caption: str, rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(
        caption=f"{caption} With the standard error; sizes of data and query bubbles; messages "
        "and collisions of a query; its longest way, beside ceil(log2 n + log2 c + 1), which "
        "knows no collisions.",
        columns=(
            "by",
            "nodes",
            "locations",
            "event",
            "stage",
            "data",
            "c",
            "pairs",
            "theory",
            "met",
            "off",
            "sizes",
            "messages",
            "collisions",
            "hops",
        ),
        rows=tuple(rows),
        left=6,
    )


def _curve(points: Sequence[tuple[Point, SearchPoint]]) -> Figure:
    most = max(m.certainty for _, s in points for m in s.matches)
    steps = [most * n / THEORY_STEPS for n in range(THEORY_STEPS + 1)]
    theory = Series(
        name="1 - exp(-c²)",
        points=tuple((c, 1 - exp(-c * c)) for c in steps),
        colour=PUBLISHED,
        dashed=True,
        dots=False,
    )
    lines: dict[str, tuple[tuple[float, float], ...]] = {}
    for point, search in points:
        name = "{}, {} nodes, {} locations".format(*names(point))
        found = [m for m in search.matches if m.stage == HEALTHY]
        lines.setdefault(name, tuple((m.certainty, m.matched) for m in found))
    shown = [
        Series(name=name, points=line, colour=colour)
        for (name, line), colour in zip(lines.items(), COLOURS, strict=False)
        if line
    ]
    return Figure(
        caption="Pairs that met in healthy networks, by certainty, beside theory.",
        svg=line_chart([theory, *shown], x_title="certainty c", y_title="pairs that met", y_max=1),
    )


def _loads(points: Sequence[tuple[Point, SearchPoint]]) -> list[Block]:
    rows = []
    for point, search in points:
        healthy = [load for load in search.loads if load.stage == HEALTHY]
        spread = load_spread(healthy)
        if spread is None:
            continue
        degrees = [load.degree for load in healthy]
        rows.append(
            (
                *names(point),
                str(point.settings.get("options.event", NOTHING)),
                f"{min(degrees)}–{max(degrees)}",
                f"{spread[0]:.3f}",
                f"{spread[1]:.3f}",
            )
        )
    if not rows:
        return []
    return [
        Table(
            caption="Messages of bubbles per edge of the nodes of one degree, over those of all "
            "nodes: 1 everywhere if load is proportional to degree. Degrees that fewer than 1 % of "
            "the nodes have are left out. Healthy networks.",
            columns=("by", "nodes", "locations", "event", "degrees", "least", "most"),
            rows=tuple(rows),
            left=4,
        )
    ]


def load_spread(loads: Sequence[LoadOfSearch]) -> tuple[float, float] | None:
    """Messages per edge of the nodes of one degree over those of all, least and most."""
    edges = sum(load.degree * load.nodes for load in loads)
    messages, nodes = sum(load.messages for load in loads), sum(load.nodes for load in loads)
    some = [load for load in loads if load.degree and load.nodes * 100 >= nodes]
    if not messages or not some:
        return None
    each = [load.messages / (load.degree * load.nodes) * edges / messages for load in some]
    return min(each), max(each)


def names(point: Point) -> tuple[str, str, str]:
    """What made it, how many nodes, and their locations."""
    by = "model" if point.settings.get("experiment") == "model" else "simulator"
    return by, f"{point.nodes:,}", str(point.settings.get("options.locations", NOTHING))


def _order(match: MatchOfSearch) -> tuple[int, str, float]:
    place = STAGES.index(match.stage) if match.stage in STAGES else len(STAGES)
    return place, match.data, match.certainty
