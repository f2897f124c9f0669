"""The section about packet loss: delays and deliveries by the rate at which links lose packets, of
nodes over WebSocket and over WebRTC."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from shoal.pipeline.jobs.collected import Collected, Point
from shoal.pipeline.jobs.points import settings_but
from shoal.pipeline.report import published
from shoal.pipeline.report.as_published import loss_as_published
from shoal.pipeline.report.loss_claims import (
    CONFIRMED,
    CONTRADICTED,
    HIGH,
    NAMES,
    OPEN,
    RATE,
    TRANSPORT,
    Curve,
    Curves,
    Verdict,
    baseline_of,
    difference,
    judge,
    rate_of,
    rise,
    rises_of_seeds,
)
from shoal.pipeline.report.loss_validity import name_late, validity_table, without_late
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, number, percent, spread
from shoal.pipeline.report.svg import COLOURS, Series, line_chart

SCENARIO = "streams-loss"
NOT_JUDGED = (
    f"The source had {published.LOSS_NODES} nodes of degree {published.DEGREE}, each in a region "
    "of its own, and every link carried every message: other runs are not held against it."
)


def loss_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Figure 5.5 has no numbers, so that conclusions are what is compared."""
    points = [
        p
        for p in collected.of(SCENARIO)
        if p.values("messages") and RATE in p.settings and p.settings.get(TRANSPORT) in NAMES
    ]
    blocks: list[Block] = []
    experiments = _by_experiment(points)
    for curves in experiments:
        if len(experiments) > 1:
            blocks.append(Text(f"Runs with {_setting(curves)}:"))
        blocks += name_late(curves)
        blocks += _told(without_late(curves))
        blocks.append(validity_table(curves))
    return (Section(title="Packet loss", blocks=tuple(blocks)), []) if blocks else None


def _told(curves: Curves) -> list[Block]:
    """All that runs say which differ in rate and transport alone."""
    if not curves:
        return []
    blocks: list[Block] = [_table(curves)]
    if any(len(curve) > 1 for curve in curves.values()):
        blocks.append(_figure(curves))
    blocks.append(_tails(curves))
    blocks += [Text(said) for name in curves if (said := _growth(name, curves[name]))]
    if not all(loss_as_published(p.settings) for curve in curves.values() for p in curve):
        return [*blocks, Text(NOT_JUDGED)]
    verdicts = judge(curves)
    return [*blocks, _verdict_table(curves, verdicts), Text(conclude(verdicts))]


def conclude(verdicts: Sequence[Verdict]) -> str:
    """One sentence for all."""
    by_verdict = {
        verdict: [told.said for told in verdicts if told.verdict == verdict]
        for verdict in (CONTRADICTED, CONFIRMED, OPEN)
    }
    parts = [f"{verdict} is: {'; '.join(said)}" for verdict, said in by_verdict.items() if said]
    text = ". ".join(part[0].upper() + part[1:] for part in parts)
    return f"Of what the source concludes, by these runs: {text}."


def _growth(transport: str, curve: Curve) -> str | None:
    """What a per cent costs, on either side of where the source sees the transports change
    places, of the seeds that were run on both."""
    baseline, at = baseline_of(curve), {rate_of(point): point for point in curve}
    top = max(at)
    if baseline is None or HIGH not in at or top <= HIGH:
        return None
    middle, end = (rises_of_seeds(at[rate], baseline) for rate in (HIGH, top))
    seeds = [seed for seed in middle if seed in end]
    if not seeds:
        return None
    below = fmean(middle[seed] for seed in seeds) / HIGH
    above = fmean(end[seed] - middle[seed] for seed in seeds) / (top - HIGH)
    return (
        f"Over {NAMES[transport]}, each per cent of loss adds {below:.1f} ms to the mean delay up "
        f"to {HIGH:g} %, and {above:.1f} ms from there to {top:g} %."
    )


def _by_experiment(points: Sequence[Point]) -> list[Curves]:
    """Points that differ in rate and transport alone: by transport, and then by rate."""
    groups: dict[bytes, list[Point]] = {}
    for point in points:
        groups.setdefault(settings_but(point.settings, RATE, TRANSPORT), []).append(point)
    return [
        {
            name: sorted(curve, key=rate_of)
            for name in NAMES
            if (curve := [point for point in group if point.settings[TRANSPORT] == name])
        }
        for group in groups.values()
    ]


def _setting(curves: Curves) -> str:
    """What tells an experiment from the others."""
    label = next(iter(curves.values()))[0].label
    both = tuple(name.removeprefix("options.") for name in (RATE, TRANSPORT))
    return ", ".join(part for part in label.split(", ") if not part.startswith(both))


def _table(curves: Curves) -> Table:
    """The transports side by side."""
    rates = sorted({rate_of(point) for curve in curves.values() for point in curve})
    both = len(curves) > 1
    columns, rows = ["loss"], [[f"{rate:g} %"] for rate in rates]
    for name, curve in curves.items():
        columns += [f"{NAMES[name]}: runs", "mean", "above 0 %", "delivered"]
        at = {rate_of(point): point for point in curve}
        for rate, row in zip(rates, rows, strict=True):
            row += _cells(at[rate], curve) if rate in at else [NOTHING] * 4
    if both:
        columns.append("WebRTC less WebSocket")
        for rate, row in zip(rates, rows, strict=True):
            less = difference(curves, rate.__eq__)
            row.append(NOTHING if less is None else str(less))
    nodes = next(iter(curves.values()))[0].nodes
    caption = (
        f"Mean delay in milliseconds of {nodes} nodes over {_names(curves)}, by the loss on each "
        "host's link, each way; a packet takes two such links. Means over runs, with least and "
        f"greatest. Real kernels and processes, in real time: {_workload(curves)}. The source "
        f"({published.LOSS_NODES} nodes, {published.LOSS_ROUND_TRIP_MS} ms mean round trip, "
        f"{published.LOSS_MESSAGES_PER_NODE} messages from each node at "
        f"{published.LOSS_INTERVAL_MS:g} ms, {published.LOSS_REPEATS} repeats) publishes its "
        "curves as a picture without numbers. Differences are taken between runs of one seed, "
        "each against the shortest paths of its own overlay."
    )
    if both:
        caption += " Last column: with the 95 % interval of their mean (Student's)."
    return Table(caption=caption, columns=tuple(columns), rows=tuple(map(tuple, rows)))


def _workload(curves: Curves) -> str:
    """What was published here, and how often that was repeated."""
    points = [point for curve in curves.values() for point in curve]
    first, repeats = points[0], max(len(point.runs) for point in points)
    each = first.planned_messages / first.nodes if first.nodes else 0
    return (
        f"{each:g} messages per node, one every "
        f"{number(first.settings.get('workload.interval_ms'), 0)} ms from all of them together, "
        f"{repeats} repeats at most"
    )


def _cells(point: Point, curve: Curve) -> list[str]:
    above = rise(point, baseline_of(curve)) if rate_of(point) else None
    delivered, expected = (sum(point.values(name)) for name in ("delivered", "expected"))
    return [
        str(len(point.runs)),
        spread(point.over_repeats("mean_ms")),
        spread(above),
        f"{delivered:,.0f} of {expected:,.0f}",
    ]


def _tails(curves: Curves) -> Table:
    rows = tuple(
        (
            NAMES[name],
            f"{rate_of(point):g} %",
            *(_percentile(point, f"{p}_ms") for p in ("p50", "p95", "p99")),
            number(max(point.values("max_ms"), default=None)),
            percent(min(point.values("coverage"), default=None), 3),
            spread(point.over_repeats("shortest_ms")),
        )
        for name, curve in curves.items()
        for point in curve
    )
    return Table(
        caption="Delays in milliseconds over all deliveries of a rate; where runs are left out, "
        "the mean of the others' own percentiles. Last column: shortest paths of the overlay over "
        "the delay table, which is what no loss and no work would give.",
        columns=(
            "transport",
            "loss",
            "p50",
            "p95",
            "p99",
            "longest",
            "least coverage",
            "shortest paths",
        ),
        rows=rows,
    )


def _percentile(point: Point, name: str) -> str:
    if point.delays is None:
        return spread(point.over_repeats(name))
    return number(getattr(point.delays, name))


def _p99_ms(point: Point) -> float | None:
    own = point.over_repeats("p99_ms")
    return point.delays.p99_ms if point.delays else own.mean if own else None


def _verdict_table(curves: Curves, verdicts: Sequence[Verdict]) -> Table:
    runs = sum(len(point.runs) for curve in curves.values() for point in curve)
    return Table(
        caption=f"What the source concludes (thesis 5.3.2), and {runs} runs of ours. Slower is "
        "confirmed if every seed is, contradicted if none is, else open, and so it is with a "
        "single seed. Between transports each seed has one mean, over rates that all seeds have "
        "over both, and it is the 95 % interval that counts: that one is ahead is confirmed or "
        "contradicted if zero is outside it, else open; no significant difference is confirmed if "
        "zero is inside, however wide it is.",
        columns=("conclusion", "ours", "verdict"),
        rows=tuple((told.said, told.seen, told.verdict) for told in verdicts),
        left=3,
    )


def _figure(curves: Curves) -> Figure:
    lines = []
    for place, (name, curve) in enumerate(curves.items()):
        means = [(rate_of(p), s) for p in curve if (s := p.over_repeats("mean_ms"))]
        lines.append(
            Series(
                name=f"{NAMES[name]}, mean",
                points=tuple((rate, s.mean) for rate, s in means),
                spread=tuple((s.min, s.max) for _, s in means),
                colour=COLOURS[place],
            )
        )
        lines.append(
            Series(
                name=f"{NAMES[name]}, p99",
                points=tuple((rate_of(p), ms) for p in curve if (ms := _p99_ms(p)) is not None),
                colour=COLOURS[place],
                dashed=True,
            )
        )
    return Figure(
        caption="Delay by packet loss: mean of the runs with least and greatest, and the 99th "
        "percentile.",
        svg=line_chart(lines, x_title="packets lost on a link, per cent", y_title="delay, ms"),
    )


def _names(curves: Curves) -> str:
    return " and ".join(NAMES[name] for name in curves)
