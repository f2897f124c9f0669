"""What the thesis concludes about packet loss (5.3.2), held against runs.

Runs of one seed have the same overlay at every rate and over either transport, so that differences
are taken between runs of one seed: how overlays differ is out of it. Where a call came to nothing
and the tracker chose another link, they differ all the same; so what counts of a run is how far its
mean delay lies above that of the shortest paths of its own overlay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from shoal.pipeline.jobs.collected import Point, Spread
from shoal.pipeline.report import published
from shoal.pipeline.report.numbers import percent, spread

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
