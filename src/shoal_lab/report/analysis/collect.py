"""A folder of runs, collected: what `shoal lab report` puts on a page.

    collected = collect_folder("results", session)

Deliveries are read once. Whatever Spark stumbles over because its bytes changed inside a file is
looked for page by page, left out with its run and named, and the rest is done again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.base.errors import ShoalError, UsageError
from shoal_lab.report.analysis.points import PointOfRuns, group_runs
from shoal_lab.report.analysis.report_data import (
    Collected,
    DelayCurve,
    Point,
    Provenance,
    RunFigures,
)
from shoal_lab.report.analysis.shortest_paths import predict_delays
from shoal_lab.runs.result_schema import Packets, TopicFigures
from shoal_lab.runs.run_frames import FoundRun, Problem, Runs, find_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

StartSpark = Callable[[int], "SparkSession"]


def collect_folder(folder: str, session: StartSpark, tell: Tell = lambda stage: None) -> Collected:
    """Everything about the runs of a folder; UsageError if none of them can be read.

    `session` is asked for Spark when there is something to do for it, and told how many rows.
    """
    from shoal_lab.report.analysis.policies import compared_points

    tell(Stage(LOOKING))
    runs, problems = find_runs(folder)
    _refuse_nothing(folder, runs, problems)
    tables = [run.info["tables"] for run in runs]
    groups = group_runs(runs)
    compared = [run for number in compared_points(groups) for run in groups[number].runs]
    stages = plan_stages(tables, [run.info["tables"] for run in compared])
    tell(stages[STARTING])
    spark = session(sum(sum(rows.values()) for rows in tables))
    try:
        return _collect(folder, Runs(spark, runs, problems), stages, tell)
    except Exception as error:
        if not _is_spark_error(error):
            raise
        tell(Stage(CHECKING))
        sound, found = find_runs(folder, verify=True)
        if len(sound) == len(runs):
            raise ShoalError(f"Spark gave up: {_reason(error)}") from error
        _refuse_nothing(folder, sound, found)
        return _collect(folder, Runs(spark, sound, found), stages, tell)


def _collect(folder: str, runs: Runs, stages: Mapping[str, Stage], tell: Tell) -> Collected:
    from shoal_lab.report.analysis.overlays import collect_diameters, collect_matrices
    from shoal_lab.report.analysis.policies import collect_policies
    from shoal_lab.report.analysis.search import collect_search
    from shoal_lab.report.analysis.twins import collect_twins

    groups = group_runs(runs.runs)
    numbers = {run.run: number for number, group in enumerate(groups) for run in group.runs}
    tell(stages[COUNTING])
    figures, curves = _delays(runs, numbers)
    tell(stages[PATHS])
    shortest = _shortest(runs)
    tell(stages[OVERLAYS])
    matrices, diameters = collect_matrices(runs, numbers), collect_diameters(runs, numbers)
    tell(stages[COMPARING])
    policies = collect_policies(runs, groups)
    tell(stages[SEARCHING])
    search = collect_search(runs, numbers)
    points = [
        Point(
            scenario=group.scenario,
            about=group.about,
            settings=group.settings,
            label=group.label,
            runs=tuple(
                run_figures(
                    run,
                    figures.get(run.run, {}) | policies.of_run(run.run),
                    shortest.get(run.run),
                )
                for run in group.runs
            ),
            delays=curves.get(number),
            matrix=matrices.get(number),
            diameters=diameters.get(number, ()),
            stretch=policies.stretches.get(number),
            links=policies.maps.get(number),
            search=search.get(number),
        )
        for number, group in enumerate(groups)
    ]
    return Collected(
        folder=folder,
        points=tuple(points),
        provenance=count_provenance([run.info for run in runs.runs]),
        replays=tuple(_replay(group) for group in groups),
        problems=runs.problems,
        twins=collect_twins(runs, groups),
    )


def _delays(
    runs: Runs, numbers: Mapping[str, int]
) -> tuple[dict[str, dict[str, Any]], dict[int, DelayCurve]]:
    """What Spark says of each run, and of each point."""
    # Here and not above: whoever asks for help, or has no Spark, must get this far without it.
    from shoal_lab.report.analysis.deliveries import (
        add_penalty,
        count_by_key,
        distribute_delays,
        group_key,
        merge_counts,
        summarise_counted,
        summarise_delays,
        thin_distribution,
    )

    if not any("messages" in run.files for run in runs.runs):
        return {}, {}
    counts = count_by_key(runs.table("deliveries")).persist()
    try:
        summary = summarise_counted(counts, runs.table("messages"))
        rows = add_penalty(summary, runs.table("delays")).collect()
        keyed = _points_frame(runs, numbers).select(group_key(), "point")
        merged = merge_counts(counts, keyed).persist()
        pooled = summarise_delays(merged, ["point"]).collect()
        curve = thin_distribution(distribute_delays(merged, ["point"])).collect()
        merged.unpersist()
    finally:
        counts.unpersist()
    steps: dict[int, list[tuple[float, float]]] = {}
    for row in curve:
        steps.setdefault(row["point"], []).append((row["delay_ms"], row["share"]))
    curves = {
        row["point"]: DelayCurve(
            cdf=tuple(sorted(steps[row["point"]])),
            **{name: row[name] for name in DelayCurve.__struct_fields__ if name != "cdf"},
        )
        for row in pooled
        if row["delivered"]
    }
    return {row["run"]: row.asDict() for row in rows}, curves


def _points_frame(runs: Runs, numbers: Mapping[str, int]) -> DataFrame:
    return runs.session.createDataFrame(list(numbers.items()), "run string, point long")


def _shortest(runs: Runs) -> dict[str, float]:
    """The mean delay along shortest paths of each run that keeps its topology."""
    with_links = sum("topologies" in run.files for run in runs.runs)
    if not with_links:
        return {}
    rows = predict_delays(runs.table("topologies"), runs.table("messages"), with_links).collect()
    return {row["run"]: row["mean_ms"] for row in rows if row["mean_ms"] is not None}


def run_figures(run: FoundRun, summary: Mapping[str, Any], shortest_ms: float | None) -> RunFigures:
    """All that is known of a run: from Spark, and from its own file."""
    known = {name: summary[name] for name in RunFigures.__struct_fields__ if name in summary}
    told = _dig(run.info, "result", "figures", "prediction") or {}
    mean_ms = known.get("mean_ms")
    error = None
    if shortest_ms is not None and mean_ms:
        error = 100 * (shortest_ms - mean_ms) / mean_ms
    known |= {
        "run": run.run,
        "seed": int(run.info.get("seed", 0)),
        "tracker_ms": told.get("estimated_ms"),
        "tracker_error_percent": told.get("error_percent"),
        "publisher_mape_percent": told.get("mape_percent"),
        "shortest_ms": shortest_ms,
        "shortest_error_percent": error,
        "topics": _topics(run),
        "packets": _packets(run),
    }
    return RunFigures(**known)


def _topics(run: FoundRun) -> TopicFigures | None:
    if "topic_events" not in run.files:
        return None
    return msgspec.convert(_dig(run.info, "result", "figures"), TopicFigures)


def _packets(run: FoundRun) -> Packets | None:
    return msgspec.convert(_dig(run.info, "result", "figures", "network"), Packets | None)


def count_provenance(infos: Sequence[Mapping[str, Any]]) -> tuple[Provenance, ...]:
    """What made the runs, each kind once, the most frequent first."""
    counts: dict[bytes, int] = {}
    for info in infos:
        said = _dig(info, "provenance") or {}
        kept = {
            name: str(said.get(name, "")) for name in ("commit", "shoal", "python", "machine")
        } | {"packages": {str(k): str(v) for k, v in (said.get("packages") or {}).items()}}
        encoded = msgspec.json.encode(kept, order="deterministic")
        counts[encoded] = counts.get(encoded, 0) + 1
    return tuple(
        Provenance(runs=runs, **msgspec.json.decode(encoded))
        for encoded, runs in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


def _replay(group: PointOfRuns) -> tuple[str, str]:
    first = group.runs[0]
    return first.run, str(_dig(first.info, "result", "replay") or "")


def _refuse_nothing(folder: str, runs: Sequence[FoundRun], problems: Sequence[Problem]) -> None:
    if not runs:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise UsageError(f"none of the runs in {folder} can be read:\n{listed}")


def _reason(error: Exception) -> str:
    """Of a Java error, whose story has a hundred lines, the first that says something."""
    lines = [line.strip(": \t") for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith("An error occurred while call")]
    return told[0] if told else type(error).__name__


def _is_spark_error(error: Exception) -> bool:
    """Whether Spark gave up; its classes are not there to name where it is not installed."""
    return type(error).__module__.split(".")[0] in ("py4j", "pyspark")


def _dig(info: Mapping[str, Any], *keys: str) -> Any:
    found: Any = info
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


# What a report does one after the other, and about how long each part takes.
#
# Only proportions matter: the time left is told from the time that went by. Seconds are those of a
# report over 20 million deliveries on two cores.


LOOKING = "looking at the files"
STARTING = "starting Spark"
COUNTING = "counting deliveries"
PATHS = "shortest paths"
OVERLAYS = "topologies"
COMPARING = "comparing policies"
SEARCHING = "search networks"
CHECKING = "a file cannot be read: checking every page"
WRITING = "writing the page"

START_S = 8.0
COUNT_S, COUNT_ROWS_PER_S = 6.0, 4_000_000
PATHS_S, PATH_LINKS_PER_S = 4.0, 30_000_000
"""A search from one node looks at all links."""
OVERLAYS_S, OVERLAYS_ROWS_PER_S = 1.0, 1_000_000
COMPARE_S, COMPARE_ROWS_PER_S = 8.0, 1_000_000
"""Pairs of nodes are grouped, and each looked up among the direct delays."""
SEARCH_S = 5.0
"""Small tables, and a query for each of them."""
RUN_S = 0.02
"""Opening the files of a run, for each of the tables."""
WRITE_S = 1.0


class Stage(msgspec.Struct, frozen=True):
    """A part of the work, and where it lies between nothing (0) and everything (1)."""

    said: str
    begin: float = 0.0
    end: float = 0.0


Tell = Callable[[Stage], None]
"""Hears what is being done, whenever that changes."""


def plan_stages(
    runs: Sequence[Mapping[str, int]], compared: Sequence[Mapping[str, int]] = ()
) -> dict[str, Stage]:
    """By what they say. `runs`: the rows of each table, of each run; `compared`: the same of those
    whose policies are compared."""
    total = Counter[str]()
    links = 0
    for tables in runs:
        total.update(tables)
        sources = min(tables.get("messages", 0), tables.get("nodes", 0))
        links += sources * tables.get("topologies", 0)
    costs_s = dict.fromkeys(
        (STARTING, COUNTING, PATHS, OVERLAYS, COMPARING, SEARCHING, WRITING), 0.0
    )
    costs_s |= {STARTING: START_S, WRITING: WRITE_S}
    if total["messages"]:
        costs_s[COUNTING] = COUNT_S + total["deliveries"] / COUNT_ROWS_PER_S + RUN_S * len(runs)
    if total["topologies"]:
        costs_s[PATHS] = PATHS_S + links / PATH_LINKS_PER_S + RUN_S * len(runs)
    if overlays := total["pairs"] + total["diameters"]:
        costs_s[OVERLAYS] = OVERLAYS_S + overlays / OVERLAYS_ROWS_PER_S
    if rows := sum(tables.get("deliveries", 0) + tables.get("delays", 0) for tables in compared):
        costs_s[COMPARING] = COMPARE_S + rows / COMPARE_ROWS_PER_S + RUN_S * len(compared)
    if total["search_stages"]:
        costs_s[SEARCHING] = SEARCH_S + RUN_S * len(runs)
    all_s, spent_s = sum(costs_s.values()), 0.0
    stages = {}
    for said, cost_s in costs_s.items():
        stages[said] = Stage(said, spent_s / all_s, (spent_s + cost_s) / all_s)
        spent_s += cost_s
    return stages
