"""The section about prediction: what Dijkstra and the tracker foretell, and what messages take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from shoal.pipeline.jobs.collect import mean_absolute
from shoal.pipeline.jobs.collected import Collected, Point, RunFigures
from shoal.pipeline.report import published
from shoal.pipeline.report.as_published import PROPAGATION, comparable, network_as_published
from shoal.pipeline.report.model import Block, Comparison, Section, Table, Text
from shoal.pipeline.report.numbers import number, percent, spread

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
