"""The section about packet loss: delays and deliveries by the rate at which links lose packets.

Runs of one seed have the same overlay at every rate, so that a rise of the delay is taken run by
run against the run of that seed without loss: how overlays differ is out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from shoal.pipeline.jobs.collected import Collected, Point, Spread
from shoal.pipeline.report import published
from shoal.pipeline.report.model import Block, Comparison, Figure, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, number, percent, spread
from shoal.pipeline.report.svg import COLOURS, Series, line_chart

SCENARIO = "streams-loss"
RATE = "options.loss_percent"

CONFIRMED, CONTRADICTED, OPEN = "confirmed", "contradicted", "open"

LOW, HIGH = published.LOSS_SLOWER_PERCENT


class Verdict(msgspec.Struct, frozen=True):
    """What the source concludes, and what we saw of it."""

    said: str
    seen: str
    verdict: str


def loss_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Figure 5.5 of the thesis. It has no numbers, so that conclusions are what is compared."""
    points = [p for p in collected.of(SCENARIO) if p.delays is not None and RATE in p.settings]
    curves = _curves(points)
    if not curves:
        return None
    blocks: list[Block] = []
    for curve in curves:
        blocks.append(_table(curve))
        if len(curve) > 1:
            blocks.append(_figure(curve))
        verdicts = judge(curve)
        blocks += [*_growth(curve), _verdict_table(curve, verdicts), Text(conclude(verdicts))]
    return Section(title="Packet loss", blocks=tuple(blocks)), []


def rate_of(point: Point) -> float:
    """Per cent of packets that a link loses."""
    return float(point.settings[RATE])


def rise(point: Point, baseline: Point | None) -> Spread | None:
    """By how much the mean delay lies above that of the same seed without loss; None if no seed
    has both."""
    if baseline is None:
        return None
    before = {run.seed: run.mean_ms for run in baseline.runs if run.mean_ms is not None}
    rises = [
        run.mean_ms - before[run.seed]
        for run in point.runs
        if run.mean_ms is not None and run.seed in before
    ]
    return Spread(fmean(rises), min(rises), max(rises), len(rises)) if rises else None


def judge(curve: Sequence[Point]) -> list[Verdict]:
    """The source's conclusions, held against one curve."""
    return [_judge_completeness(curve), *_judge_slower(curve), _WEBRTC]


def conclude(verdicts: Sequence[Verdict]) -> str:
    """One sentence for all."""
    by_verdict = {
        verdict: [told.said for told in verdicts if told.verdict == verdict]
        for verdict in (CONTRADICTED, CONFIRMED, OPEN)
    }
    parts = [f"{verdict} is: {'; '.join(said)}" for verdict, said in by_verdict.items() if said]
    text = ". ".join(part[0].upper() + part[1:] for part in parts)
    return f"Of what the source concludes, by these runs: {text}."


_WEBRTC = Verdict(
    f"WebRTC is ahead of WebSocket from {LOW:g} to {HIGH:g} % and behind it at 5 %",
    "not measured: these runs are over WebSocket, and Shoal has no other transport yet",
    OPEN,
)


def _judge_completeness(curve: Sequence[Point]) -> Verdict:
    said = "messages arrive at everybody whatever the loss"
    least = {rate_of(p): min(p.values("coverage"), default=0.0) for p in curve}
    missing = {rate: share for rate, share in least.items() if share < 1}
    if missing:
        rate = min(missing, key=lambda rate: missing[rate])
        return Verdict(said, f"{percent(missing[rate], 3)} at {rate:g} % loss", CONTRADICTED)
    return Verdict(said, f"all of them, at up to {max(least):g} % loss", CONFIRMED)


def _judge_slower(curve: Sequence[Point]) -> list[Verdict]:
    """One verdict for all rates that have it in common."""
    between = [p for p in curve if LOW <= rate_of(p) <= HIGH]
    rises = {rate_of(p): r for p in between if (r := rise(p, _baseline(curve)))}
    if not rises:
        said = f"loss of {LOW:g} to {HIGH:g} % slows WebSocket down"
        return [Verdict(said, "no seed was run both without loss and at such a rate", OPEN)]
    told = []
    for verdict in (CONFIRMED, CONTRADICTED, OPEN):
        alike = {rate: r for rate, r in rises.items() if _verdict(r) == verdict}
        if alike:
            said = f"loss of {', '.join(f'{rate:g}' for rate in alike)} % slows WebSocket down"
            seen = ", ".join(f"{spread(r)} ms at {rate:g} %" for rate, r in alike.items())
            told.append(Verdict(said, f"mean delay over that without loss: {seen}", verdict))
    return told


def _verdict(rise: Spread) -> str:
    """Chance makes some seeds faster and some slower: other packets are lost, and the machine does
    other things. So it is said only of what all seeds agree in."""
    if rise.min > 0:
        return CONFIRMED
    return CONTRADICTED if rise.max <= 0 else OPEN


def _growth(curve: Sequence[Point]) -> list[Block]:
    """What a per cent costs, on either side of where the source sees the transports change
    places."""
    rises = {rate_of(p): r.mean for p in curve if (r := rise(p, _baseline(curve)))}
    top = max(rises, default=0.0)
    if HIGH not in rises or top <= HIGH:
        return []
    below, above = rises[HIGH] / HIGH, (rises[top] - rises[HIGH]) / (top - HIGH)
    return [
        Text(
            f"Each per cent of loss adds {below:.1f} ms to the mean delay up to {HIGH:g} %, and "
            f"{above:.1f} ms from there to {top:g} %."
        )
    ]


def _curves(points: Sequence[Point]) -> list[list[Point]]:
    """Points that differ in their rate alone, by rate."""
    groups: dict[bytes, list[Point]] = {}
    for point in points:
        rest = {name: value for name, value in point.settings.items() if name != RATE}
        groups.setdefault(msgspec.json.encode(rest, order="deterministic"), []).append(point)
    return [sorted(group, key=rate_of) for group in groups.values()]


def _baseline(curve: Sequence[Point]) -> Point | None:
    return curve[0] if rate_of(curve[0]) == 0 else None


def _table(curve: Sequence[Point]) -> Table:
    rows = []
    for point in curve:
        delays, above = point.delays, rise(point, _baseline(curve))
        assert delays is not None
        rows.append(
            (
                f"{rate_of(point):g} %",
                str(len(point.runs)),
                spread(point.over_repeats("mean_ms")),
                spread(above) if above and rate_of(point) else NOTHING,
                number(delays.p50_ms),
                number(delays.p95_ms),
                number(delays.p99_ms),
                number(max(point.values("max_ms"), default=None)),
                percent(min(point.values("coverage"), default=None), 3),
                spread(point.over_repeats("shortest_ms")),
            )
        )
    return Table(
        caption=f"Delay in milliseconds of {curve[0].nodes} nodes over WebSocket, by the loss on "
        "each host's link, each way; a packet takes two such links. Real kernels and processes, "
        f"in real time. The source ({published.LOSS_NODES} nodes, {published.LOSS_ROUND_TRIP_MS} "
        "ms mean round trip) publishes its curve as a picture without numbers. Last column: "
        "shortest paths over the delay table, which is what no loss and no work would give.",
        columns=(
            "loss",
            "runs",
            "mean",
            "above 0 %",
            "p50",
            "p95",
            "p99",
            "longest",
            "least coverage",
            "shortest paths",
        ),
        rows=tuple(rows),
    )


def _verdict_table(curve: Sequence[Point], verdicts: Sequence[Verdict]) -> Table:
    return Table(
        caption=f"What the source concludes (thesis 5.3.2), and {sum(len(p.runs) for p in curve)} "
        "runs of ours. Slower is confirmed if every seed is, contradicted if none is, else open.",
        columns=("conclusion", "ours", "verdict"),
        rows=tuple((told.said, told.seen, told.verdict) for told in verdicts),
        left=3,
    )


def _figure(curve: Sequence[Point]) -> Figure:
    means = [(rate_of(p), s) for p in curve if (s := p.over_repeats("mean_ms"))]
    tails = {"p95": "p95_ms", "p99": "p99_ms"}
    return Figure(
        caption="Delay by packet loss: mean of the runs with least and greatest, and percentiles "
        "over all deliveries.",
        svg=line_chart(
            [
                Series(
                    name="mean",
                    points=tuple((rate, s.mean) for rate, s in means),
                    spread=tuple((s.min, s.max) for _, s in means),
                    colour=COLOURS[0],
                ),
                *(
                    Series(
                        name=name,
                        points=tuple((rate_of(p), getattr(p.delays, field)) for p in curve),
                        colour=colour,
                    )
                    for (name, field), colour in zip(tails.items(), COLOURS[1:], strict=False)
                ),
            ],
            x_title="packets lost on a link, per cent",
            y_title="delay, ms",
        ),
    )
