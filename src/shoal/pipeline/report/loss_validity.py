"""Whether runs under packet loss measured links, or a machine that was too busy for them."""

from __future__ import annotations

import msgspec

from shoal.pipeline.jobs.collected import Point, RunFigures
from shoal.pipeline.report.loss_claims import NAMES, Curves, rate_of
from shoal.pipeline.report.model import Table, Text
from shoal.pipeline.report.numbers import number, percent, spread

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
