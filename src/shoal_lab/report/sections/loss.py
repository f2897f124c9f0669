"""The section about packet loss: delays and deliveries by the rate at which links lose packets, of
nodes over WebSocket and over WebRTC."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from shoal_lab.report import published
from shoal_lab.report.analysis.points import settings_but
from shoal_lab.report.analysis.report_data import Collected, Point, RunFigures, Spread
from shoal_lab.report.blocks import Block, Comparison, Figure, Section, Table, Text
from shoal_lab.report.labels import NOTHING, number, percent, spread
from shoal_lab.report.published import loss_as_published
from shoal_lab.report.svg import COLOURS, Series, line_chart

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


# What the thesis concludes about packet loss (5.3.2), held against runs.
#
# Runs of one seed have the same overlay at every rate and over either transport, so that
# differences are taken between runs of one seed: how overlays differ is out of it. Where a call
# came to nothing and the tracker chose another link, they differ all the same; so what counts of a
# run is how far its mean delay lies above that of the shortest paths of its own overlay.


RATE, TRANSPORT = "options.loss_percent", "options.transport"
WEBSOCKET, WEBRTC = "websocket", "webrtc"
NAMES = {WEBSOCKET: "WebSocket", WEBRTC: "WebRTC"}

CONFIRMED, CONTRADICTED, OPEN = "confirmed", "contradicted", "open"
CONFIDENCE = 0.95

LOW, HIGH = published.LOSS_SLOWER_PERCENT
LEVEL = published.LOSS_CHANGED_PERCENT
STEADY = published.LOSS_STEADY_PERCENT

Curve = Sequence[Point]
"""Points that differ in their rate alone, by rate."""
Curves = Mapping[str, Curve]
"""By transport."""


class Verdict(msgspec.Struct, frozen=True):
    """What the source concludes, and what we saw of it."""

    said: str
    seen: str
    verdict: str


class Interval(msgspec.Struct, frozen=True):
    """A mean of seeds, and between what it lies with a confidence of 95 %."""

    mean: float
    low: float
    high: float
    seeds: int
    left_out: tuple[float, ...] = ()
    """Rates that some of these seeds lack over a transport, so that they are in no seed's mean."""

    def __str__(self) -> str:
        """For people; a single seed has no interval."""
        if self.seeds == 1:
            return f"{self.mean:+.1f}"
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def rate_of(point: Point) -> float:
    """Per cent of packets that a link loses."""
    return float(point.settings[RATE])


def rise(point: Point, baseline: Point | None) -> Spread | None:
    """By how much the delay lies above that of the same seed without loss; None if no seed has
    both."""
    if baseline is None:
        return None
    rises = list(rises_of_seeds(point, baseline).values())
    return Spread(fmean(rises), min(rises), max(rises), len(rises)) if rises else None


def rises_of_seeds(point: Point, baseline: Point) -> dict[int, float]:
    """The same, of each seed that has both."""
    before, after = above_paths(baseline), above_paths(point)
    return {seed: after[seed] - before[seed] for seed in after if seed in before}


def above_paths(point: Point) -> dict[int, float]:
    """By how much the mean delay lies above that of shortest paths, for each seed."""
    return {
        run.seed: run.mean_ms - run.shortest_ms
        for run in point.runs
        if run.mean_ms is not None and run.shortest_ms is not None
    }


def baseline_of(curve: Curve) -> Point | None:
    """The point without loss."""
    return curve[0] if rate_of(curve[0]) == 0 else None


def difference(
    curves: Curves, wanted: Callable[[float], bool], *, rises: bool = False
) -> Interval | None:
    """WebRTC less WebSocket: for each seed the mean over those of the wanted rates that all seeds
    were run at over both; None if there is no such rate. With rises: of what loss adds to each.

    A rate that one seed lacks is left out for all of them: loss of 5 % costs ten times what 1 %
    does, and the seed without it would be another quantity, whose distance from the others counted
    as chance.
    """
    here, there = (
        {rate_of(point): above_paths(point) for point in curves.get(transport, ())}
        for transport in (WEBRTC, WEBSOCKET)
    )
    clean = here.get(0.0, {}), there.get(0.0, {})
    seeds_at = {
        rate: [
            seed
            for seed in here.get(rate, {})
            if seed in there.get(rate, {}) and (not rises or all(seed in one for one in clean))
        ]
        for rate in sorted({*here, *there})
        if wanted(rate)
    }
    seeds = sorted({seed for those in seeds_at.values() for seed in those})
    rates = [rate for rate, those in seeds_at.items() if those and len(those) == len(seeds)]
    if not rates:
        return None

    def less(seed: int) -> float:
        apart = fmean(here[rate][seed] - there[rate][seed] for rate in rates)
        return apart - (clean[0][seed] - clean[1][seed] if rises else 0.0)

    found = interval([less(seed) for seed in seeds])
    assert found is not None
    left_out = tuple(rate for rate in seeds_at if rate not in rates)
    return msgspec.structs.replace(found, left_out=left_out)


def interval(values: Sequence[float]) -> Interval | None:
    """Student's, of the mean of values that are drawn independently; None if there is none."""
    # It takes half a second to load, and most reports have no such section.
    from scipy.special import stdtrit

    if not values:
        return None
    mean, count = fmean(values), len(values)
    if count == 1:
        return Interval(mean, float("-inf"), float("inf"), 1)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def judge(curves: Curves) -> list[Verdict]:
    """The source's conclusions, held against runs that differ in rate and transport alone."""
    websocket = curves.get(WEBSOCKET)
    slower = _judge_slower(websocket) if websocket else []
    return [_judge_completeness(curves), *slower, *_judge_transports(curves)]


def _judge_completeness(curves: Curves) -> Verdict:
    said = "messages arrive at everybody whatever the loss"
    least = {
        (transport, rate_of(point)): min(point.values("coverage"), default=0.0)
        for transport, curve in curves.items()
        for point in curve
    }
    missing = {at: share for at, share in least.items() if share < 1}
    if missing:
        transport, rate = min(missing, key=lambda at: missing[at])
        worst = percent(missing[transport, rate], 3)
        seen = f"{worst} over {NAMES[transport]} at {rate:g} % loss"
        return Verdict(said, seen, CONTRADICTED)
    over = " and ".join(NAMES[transport] for transport in curves)
    top = max(rate for _, rate in least)
    return Verdict(said, f"all of them, over {over}, at up to {top:g} % loss", CONFIRMED)


def _judge_slower(curve: Curve) -> list[Verdict]:
    """One verdict for all rates that have it in common."""
    between = [p for p in curve if LOW <= rate_of(p) <= HIGH]
    rises = {rate_of(p): r for p in between if (r := rise(p, baseline_of(curve)))}
    if not rises:
        said = f"loss of {LOW:g} to {HIGH:g} % slows WebSocket down"
        return [Verdict(said, "no seed was run both without loss and at such a rate", OPEN)]
    told = []
    for verdict in (CONFIRMED, CONTRADICTED, OPEN):
        alike = {rate: r for rate, r in rises.items() if _of_all_seeds(r) == verdict}
        if alike:
            said = f"loss of {', '.join(f'{rate:g}' for rate in alike)} % slows WebSocket down"
            seen = ", ".join(f"{spread(r)} ms at {rate:g} %" for rate, r in alike.items())
            told.append(Verdict(said, f"mean delay over that without loss: {seen}", verdict))
    return told


def _of_all_seeds(rise: Spread) -> str:
    """Chance makes some seeds faster and some slower: other packets are lost, and the machine does
    other things. So it is said only of what all seeds agree in, if there are several."""
    if rise.repeats == 1:
        return OPEN
    if rise.min > 0:
        return CONFIRMED
    return CONTRADICTED if rise.max <= 0 else OPEN


def _judge_transports(curves: Curves) -> list[Verdict]:
    """Each conclusion is about one mean over rates, so that each is one interval: of many, one by
    rate, some would leave out zero by chance."""
    under_loss = difference(curves, lambda rate: rate > 0)
    said = "there is no significant difference between WebRTC and WebSocket under loss"
    level = OPEN
    if under_loss is not None and under_loss.seeds > 1:
        level = CONFIRMED if under_loss.low <= 0 <= under_loss.high else CONTRADICTED
    steady = difference(curves, lambda rate: 0 < rate < STEADY, rises=True)
    return [
        Verdict(said, _seen(under_loss, "over all rates"), level),
        _ahead(
            f"WebRTC is ahead of WebSocket from {LOW:g} to {HIGH:g} %",
            difference(curves, lambda rate: LOW <= rate <= HIGH),
            "over these rates",
        ),
        _ahead(
            f"WebSocket is ahead of WebRTC at {LEVEL:g} %",
            difference(curves, lambda rate: rate == LEVEL),
            "there",
            sign=-1,
        ),
        _ahead(
            f"below {STEADY:g} % WebRTC stays closer to its delay without loss than WebSocket",
            steady,
            "of what loss adds",
        ),
    ]


def _ahead(said: str, less: Interval | None, where: str, sign: int = 1) -> Verdict:
    verdict = OPEN
    if less is not None and less.seeds > 1:
        low, high = sorted((sign * less.low, sign * less.high))
        verdict = CONFIRMED if high < 0 else CONTRADICTED if low > 0 else OPEN
    return Verdict(said, _seen(less, where), verdict)


def _seen(less: Interval | None, where: str) -> str:
    if less is None:
        return "not measured: no such rate was run over both, with all seeds"
    told = f"WebRTC less WebSocket {where}: {less} ms"
    if less.left_out:
        rates = ", ".join(f"{rate:g}" for rate in less.left_out)
        told += f" (without {rates} %: not run over both with all seeds)"
    if less.seeds == 1:
        return f"{told} with one seed, which says nothing of chance"
    return f"{told}, {less.seeds} seeds"


# Whether runs under packet loss measured links, or a machine that was too busy for them.


HOST_LATE_MS_MAX = 3.0
"""In the mean: hosts that publish later than that waited for a processor, and so did messages."""


def was_late(run: RunFigures) -> bool:
    """Whether a run is worthless; one that does not say is taken as it is."""
    return (run.host_late_ms or 0.0) > HOST_LATE_MS_MAX


def without_late(curves: Curves) -> dict[str, list[Point]]:
    """What is left if late runs are left out; points and curves of nothing else are gone."""
    left = {
        name: [kept for point in curve if (kept := _timely(point)).runs]
        for name, curve in curves.items()
    }
    return {name: curve for name, curve in left.items() if curve}


def _timely(point: Point) -> Point:
    kept = tuple(run for run in point.runs if not was_late(run))
    if len(kept) == len(point.runs):
        return point
    # Deliveries were counted over all runs of the point.
    return msgspec.structs.replace(point, runs=kept, delays=None)


def name_late(curves: Curves) -> list[Text]:
    """Which runs are left out; empty if none is."""
    late = [
        f"{run.run} ({number(run.host_late_ms)} ms)"
        for curve in curves.values()
        for point in curve
        for run in point.runs
        if was_late(run)
    ]
    if not late:
        return []
    return [
        Text(
            f"Left out of all means, intervals and verdicts of this section: {', '.join(late)}. "
            "The table of all points has them. Their hosts published more than "
            f"{HOST_LATE_MS_MAX:g} ms late in the mean, so that they measured the machine. "
            "`shoal lab run --again`, when it has less to do, replaces them."
        )
    ]


def validity_table(curves: Curves) -> Table:
    """Of all runs, also those that are left out."""
    return Table(
        caption="Whether runs are valid: how much later than planned hosts published, in the mean "
        f"of each run (above {HOST_LATE_MS_MAX:g} ms it is left out); packets that a full queue "
        "lost, which nobody asked for; and what part of their packets links lost, which should "
        "be the second column.",
        columns=(
            "transport",
            "loss",
            "runs",
            "left out",
            "hosts late, ms",
            "overflowed",
            "packets",
            "measured loss",
        ),
        rows=tuple(_row(name, point) for name, curve in curves.items() for point in curve),
        left=2,
    )


def _row(transport: str, point: Point) -> tuple[str, ...]:
    told = [run.packets for run in point.runs if run.packets is not None]
    packets = sum(each.packets for each in told)
    return (
        NAMES[transport],
        f"{rate_of(point):g} %",
        str(len(point.runs)),
        str(sum(map(was_late, point.runs))),
        spread(point.over_repeats("host_late_ms")),
        number(sum(each.overflowed for each in told) if told else None, 0),
        number(packets if told else None, 0),
        percent(sum(each.dropped for each in told) / packets if packets else None, 3),
    )
