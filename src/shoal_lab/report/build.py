"""From collected aggregates to a report: which sections, and what they come to.

A protocol adds its experiments with a function in SECTIONS: it gets everything and says None if
nothing concerns it. Runs that no section knows are still in the table of all points.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal_lab.report.analysis.report_data import Collected, Point
from shoal_lab.report.blocks import (
    Against,
    Block,
    Comparison,
    Failure,
    Report,
    Section,
    Table,
    Text,
)
from shoal_lab.report.labels import NOTHING, number, percent, spread
from shoal_lab.report.sections import delays as delays_module
from shoal_lab.report.sections import loss, overlays, policies, search, sockets, topics

MakeSection = Callable[[Collected], "tuple[Section, list[Comparison]] | None"]

SECTIONS: tuple[MakeSection, ...] = (
    delays_module.propagation_section,
    delays_module.penalty_section,
    delays_module.prediction_section,
    overlays.hops_section,
    overlays.redundancy_section,
    overlays.randomness_section,
    overlays.diameter_section,
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


# All that ours is held against in one place: what the sources publish, apart from what follows
# from it, from what theory allows, from what the simulator gives and from what we claim ourselves.


CAPTIONS: dict[Against, str] = {
    "source": "Figures that the sources publish, and ours.",
    "derived": "Figures that no source publishes, and what follows from figures that one does.",
    "theory": "Figures that no source publishes, and what theory gives or allows.",
    "simulator": "Runs over sockets, and what the simulator gives for the same settings and seed.",
    "own": "What we claim ourselves: errors, and the limit that we set them.",
}
COLUMNS: dict[Against, tuple[str, str]] = {
    "source": ("published", "spread"),
    "derived": ("derived", "spread"),
    "theory": ("expected", "bounds"),
    "simulator": ("simulated", "bounds"),
    "own": ("limit", "bounds"),
}


def verdict_section(comparisons: Sequence[Comparison]) -> Section:
    """A table for each of what ours is held against."""
    tables = tuple(
        _table(against, those) for against, those in _by_kind(comparisons).items() if those
    )
    return Section(title="Verdicts", blocks=tables)


def summarise_verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """How many of them are as they should be, and each one that is not."""
    found = _by_kind(comparisons)
    lines = []
    if source := found["source"]:
        good = [told for told in source if told.reproduced]
        inside = sum(bool(told.inside) for told in good)
        errors = sum(told.at_most and not told.inside for told in good)
        near = len(good) - inside - errors
        lines.append(
            f"Of {len(source)} figures that the sources publish, {len(good)} are reproduced: "
            f"{inside} inside the published spread, {near} within our tolerance of the published "
            f"value, {errors} as errors no higher than the published one."
        )
    if derived := found["derived"]:
        lines.append(
            f"Of {len(derived)} figures that follow from published ones, {_good(derived)} are "
            "reproduced."
        )
    if theory := found["theory"]:
        lines.append(
            f"Of {len(theory)} figures that theory gives or bounds, {_good(theory)} are consistent "
            "with it."
        )
    if simulator := found["simulator"]:
        lines.append(
            f"Over sockets, {_good(simulator)} of {len(simulator)} mean delays lie within "
            f"{100 * simulator[0].tolerance:g} % of the simulator's."
        )
    if own := found["own"]:
        lines.append(f"Of {len(own)} limits of our own, {_good(own)} are kept.")
    outside = [told for told in comparisons if not told.reproduced]
    return lines + [
        f"Outside: {told.figure} ({told.point}): {_short(told.ours)}, {_held_against(told)}."
        for told in outside
    ]


def _good(comparisons: Sequence[Comparison]) -> int:
    return sum(told.reproduced for told in comparisons)


def _by_kind(comparisons: Sequence[Comparison]) -> dict[Against, list[Comparison]]:
    return {kind: [told for told in comparisons if told.against == kind] for kind in CAPTIONS}


def _held_against(told: Comparison) -> str:
    value, _ = COLUMNS[told.against]
    return f"{value} {_spread(told) if told.reference is None else _short(told.reference)}"


def _table(against: Against, comparisons: Sequence[Comparison]) -> Table:
    return Table(
        caption=CAPTIONS[against],
        columns=("figure", "point", *COLUMNS[against], "ours", "difference", "verdict"),
        rows=tuple(
            (
                told.figure,
                told.point,
                NOTHING if told.reference is None else _short(told.reference),
                _spread(told),
                _short(told.ours),
                percent(told.difference, signed=True),
                told.verdict,
            )
            for told in comparisons
        ),
        left=2,
    )


def _spread(told: Comparison) -> str:
    return NOTHING if told.spread is None else f"{told.spread[0]:.4g}–{told.spread[1]:.4g}"


def _short(value: float) -> str:
    return f"{value:.5g}"
