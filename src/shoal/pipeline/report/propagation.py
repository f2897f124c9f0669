"""Sections about delay: propagation, and the relative delay penalty."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from shoal.pipeline.jobs.collected import Collected, Point
from shoal.pipeline.jobs.points import settings_but
from shoal.pipeline.report import published
from shoal.pipeline.report.as_published import comparable, size_name
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.names import tell_apart
from shoal.pipeline.report.numbers import NOTHING, between, number, percent, spread
from shoal.pipeline.report.svg import COLOURS, PUBLISHED, Series, line_chart

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
