"""The section about search: which bubbles meet, beside theory, simulated and modelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from math import exp
from statistics import fmean

from shoal_lab.report.analysis.report_data import (
    Collected,
    LoadOfSearch,
    MatchOfSearch,
    MomentOfSearch,
    Point,
    SearchPoint,
)
from shoal_lab.report.blocks import Block, Comparison, Figure, Section, Table, Text
from shoal_lab.report.labels import NOTHING, number, percent, tell_apart
from shoal_lab.report.published import size_name
from shoal_lab.report.svg import COLOURS, PUBLISHED, Series, line_chart

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


# Search over time: around events, under churn, round by round; and standing queries.


MOST = 0.99
_OF_ROUNDS = ("locations", "event", "session_s", "crashes")
SHOWN_S = 300  # after an event: what comes later is flat

Points = Sequence[tuple[Point, SearchPoint]]
Moments = Sequence[MomentOfSearch]


def time_blocks(points: Points) -> list[Block]:
    """Whatever of it was run."""
    by_kind: dict[str, list[tuple[Point, SearchPoint]]] = {}
    for point, search in points:
        by_kind.setdefault(str(point.settings.get("experiment")), []).append((point, search))
    around = [(p, s) for p, s in by_kind.get("match", []) if s.moments]
    churned = [(p, s) for p, s in by_kind.get("churn", []) if s.moments]
    measured = [(p, s) for p, s in points if s.steps]
    watched = [(p, s) for p, s in points if s.watches is not None]
    blocks: list[Block] = []
    if around:
        blocks += [_events(around), *_event_curves(around)]
    if churned:
        blocks += [_churn(churned), *_churn_curves(churned)]
    if measured:
        blocks += [_rounds(measured), _round_curves(measured)]
    if watched:
        blocks.append(_watches(watched))
    return blocks


def success(moments: Moments, data: str) -> float | None:
    """What part of the searches for old or new data found it."""
    asked = sum(getattr(m, f"{data}_searches") for m in moments)
    found = sum(getattr(m, f"{data}_found") for m in moments)
    return found / asked if asked else None


def settled_s(moments: Moments, holds: Callable[[MomentOfSearch], bool]) -> int | None:
    """From when on something held to the end, after the event."""
    after = [m for m in moments if m.time_s > 0]
    wrong = [number for number, m in enumerate(after) if not holds(m)]
    first = wrong[-1] + 1 if wrong else 0
    return after[first].time_s if first < len(after) else None


def _events(points: Points) -> Table:
    those = [point for point, _ in points]
    shown = [(_event(p), p.nodes, p.settings.get("options.locations")) for p in those]
    names = tell_apart([_event(p) for p in those], those, shown)
    rows = []
    for name, (point, search) in zip(names, points, strict=True):
        moments = search.moments
        detect_s = float(point.settings.get("options.detect_s", 0.0))
        crash = _event(point).startswith("crash")
        noticed_s = detect_s if crash else 0.0
        whole_s = settled_s(moments, lambda m: m.complete >= MOST)
        known_s = settled_s(moments, lambda m: m.complete >= MOST and m.known >= MOST)
        over_s = moments[-1].time_s + 1 if known_s is None else known_s
        times = (
            [m for m in moments if m.time_s < 0],
            [m for m in moments if 0 <= m.time_s < noticed_s],
            # A window is called by its beginning: what begins as links break is noticed.
            [m for m in moments if noticed_s <= m.time_s < over_s],
            [m for m in moments if m.time_s >= over_s],
        )
        rows.append(
            (
                name,
                f"{point.nodes:,}",
                str(point.settings.get("options.locations")),
                str(len(point.runs)),
                *(_both(some) for some in times),
                number(whole_s, 0),
                number(known_s, 0),
                percent(min(m.largest_part for m in moments), 2),
                percent(moments[-1].largest_part, 2),
            )
        )
    return Table(
        caption="Searches around an event (c = 2, by theory 98.2 % of them), for documents of "
        "before it / of three seconds earlier: before it, until links to the dead broke, until "
        "the network had recovered, and after that. Nobody casts the old documents again. Seconds "
        "until 99 % of the nodes had their neighbours for good, and until as many knew the network "
        "within 5 %, too. The largest component of the living, at its smallest and at the end.",
        columns=(
            "event",
            "nodes",
            "locations",
            "runs",
            "before",
            "unnoticed",
            "noticed",
            "after",
            "neighbours, s",
            "known, s",
            "least part",
            "part at the end",
        ),
        rows=tuple(rows),
        left=1,
    )


def _event(point: Point) -> str:
    return str(point.settings.get("options.event"))


def _both(moments: Moments) -> str:
    return f"{percent(success(moments, 'old'))} / {percent(success(moments, 'new'))}"


def _event_curves(points: Points) -> list[Block]:
    names = tell_apart([_event(point) for point, _ in points], [point for point, _ in points])
    return [
        Figure(
            caption=f"Searches around an event, for {data} data: the part that succeeded, in "
            "windows of 5 s.",
            svg=line_chart(
                [
                    Series(
                        name=name,
                        points=_line([m for m in search.moments if m.time_s <= SHOWN_S], data),
                        colour=colour,
                        dots=False,
                    )
                    for name, (_, search), colour in zip(
                        names, points, cycle(COLOURS), strict=False
                    )
                ],
                x_title="seconds since the event",
                y_title="searches that succeeded",
                y_max=1,
            ),
        )
        for data in ("old", "new")
        if all(_line(search.moments, data) for _, search in points)
    ]


def _line(moments: Moments, data: str) -> tuple[tuple[float, float], ...]:
    parts = [(m.time_s, success([m], data)) for m in moments]
    return tuple((float(at_s), part) for at_s, part in parts if part is not None)


def _churn(points: Points) -> Table:
    those = [point for point, _ in points]
    settings = ("network.nodes", "options.session_s", "options.crashes")
    shown = [tuple(point.settings.get(name) for name in settings) for point in those]
    names = tell_apart([f"{point.nodes:,}" for point in those], those, shown)
    rows = []
    for name, (point, search) in zip(names, points, strict=True):
        moments = search.moments
        rows.append(
            (
                name,
                str(len(point.runs)),
                number(point.settings.get("options.session_s"), 0),
                percent(point.settings.get("options.crashes"), 0),
                number(moments[-1].time_s, 0),
                percent(success(moments, "old"), 2),
                percent(success(moments, "new"), 2),
                percent(fmean(m.complete for m in moments), 2),
                percent(fmean(m.known for m in moments), 2),
                percent(min(m.largest_part for m in moments), 2),
            )
        )
    return Table(
        caption="Search while nodes come and go: mean session in seconds, goings without a word, "
        "how long; searches that succeeded, for durable documents of the beginning and for those "
        "of three seconds earlier; nodes that had their neighbours but for one, and that knew the "
        "network within 5 %, in the mean over time; the largest component at its smallest.",
        columns=(
            "nodes",
            "runs",
            "session",
            "crashes",
            "lasted",
            "old data",
            "new data",
            "neighbours",
            "known",
            "least part",
        ),
        rows=tuple(rows),
        left=0,
    )


def _churn_curves(points: Points) -> list[Block]:
    return [
        Figure(
            caption=f"{point.scenario}, {point.label}: searches that succeeded, by the minute.",
            svg=line_chart(
                [
                    Series(
                        name=f"{data} data",
                        points=tuple((x / 60, y) for x, y in _line(search.moments, data)),
                        colour=colour,
                        dots=False,
                    )
                    for data, colour in zip(("old", "new"), COLOURS, strict=False)
                    if _line(search.moments, data)
                ],
                x_title="minutes",
                y_title="searches that succeeded",
                y_max=1,
            ),
        )
        for point, search in points
    ]


def _rounds(points: Points) -> Table:
    those = [point for point, _ in points]
    settings = ("network.nodes", *(f"options.{name}" for name in _OF_ROUNDS))
    shown = [(_by(p), *(p.settings.get(name) for name in settings)) for p in those]
    names = tell_apart([_by(point) for point in those], those, shown)
    rows = []
    for name, (point, search) in zip(names, points, strict=True):
        known = [steps for steps in search.steps if steps is not None]
        session_s = point.settings.get("options.session_s") or None
        rows.append(
            (
                name,
                f"{point.nodes:,}",
                str(point.settings.get("options.locations")),
                str(point.settings.get("options.event", NOTHING)),
                number(session_s, 0),
                percent(point.settings.get("options.crashes") if session_s else None, 0),
                str(len(search.steps)),
                f"{min(known)}–{max(known)}" if known else NOTHING,
                number(fmean(known) if known else None),
                str(len(search.steps) - len(known)),
                percent(fmean(m.known for m in search.moments) if search.moments else None, 2),
            )
        )
    return Table(
        caption="Steps of five seconds until 99 % of the nodes had D0, D1 and D2 within 5 %: in "
        "the simulator from the first node that began a round; in the model, whose nodes are all "
        "in step, for several holders of the largest fish. Never: the round ended before. Last "
        "column: nodes whose result was within 5 % of the network as it was, in the mean over "
        "time.",
        columns=(
            "by",
            "nodes",
            "locations",
            "event",
            "session, s",
            "crashes",
            "rounds",
            "steps",
            "mean",
            "never",
            "known",
        ),
        rows=tuple(rows),
        left=1,
    )


def _round_curves(points: Points) -> Figure:
    shown = [(p, s) for p, s in points if s.curve and not p.settings.get("options.session_s")]
    # The largest networks, if there are more than colours.
    shown = sorted(shown or points, key=lambda pair: pair[0].nodes)[-len(COLOURS) :]
    names = [
        f"{_by(point)}, {point.nodes:,} nodes, {point.settings.get('options.locations')} locations"
        for point, _ in shown
    ]
    return Figure(
        caption="Nodes with all three sums within 5 %, step by step.",
        svg=line_chart(
            [
                Series(
                    name=name,
                    points=tuple((float(step), within) for step, within in search.curve),
                    colour=colour,
                    dots=False,
                )
                for name, (_, search), colour in zip(
                    tell_apart(names, [p for p, _ in shown]), shown, COLOURS, strict=False
                )
            ],
            x_title="steps of five seconds",
            y_title="nodes within 5 %",
            y_max=1,
        ),
    )


def _by(point: Point) -> str:
    return "model" if point.settings.get("experiment") == "model" else "simulator"


def _watches(points: Points) -> Table:
    those = [point for point, _ in points]
    rows = []
    for point, search in points:
        told = search.watches
        assert told is not None
        rows.append(
            (
                size_name(point, those),
                str(len(point.runs)),
                f"{told.queries:,}",
                f"{told.due:,}",
                f"{told.told:,}",
                percent(told.told / told.due if told.due else None, 2),
                f"{told.told_again:,}",
                percent(told.least_told, 1),
            )
        )
    return Table(
        caption="Standing queries, and documents that others put later. An event is a document "
        "and a query that it matches; it is told if the owner of the query heard of it. The stated "
        "confidence is 99 %. Last column: the query that missed most.",
        columns=("nodes", "runs", "queries", "events", "told", "part", "told again", "least"),
        rows=tuple(rows),
        left=0,
    )
