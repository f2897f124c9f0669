"""Sections about delay: propagation, and the relative delay penalty."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from statistics import fmean

from shoal_lab.report import published
from shoal_lab.report.analysis.points import settings_but
from shoal_lab.report.analysis.report_data import Collected, Point, RunFigures, mean_absolute
from shoal_lab.report.blocks import Block, Comparison, Figure, Section, Table, Text
from shoal_lab.report.labels import NOTHING, between, number, percent, spread, tell_apart
from shoal_lab.report.published import PROPAGATION, comparable, network_as_published, size_name
from shoal_lab.report.svg import COLOURS, PUBLISHED, Series, line_chart

WEBSOCKET = (
    "The WebSocket column of the sources (146–194 ms) is not reproduced: its topologies were aware "
    "of delay by accident, since nodes reported four quick links while slower ones were still "
    "being made (thesis 4.3), and how far that goes depends on how fast nodes joined, how long "
    "connections took and which surplus links were dropped, none of which is published. What is "
    "compared is the WebRTC column, whose topologies are random as the paper says."
)


def propagation_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Table 2 of the paper, 5.2 of the thesis, with percentiles and distributions."""
    points = comparable(collected)
    if not points:
        return None
    comparisons: list[Comparison] = []
    rows = []
    for point in points:
        ours, told = point.over_repeats("mean_ms"), _mean_comparison(point)
        assert ours is not None
        assert point.delays is not None
        comparisons += [c for c in (told, _p99_comparison(point)) if c is not None]
        size = published.propagation().get(point.nodes)
        rows.append(
            (
                size_name(point, points),
                str(ours.repeats),
                number(size.mean_ms, 0) if size else NOTHING,
                between(size.min_ms, size.max_ms, 0) if size else NOTHING,
                number(ours.mean),
                between(ours.min, ours.max),
                percent(told.difference, signed=True) if told else NOTHING,
                told.verdict if told else "size not published",
                *(number(getattr(point.delays, p)) for p in ("p50_ms", "p95_ms", "p99_ms")),
            )
        )
    table = Table(
        caption="Mean propagation delay in milliseconds, over the runs of each size: published "
        "(WebRTC) and ours. Percentiles are exact, over all deliveries of all runs.",
        columns=(
            "nodes",
            "runs",
            "published",
            "spread",
            "ours",
            "our spread",
            "difference",
            "verdict",
            "p50",
            "p95",
            "p99",
        ),
        rows=tuple(rows),
    )
    blocks: list[Block] = [table]
    blocks += [_p99_text(c) for c in comparisons if c.figure == "p99 delay, ms"]
    if len(points) > 1:
        blocks.append(_scaling(points))
    blocks += [_curves(points), Text(WEBSOCKET)]
    return Section(title="Propagation delay", blocks=tuple(blocks)), comparisons


def penalty_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Figure 9 of the paper, 5.9 and Table 5.4 of the thesis."""
    points = [p for p in comparable(collected) if p.over_repeats("rdp") is not None]
    if not points:
        return None
    comparisons, rows = [], []
    for point in points:
        ours = point.over_repeats("rdp")
        assert ours is not None
        size = published.propagation().get(point.nodes)
        told = None
        if size is not None:
            stated = point.nodes == published.RDP_NODES
            told = Comparison(
                figure="relative delay penalty",
                point=point.label,
                against="source" if stated else "derived",
                published=published.RDP if stated else None,
                expected=None if stated else size.mean_ms / published.UNICAST_MS,
                spread=(size.min_ms / published.UNICAST_MS, size.max_ms / published.UNICAST_MS),
                ours=ours.mean,
                tolerance=published.MEAN_TOLERANCE,
            )
            comparisons.append(told)
        rows.append(
            (
                size_name(point, points),
                number(told.reference, 2) if told else NOTHING,
                between(*told.spread, 2) if told and told.spread else NOTHING,
                spread(ours, 2),
                percent(told.difference, signed=True) if told else NOTHING,
                told.verdict if told else "size not published",
                number(point.values("unicast_ms")[0], 2),
            )
        )
    tables = (
        Table(
            caption="Relative delay penalty: mean delay through the overlay over that of sending "
            f"directly. Published is that of {published.RDP_NODES:,} nodes; for other sizes it is "
            f"derived from the delays above, over {published.UNICAST_MS} ms.",
            columns=(
                "nodes",
                "published",
                "spread",
                "ours",
                "difference",
                "verdict",
                "unicast, ms",
            ),
            rows=tuple(rows),
        ),
        _literature(points),
    )
    return Section(title="Relative delay penalty", blocks=tables), comparisons


def _mean_comparison(point: Point) -> Comparison | None:
    size, ours = published.propagation().get(point.nodes), point.over_repeats("mean_ms")
    if size is None or ours is None:
        return None
    return Comparison(
        figure="mean delay, ms",
        point=point.label,
        published=size.mean_ms,
        spread=(size.min_ms, size.max_ms),
        ours=ours.mean,
        tolerance=published.MEAN_TOLERANCE,
    )


def _p99_comparison(point: Point) -> Comparison | None:
    if point.delays is None or point.nodes != published.P99_NODES:
        return None
    return Comparison(
        figure="p99 delay, ms",
        point=point.label,
        published=published.P99_MS,
        ours=point.delays.p99_ms,
        tolerance=published.P99_TOLERANCE,
    )


def _p99_text(told: Comparison) -> Text:
    return Text(
        f"99 % of deliveries to {published.P99_NODES:,} nodes take {told.ours:.1f} ms or less; "
        f"published: {number(told.published, 0)} ms ({percent(told.difference, signed=True)}, "
        f"{told.verdict})."
    )


def _scaling(points: Sequence[Point]) -> Figure:
    known = [size for n, size in sorted(published.propagation().items())]
    lines: dict[bytes, list[Point]] = {}
    for point in points:
        # What is published in all may differ with the size.
        same = settings_but(point.settings, "network.nodes", "workload.messages")
        lines.setdefault(same, []).append(point)
    series = [
        Series(
            name="published (WebRTC)",
            points=tuple((s.nodes, s.mean_ms) for s in known),
            spread=tuple((s.min_ms, s.max_ms) for s in known),
            colour=PUBLISHED,
            dashed=True,
        )
    ]
    for line, colour in zip(lines.values(), cycle(COLOURS), strict=False):
        ours = [(p.nodes, s) for p in line if (s := p.over_repeats("mean_ms"))]
        series.append(
            Series(
                name="Shoal" if len(lines) == 1 else f"Shoal, {_but_nodes(line[0])}",
                points=tuple((n, s.mean) for n, s in ours),
                spread=tuple((s.min, s.max) for _, s in ours),
                colour=colour,
            )
        )
    return Figure(
        caption="Mean delay by number of nodes; bars from the least to the greatest of the runs.",
        svg=line_chart(series, x_title="nodes", y_title="mean delay, ms", doubling=True),
    )


def _but_nodes(point: Point) -> str:
    return ", ".join(part for part in point.label.split(", ") if not part.startswith("nodes "))


def _curves(points: Sequence[Point]) -> Figure:
    shown = [(p, p.delays) for p in points if p.delays is not None]
    names = tell_apart([f"{p.nodes:,} nodes" for p, _ in shown], [p for p, _ in shown])
    return Figure(
        caption="Share of deliveries that took so long or less.",
        svg=line_chart(
            [
                Series(name=name, points=delays.cdf, colour=colour, dots=False)
                for name, (_, delays), colour in zip(names, shown, cycle(COLOURS), strict=False)
            ],
            x_title="delay, ms",
            y_title="share of deliveries",
            y_max=1.0,
        ),
    )


def _literature(points: Sequence[Point]) -> Table:
    values = [s.mean for p in points if (s := p.over_repeats("rdp")) is not None]
    sizes = [p.nodes for p in points]
    nearest = min(points, key=lambda p: abs(p.nodes - 1000))
    near = nearest.over_repeats("rdp")
    at_1000 = NOTHING
    if near is not None and 900 <= nearest.nodes <= 1100:
        at_1000 = f"{near.mean:.1f} ({nearest.nodes:,})"
    sizes_text = f"{min(sizes)}-{max(sizes)}" if len(sizes) > 1 else str(sizes[0])
    ours = (
        "Shoal, random", "d-regular random graph", "no", "simulated (AWS)", at_1000,
        f"{min(values):.1f}-{max(values):.1f}", sizes_text,
    )  # fmt: skip
    rows = tuple(
        (p.overlay, p.type, p.aware, p.underlay, p.at_1000, p.range, p.nodes)
        for p in published.penalties()
    )
    return Table(
        caption="Mean relative delay penalty of overlays in the literature (Table 5.4).",
        columns=("overlay", "type", "aware", "underlay", "at 1,000 nodes", "range", "nodes"),
        rows=(ours, *rows),
        left=4,
    )


# The section about prediction: what Dijkstra and the tracker foretell, and what messages take.


PREDICTION = "streams-prediction"


def prediction_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Table 3 of the paper, 5.3 of the thesis: does Dijkstra foretell the delay? Of runs under
    packet loss, which no path tells of, the section about these has the shortest paths."""
    points = [
        p
        for p in collected.points
        if p.values("tracker_error_percent") or p.values("shortest_error_percent")
        if not p.values("host_late_ms")
    ]
    if not points:
        return None
    blocks: list[Block] = [
        Table(
            caption="Mean delay foretold and measured. As in the sources, Dijkstra runs over the "
            "final overlay with the delay table's own delays; its error is that of the means over "
            "a point's overlays (Table 5.3 of the thesis), and published is what it gave there "
            "for that size (WebRTC). The tracker's estimate is no figure of the sources: it is "
            "made from the round trips that nodes reported before the first message. MAPE is the "
            "mean absolute percentage error over overlays: of either, and of the tracker's "
            "estimate for each publisher.",
            columns=(
                "scenario",
                "point",
                "measured, ms",
                "Dijkstra, ms",
                "published, ms",
                "Dijkstra error",
                "Dijkstra MAPE",
                "tracker, ms",
                "tracker MAPE",
                "publisher MAPE",
            ),
            rows=tuple(_prediction_row(point) for point in points),
            left=2,
        )
    ]
    comparisons = []
    for scenario, those in _predicted_as_published(collected).items():
        for text, told in (_dijkstra(scenario, those), _tracker(scenario, those)):
            blocks += [] if text is None else [text]
            comparisons += [] if told is None else [told]
    return Section(title="Prediction", blocks=tuple(blocks)), comparisons


def _dijkstra(scenario: str, points: Sequence[Point]) -> tuple[Text | None, Comparison | None]:
    """The published error is a mean over sizes: held against ours where all of them are there."""
    by_size: dict[int, list[RunFigures]] = {}
    for point in points:
        by_size.setdefault(point.nodes, []).extend(point.runs)
    errors = [e for runs in by_size.values() if (e := error_of_means(runs)) is not None]
    if not errors:
        return None, None
    ours, sizes = fmean(errors), len(published.propagation())
    text = (
        f"Over {len(errors)} of {sizes} sizes of {scenario}, the error of Dijkstra is {ours:.2f} % "
        f"in the mean; published: {published.ESTIMATE_ERROR_PERCENT} %, over {sizes} (WebRTC). "
        "Simulated links vary only where a scenario says so, and real ones always."
    )
    if len(errors) < sizes:
        return Text(f"{text} Without all sizes it is not held against that."), None
    return Text(text), Comparison(
        figure="error of Dijkstra, %",
        point=f"{sizes} sizes of {scenario}",
        published=published.ESTIMATE_ERROR_PERCENT,
        ours=ours,
        at_most=True,
    )


def error_of_means(runs: Sequence[RunFigures]) -> float | None:
    """Per cent between what Dijkstra gives and what was measured, each in the mean over overlays;
    None if no run has both."""
    both = [
        (run.shortest_ms, run.mean_ms)
        for run in runs
        if run.shortest_ms is not None and run.mean_ms
    ]
    if not both:
        return None
    estimated, measured = (fmean(values) for values in zip(*both, strict=True))
    return 100 * abs(estimated - measured) / measured


def _tracker(scenario: str, points: Sequence[Point]) -> tuple[Text | None, Comparison | None]:
    """No source has it: that it is no worse than theirs is our own claim."""
    errors = [e for point in points for e in point.values("tracker_error_percent")]
    mape = mean_absolute(errors)
    if mape is None:
        return None, None
    limit = published.ESTIMATE_ERROR_PERCENT
    told = Comparison(
        figure="MAPE of the tracker's own estimate, %",
        point=f"{len(errors)} overlays of {scenario}",
        against="own",
        expected=limit,
        ours=mape,
        at_most=True,
    )
    text = (
        f"Over all {len(errors)} overlays of {scenario}, the MAPE of the tracker's own estimate is "
        f"{mape:.2f} %: {told.verdict} than {limit} %, which is our limit for it."
    )
    return Text(text), told


def _predicted_as_published(collected: Collected) -> dict[str, list[Point]]:
    """By scenario, and by noise if there are several: the points whose estimates are held against
    the published error, and against our own limit."""
    # Its noise stands for that of real links.
    noisy = [point for point in collected.of(PREDICTION) if network_as_published(point.settings)]
    both = {PROPAGATION: comparable(collected), PREDICTION: noisy}
    sizes = published.propagation()
    found: dict[str, list[Point]] = {}
    for scenario, points in both.items():
        noises = {_noise(point) for point in points}
        for point in points:
            name = scenario if len(noises) == 1 else f"{scenario} ({_noise(point)})"
            if point.nodes in sizes:
                found.setdefault(name, []).append(point)
    return found


def _noise(point: Point) -> str:
    """What jitter and service times were set to."""
    told = {name: value for name, value in point.settings.items() if name.startswith("faults.")}
    return ", ".join(f"{name} {value}" for name, value in sorted(told.items())) or "no noise"


def _prediction_row(point: Point) -> tuple[str, ...]:
    tracker = mean_absolute(point.values("tracker_error_percent"))
    shortest = mean_absolute(point.values("shortest_error_percent"))
    publishers = point.over_repeats("publisher_mape_percent")
    as_published = network_as_published(point.settings)
    size = published.propagation().get(point.nodes) if as_published else None
    return (
        point.scenario,
        point.label,
        spread(point.over_repeats("mean_ms")),
        spread(point.over_repeats("shortest_ms")),
        number(size.estimated_ms if size else None, 0),
        _per_cent(error_of_means(point.runs)),
        _per_cent(shortest),
        spread(point.over_repeats("tracker_ms")),
        _per_cent(tracker),
        _per_cent(None if publishers is None else publishers.mean),
    )


def _per_cent(value: float | None) -> str:
    return percent(None if value is None else value / 100, 2)
