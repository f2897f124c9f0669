"""The section about runs over sockets: do they give what the simulator gives?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal_lab.report.analysis.report_data import Collected, RunFigures, Twin
from shoal_lab.report.blocks import Block, Comparison, Figure, Section, Table, Text
from shoal_lab.report.labels import NOTHING, number, percent
from shoal_lab.report.svg import COLOURS, PUBLISHED, Series, line_chart

SIDES = ("simulator", "sockets")

TOLERANCE = 0.03
"""Of the mean delay: what a simulation must be good for."""


_PERCENTILES = ("p50", "p95", "p99")
_PERCENTILE_COLUMNS = tuple(f"{p}, {side}" for p in _PERCENTILES for side in SIDES)


def sockets_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Every run over sockets beside its simulation."""
    twins = collected.twins
    if not twins:
        return None
    runs = {run.run: run for point in collected.points for run in point.runs}
    told = [(twin, _mean_comparison(twin, runs)) for twin in twins]
    blocks: list[Block] = [
        Table(
            caption="Mean delay over sockets and in the simulator, in milliseconds, for the same "
            "settings and seed. Late: how long after its delay a frame was given to its node, in "
            "the mean, since all nodes share an event loop.",
            columns=(
                "scenario",
                "point",
                "seed",
                "simulator",
                "sockets",
                "difference",
                "verdict",
                "late",
            ),
            rows=tuple(_mean_row(twin, runs, mean) for twin, mean in told),
            left=2,
        ),
        Table(
            caption="The same in percentiles, in milliseconds.",
            columns=("scenario", "point", "seed", *_PERCENTILE_COLUMNS),
            rows=tuple(_percentile_row(twin, runs) for twin in twins),
            left=2,
        ),
        Table(
            caption="Each node's mean delay over sockets against that in the simulator, and the "
            "links that carry data at the end, each way counted.",
            columns=(
                "scenario",
                "point",
                "seed",
                "nodes",
                "mean difference",
                "largest",
                "links of both",
                "simulator only",
                "sockets only",
                "topologies",
            ),
            rows=tuple(_node_row(twin) for twin in twins),
            left=2,
        ),
        _hops(twins),
    ]
    blocks += [_curves(twin) for twin in _first_of_each(twins) if twin.nodes]
    blocks.append(
        Text(
            "Over sockets, nodes join in the order in which the simulated tracker took them in, so "
            "that topologies can be compared at all. Frames are held for the delay of the table; "
            "connecting takes as many round trips as in the simulator. Signatures, handshakes, "
            "framing and the kernel take what they take. The clock stands still while other "
            "processes have all cores."
        )
    )
    comparisons = [mean for _, mean in told if mean is not None]
    return Section(title="Sockets against simulator", blocks=tuple(blocks)), comparisons


def node_differences(twin: Twin) -> tuple[float, float] | None:
    """Of nodes' mean delays, as parts of the simulated: mean of the absolute, and the largest."""
    apart = [abs(ours / simulated - 1) for simulated, ours in twin.nodes if simulated]
    return (sum(apart) / len(apart), max(apart)) if apart else None


def _mean_comparison(twin: Twin, runs: Mapping[str, RunFigures]) -> Comparison | None:
    """None if nothing was delivered on either side."""
    simulated, ours = runs[twin.simulator].mean_ms, runs[twin.sockets].mean_ms
    if ours is None or not simulated:
        return None
    return Comparison(
        figure="mean delay over sockets, ms",
        point=f"{twin.scenario}, {twin.label}, seed {twin.seed}",
        against="simulator",
        expected=simulated,
        ours=ours,
        tolerance=TOLERANCE,
    )


def _mean_row(
    twin: Twin, runs: Mapping[str, RunFigures], told: Comparison | None
) -> tuple[str, ...]:
    return (
        *_name(twin),
        number(runs[twin.simulator].mean_ms),
        number(runs[twin.sockets].mean_ms),
        percent(told.difference if told else None, 2, signed=True),
        told.verdict if told else NOTHING,
        number(twin.late_ms, 3),
    )


def _percentile_row(twin: Twin, runs: Mapping[str, RunFigures]) -> tuple[str, ...]:
    both = runs[twin.simulator], runs[twin.sockets]
    return (
        *_name(twin),
        *(number(getattr(run, f"{p}_ms")) for p in _PERCENTILES for run in both),
    )


def _node_row(twin: Twin) -> tuple[str, ...]:
    mean, largest = node_differences(twin) or (None, None)
    both, simulator, sockets = twin.links
    equal = "equal" if both and not simulator and not sockets else "different"
    links = (f"{count:,}" for count in twin.links)
    nodes = f"{len(twin.nodes):,}"
    return (*_name(twin), nodes, percent(mean, 2), percent(largest, 2), *links, equal)


def _name(twin: Twin) -> tuple[str, str, str]:
    return twin.scenario, twin.label, str(twin.seed)


def _hops(twins: Sequence[Twin]) -> Table:
    rows = []
    for twin in twins:
        totals = [max(1, sum(row[side] for row in twin.hops)) for side in (1, 2)]
        rows += [
            (
                *_name(twin),
                str(hops),
                f"{simulated:,}",
                f"{ours:,}",
                percent(simulated / totals[0]),
                percent(ours / totals[1]),
            )
            for hops, simulated, ours in twin.hops
        ]
    return Table(
        caption="Deliveries by the links that they took.",
        columns=(
            "scenario",
            "point",
            "seed",
            "hops",
            "simulator",
            "sockets",
            "simulator, share",
            "sockets, share",
        ),
        rows=tuple(rows),
        left=2,
        folded=len(twins) > 1,
    )


def _first_of_each(twins: Sequence[Twin]) -> list[Twin]:
    """One seed of each point: more curves than that say no more."""
    return list({(twin.scenario, twin.label): twin for twin in reversed(twins)}.values())[::-1]


def _curves(twin: Twin) -> Figure:
    nodes = sorted(twin.nodes)
    series = [
        Series(
            name=name,
            points=tuple((at, both[side]) for at, both in enumerate(nodes, 1)),
            colour=colour,
            dashed=not side,
            dots=False,
        )
        for side, (name, colour) in enumerate(zip(SIDES, (PUBLISHED, COLOURS[0]), strict=True))
    ]
    return Figure(
        caption=f"Mean delay of what each node got ({twin.scenario}, {twin.label}, seed "
        f"{twin.seed}), nodes in the order of the simulated delay.",
        svg=line_chart(
            series[::-1],  # the dashes on top: where they agree, both are seen
            x_title="node",
            y_title="mean delay, ms",
        ),
    )
