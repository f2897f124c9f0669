"""From collected aggregates to a report: which sections, and what they come to.

A protocol adds its experiments with a function in SECTIONS: it gets everything and says None if
nothing concerns it. Runs that no section knows are still in the table of all points.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.pipeline.jobs.collected import Collected, Point
from shoal.pipeline.report import (
    loss,
    policies,
    propagation,
    search,
    sockets,
    topics,
    topologies,
)
from shoal.pipeline.report.model import Block, Comparison, Report, Section, Table, Text
from shoal.pipeline.report.numbers import NOTHING, number, percent, spread

MakeSection = Callable[[Collected], "tuple[Section, list[Comparison]] | None"]

SECTIONS: tuple[MakeSection, ...] = (
    propagation.propagation_section,
    propagation.penalty_section,
    propagation.prediction_section,
    topologies.hops_section,
    topologies.redundancy_section,
    topologies.randomness_section,
    topologies.diameter_section,
    policies.policies_section,
    loss.loss_section,
    sockets.sockets_section,
    topics.topics_section,
    search.search_section,
)


def build_report(collected: Collected) -> Report:
    """Everything there is to say, in the order in which it is read."""
    sections: list[Section] = []
    comparisons: list[Comparison] = []
    for make in SECTIONS:
        made = make(collected)
        if made is not None:
            sections.append(made[0])
            comparisons += made[1]
    if comparisons:
        sections.insert(0, _comparison_section(comparisons))
    sections += [_all_points(collected), _provenance(collected)]
    if collected.problems:
        sections.insert(0, _problems(collected))
    names = list(dict.fromkeys(point.scenario for point in collected.points))
    return Report(
        title=", ".join(names),
        summary=_summary(collected, comparisons),
        sections=tuple(sections),
        comparisons=tuple(comparisons),
    )


def _summary(collected: Collected, comparisons: list[Comparison]) -> tuple[str, ...]:
    """The first thing to read."""
    lines = [f"{collected.runs:,} runs at {len(collected.points):,} points were read."]
    if comparisons:
        good = sum(told.reproduced for told in comparisons)
        inside = sum(bool(told.inside) for told in comparisons)
        lines.append(
            f"Of {len(comparisons)} figures that the sources publish, {good} are reproduced; "
            f"{inside} lie inside the published spread."
        )
        outside = [told for told in comparisons if not told.reproduced]
        lines += [
            f"Outside: {told.figure} ({told.point}): {told.ours:.5g}, published "
            f"{told.published:.5g}."
            for told in outside
        ]
    if collected.problems:
        lines.append(f"{len(collected.problems)} runs are left out: see Problems.")
    return tuple(lines)


def _comparison_section(comparisons: list[Comparison]) -> Section:
    rows = tuple(
        (
            told.figure,
            told.point,
            f"{told.published:.5g}",
            f"{told.spread[0]:.4g}–{told.spread[1]:.4g}" if told.spread else NOTHING,
            f"{told.ours:.5g}",
            percent(told.difference, signed=True),
            told.verdict,
        )
        for told in comparisons
    )
    table = Table(
        caption="Every published figure beside ours.",
        columns=(
            "figure",
            "point",
            "published",
            "spread",
            "ours",
            "difference",
            "verdict",
        ),
        rows=rows,
        left=2,
    )
    return Section(title="Published and ours", blocks=(table,))


def _all_points(collected: Collected) -> Section:
    """One row per point, whatever the experiment."""
    rows = tuple(_point_row(point) for point in collected.points if point.values("messages"))
    blocks: list[Block] = []
    if rows:
        blocks.append(
            Table(
                caption="All points at which messages were published. Means over runs, with least "
                "and greatest where there are several; percentiles over all deliveries.",
                columns=(
                    "scenario",
                    "point",
                    "runs",
                    "deliveries",
                    "least coverage",
                    "mean, ms",
                    "p50",
                    "p95",
                    "p99",
                    "hops",
                    "longest",
                    "duplicates per message",
                    "RDP",
                ),
                rows=rows,
                left=2,
            )
        )
    settings = tuple(
        (point.scenario, point.label, name, str(value))
        for point in collected.points
        for name, value in point.settings.items()
    )
    blocks.append(
        Table(
            caption="Settings of every point.",
            columns=("scenario", "point", "setting", "value"),
            rows=settings,
            left=4,
            folded=True,
        )
    )
    return Section(title="All points", blocks=tuple(blocks))


def _point_row(point: Point) -> tuple[str, ...]:
    delays = point.delays
    return (
        point.scenario,
        point.label,
        str(len(point.runs)),
        f"{delays.delivered:,}" if delays else "0",
        percent(min(point.values("coverage"), default=None), 3),
        spread(point.over_repeats("mean_ms")),
        *(
            number(getattr(delays, name) if delays else None)
            for name in ("p50_ms", "p95_ms", "p99_ms")
        ),
        spread(point.over_repeats("hops_mean"), 2),
        number(max(point.values("hops_max"), default=None), 0),
        spread(point.over_repeats("duplicates_per_message"), 3),
        spread(point.over_repeats("rdp"), 2),
    )


def _provenance(collected: Collected) -> Section:
    made = tuple(
        (
            str(kind.runs),
            kind.commit or NOTHING,
            kind.shoal,
            kind.python,
            kind.machine,
            ", ".join(f"{name} {version}" for name, version in kind.packages.items()),
        )
        for kind in collected.provenance
    )
    seeds = tuple(
        (point.scenario, point.label, ", ".join(str(run.seed) for run in point.runs))
        for point in collected.points
    )
    return Section(
        title="Provenance",
        blocks=(
            Table(
                caption="What made the runs. A plus sign: files were changed since that commit.",
                columns=("runs", "commit", "Shoal", "Python", "machine", "packages"),
                rows=made,
                left=6,
            ),
            Table(
                caption="Seeds of all runs.",
                columns=("scenario", "point", "seeds"),
                rows=seeds,
                left=3,
            ),
            Table(
                caption="The command that repeats one run of each point.",
                columns=("run", "command"),
                rows=collected.replays,
                left=2,
                folded=True,
            ),
        ),
    )


def _problems(collected: Collected) -> Section:
    rows = tuple((p.run, p.file, p.text) for p in collected.problems)
    table = Table(
        caption="Runs that are left out, each as a whole.",
        columns=("run", "file", "what is wrong"),
        rows=rows,
        left=3,
    )
    return Section(
        title="Problems", blocks=(Text("These runs are in none of the figures below."), table)
    )
