"""Runs over sockets, each beside the simulation of the same settings and seed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_lab.report.analysis.deliveries import TENTHS
from shoal_lab.report.analysis.points import PointOfRuns, settings_but
from shoal_lab.report.analysis.report_data import Twin
from shoal_lab.runs.run_frames import FoundRun, Runs


class TwinRuns(msgspec.Struct, frozen=True):
    """Two runs that differ only in what they ran on."""

    scenario: str
    label: str
    simulator: FoundRun
    sockets: FoundRun


def find_twins(groups: Sequence[PointOfRuns]) -> list[TwinRuns]:
    """All there are, in the order of points and seeds."""
    simulated = {
        (_rest(group), _seed(run)): run
        for group in groups
        if group.settings.get("on") == "simulator"
        for run in group.runs
    }
    return [
        TwinRuns(group.scenario, _label(group), simulated[_rest(group), _seed(run)], run)
        for group in groups
        if group.settings.get("on") == "sockets"
        for run in group.runs
        if (_rest(group), _seed(run)) in simulated
    ]


def collect_twins(runs: Runs, groups: Sequence[PointOfRuns]) -> tuple[Twin, ...]:
    """Each pair of runs, compared node by node, hop by hop and link by link."""
    found = find_twins(groups)
    if not found:
        return ()

    rows = [
        (run.run, number, side)
        for number, pair in enumerate(found)
        for side, run in (("simulator", pair.simulator), ("sockets", pair.sockets))
    ]
    twins = runs.session.createDataFrame(rows, "run string, twin long, on string")
    involved = Runs(runs.session, [run for p in found for run in (p.simulator, p.sockets)], ())
    nodes: dict[int, list[tuple[float, float]]] = {}
    for row in compare_nodes(involved.table("deliveries"), twins).orderBy("node").collect():
        if row["simulator_ms"] is not None and row["sockets_ms"] is not None:
            both = row["simulator_ms"], row["sockets_ms"]
            nodes.setdefault(row["twin"], []).append(both)
    hops: dict[int, list[tuple[int, int, int]]] = {}
    for row in compare_hops(involved.table("deliveries"), twins).orderBy("hops").collect():
        counted = row["hops"], row["simulator"], row["sockets"]
        hops.setdefault(row["twin"], []).append(counted)
    links = {
        row["twin"]: (row["both"], row["simulator"], row["sockets"])
        for row in compare_links(involved.table("topologies"), twins).collect()
    }
    return tuple(
        Twin(
            scenario=pair.scenario,
            label=pair.label,
            seed=_seed(pair.sockets),
            simulator=pair.simulator.run,
            sockets=pair.sockets.run,
            nodes=tuple(nodes.get(number, ())),
            hops=tuple(hops.get(number, ())),
            links=links.get(number, (0, 0, 0)),
            late_ms=_late_ms(pair.sockets),
        )
        for number, pair in enumerate(found)
    )


def _rest(group: PointOfRuns) -> tuple[str, bytes]:
    """All that twins have in common."""
    return group.scenario, settings_but(group.settings, "on")


def _seed(run: FoundRun) -> int:
    return int(run.info.get("seed", 0))


def _label(group: PointOfRuns) -> str:
    return ", ".join(part for part in group.label.split(", ") if part != "on sockets")


def _late_ms(run: FoundRun) -> float | None:
    held = run.info.get("result", {}).get("figures", {}).get("held")
    return None if not held else float(held["late_ms_mean"])


# Two runs that differ only in what they ran on, the simulator or sockets: what is the same?
#
# `twins` says which runs belong together: run, twin (a number that both have), on.


SIDES = ("simulator", "sockets")


def compare_nodes(deliveries: DataFrame, twins: DataFrame) -> DataFrame:
    """The mean delay of all that each node got and that was due: twin, node, simulator_ms,
    sockets_ms. Null where it got nothing."""
    means = [
        (F.avg(_of(side, F.col("delay_tenths_ms"))) / TENTHS).alias(f"{side}_ms") for side in SIDES
    ]
    return _paired(deliveries.where("due"), twins).groupBy("twin", "node").agg(*means)


def compare_hops(deliveries: DataFrame, twins: DataFrame) -> DataFrame:
    """Deliveries that were due, by the links that they took: twin, hops, simulator, sockets."""
    counts = [F.count(_of(side, F.lit(1))).alias(side) for side in SIDES]
    return _paired(deliveries.where("due"), twins).groupBy("twin", "hops").agg(*counts)


def compare_links(topologies: DataFrame, twins: DataFrame) -> DataFrame:
    """Links that carry data at the end, each way by itself: twin, both, simulator, sockets, where
    the last two are those that only one of them has."""
    there = [F.max(F.col("on") == side).alias(side) for side in SIDES]
    links = _paired(topologies, twins).groupBy("twin", "stream", "a", "b").agg(*there)
    simulator, sockets = F.col("simulator"), F.col("sockets")
    return links.groupBy("twin").agg(
        F.count_if(simulator & sockets).alias("both"),
        F.count_if(simulator & ~sockets).alias("simulator"),
        F.count_if(~simulator & sockets).alias("sockets"),
    )


def _paired(rows: DataFrame, twins: DataFrame) -> DataFrame:
    return rows.join(F.broadcast(twins), on="run", how="inner")


def _of(side: str, value: Column) -> Column:
    return F.when(F.col("on") == side, value)
