"""Sections about delay: propagation, relative delay penalty, prediction."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.pipeline.jobs.collect import mean_absolute
from shoal.pipeline.jobs.collected import Collected, Point
from shoal.pipeline.report import published
from shoal.pipeline.report.as_published import (
    PROPAGATION,
    comparable,
    network_as_published,
    size_name,
)
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, between, number, percent, spread
from shoal.pipeline.report.svg import COLOURS, PUBLISHED, Series, line_chart

PREDICTION = "streams-prediction"
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
                published=published.RDP if stated else size.mean_ms / published.UNICAST_MS,
                spread=(size.min_ms / published.UNICAST_MS, size.max_ms / published.UNICAST_MS),
                ours=ours.mean,
                tolerance=published.MEAN_TOLERANCE,
            )
            comparisons.append(told)
        rows.append(
            (
                size_name(point, points),
                number(told.published, 2) if told else NOTHING,
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
            f"directly. Published: the delays above over {published.UNICAST_MS} ms.",
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


def prediction_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Table 3 of the paper, 5.3 of the thesis: does Dijkstra foretell the delay?"""
    points = [
        p
        for p in collected.points
        if p.values("tracker_error_percent") or p.values("shortest_error_percent")
    ]
    if not points:
        return None
    blocks: list[Block] = [
        Table(
            caption="Mean delay foretold and measured. MAPE is the mean absolute percentage error "
            "over overlays (thesis 5.3.3): of the tracker's estimate, made from the round trips "
            "that nodes reported before the first message; of the same for each publisher; and of "
            "Dijkstra over the final overlay with the delay table's own delays. Published: what "
            "was foretold in the source for that size (WebRTC).",
            columns=(
                "scenario",
                "point",
                "measured, ms",
                "tracker, ms",
                "published, ms",
                "tracker MAPE",
                "publisher MAPE",
                "Dijkstra, ms",
                "Dijkstra MAPE",
            ),
            rows=tuple(_prediction_row(point) for point in points),
            left=2,
        )
    ]
    comparisons = []
    for scenario, those in _predicted_as_published(collected).items():
        errors = [e for point in those for e in point.values("tracker_error_percent")]
        mape = mean_absolute(errors)
        if mape is None:
            continue
        comparisons.append(
            Comparison(
                figure="prediction MAPE, %",
                point=f"{len(errors)} overlays of {scenario}",
                published=published.MAPE_PERCENT,
                ours=mape,
                at_most=True,
            )
        )
        blocks.append(
            Text(
                f"Over all {len(errors)} overlays of {scenario}, the tracker's MAPE is "
                f"{mape:.2f} %; published: {published.MAPE_PERCENT} % (WebRTC). "
                "Simulated links vary only where a scenario says so, and real ones always."
            )
        )
    return Section(title="Prediction", blocks=tuple(blocks)), comparisons


def _predicted_as_published(collected: Collected) -> dict[str, list[Point]]:
    """By scenario: the points whose estimates are held against the published error."""
    # Its noise stands for that of real links.
    noisy = [point for point in collected.of(PREDICTION) if network_as_published(point.settings)]
    both = {PROPAGATION: comparable(collected), PREDICTION: noisy}
    sizes = published.propagation()
    return {name: [p for p in points if p.nodes in sizes] for name, points in both.items()}


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
    ours = [(p.nodes, p.over_repeats("mean_ms")) for p in points]
    known = [size for n, size in sorted(published.propagation().items())]
    return Figure(
        caption="Mean delay by number of nodes; bars from the least to the greatest of the runs.",
        svg=line_chart(
            [
                Series(
                    name="published (WebRTC)",
                    points=tuple((s.nodes, s.mean_ms) for s in known),
                    spread=tuple((s.min_ms, s.max_ms) for s in known),
                    colour=PUBLISHED,
                    dashed=True,
                ),
                Series(
                    name="Shoal",
                    points=tuple((n, s.mean) for n, s in ours if s),
                    spread=tuple((s.min, s.max) for _, s in ours if s),
                    colour=COLOURS[0],
                ),
            ],
            x_title="nodes",
            y_title="mean delay, ms",
            doubling=True,
        ),
    )


def _curves(points: Sequence[Point]) -> Figure:
    shown = [(p, p.delays) for p in points if p.delays is not None]
    return Figure(
        caption="Share of deliveries that took so long or less.",
        svg=line_chart(
            [
                Series(
                    name=f"{point.nodes:,} nodes",
                    points=delays.cdf,
                    colour=COLOURS[number % len(COLOURS)],
                    dots=False,
                )
                for number, (point, delays) in enumerate(shown)
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
        spread(point.over_repeats("tracker_ms")),
        number(size.estimated_ms if size else None, 0),
        percent(None if tracker is None else tracker / 100, 2),
        percent(None if publishers is None else publishers.mean / 100, 2),
        spread(point.over_repeats("shortest_ms")),
        percent(None if shortest is None else shortest / 100, 2),
    )
