"""From collected aggregates to a report: which sections, and what they come to.

A protocol adds its experiments with a function in SECTIONS: it gets everything and says None if
nothing concerns it. Runs that no section knows are still in the table of all points.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.pipeline.jobs.collected import Collected, Point
from shoal.pipeline.report import (
    loss,
    policies,
    prediction,
    propagation,
    randomness,
    search,
    sockets,
    topics,
    topologies,
)
from shoal.pipeline.report.model import (
    Block,
    Comparison,
    Failure,
    Report,
    Section,
    Table,
    Text,
)
from shoal.pipeline.report.numbers import NOTHING, number, percent, spread
from shoal.pipeline.report.verdicts import summarise_verdicts, verdict_section

MakeSection = Callable[[Collected], "tuple[Section, list[Comparison]] | None"]

SECTIONS: tuple[MakeSection, ...] = (
    propagation.propagation_section,
    propagation.penalty_section,
    prediction.prediction_section,
    topologies.hops_section,
    topologies.redundancy_section,
    randomness.randomness_section,
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
    failures: list[Failure] = []
    for make in SECTIONS:
        try:
            made = make(collected)
        except Exception as error:
            # Told on the page, on stderr and by the exit code: what others made is still of use.
            failures.append(_failure(make, error))
            continue
        if made is not None:
            sections.append(made[0])
            comparisons += made[1]
    if comparisons:
        sections.insert(0, verdict_section(comparisons))
    sections += [_all_points(collected), _provenance(collected)]
    if collected.problems or failures:
        sections.insert(0, _problems(collected, failures))
    names = list(dict.fromkeys(point.scenario for point in collected.points))
    return Report(
        title=", ".join(names),
        summary=_summary(collected, comparisons, failures),
        sections=tuple(sections),
        comparisons=tuple(comparisons),
        failures=tuple(failures),
    )


def _failure(make: MakeSection, error: Exception) -> Failure:
    """With the line of code, so that what is wrong there can be found."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f"{Path(frame.f_code.co_filename).name}, line {line}"
    name = make.__name__.removesuffix("_section")
    return Failure(name, f"{type(error).__name__} in {place}: {error}")


def _summary(
    collected: Collected, comparisons: Sequence[Comparison], failures: Sequence[Failure]
) -> tuple[str, ...]:
    """The first thing to read."""
    lines = [f"{collected.runs:,} runs at {len(collected.points):,} points were read."]
    lines += summarise_verdicts(comparisons)
    if collected.problems:
        lines.append(f"{len(collected.problems)} runs are left out: see Problems.")
    if failures:
        lines.append(f"{len(failures)} sections could not be made: see Problems.")
    return tuple(lines)


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


def _problems(collected: Collected, failures: Sequence[Failure]) -> Section:
    blocks: list[Block] = []
    if collected.problems:
        blocks += [
            Text("These runs are in none of the figures below."),
            Table(
                caption="Runs that are left out, each as a whole.",
                columns=("run", "file", "what is wrong"),
                rows=tuple((p.run, p.file, p.text) for p in collected.problems),
                left=3,
            ),
        ]
    if failures:
        blocks.append(
            Table(
                caption="Sections that could not be made of these runs, which is a fault of Shoal.",
                columns=("section", "what went wrong"),
                rows=tuple((failure.section, failure.text) for failure in failures),
                left=2,
            )
        )
    return Section(title="Problems", blocks=tuple(blocks))
