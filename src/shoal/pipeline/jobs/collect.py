"""A folder of runs, collected: what `shoal lab report` puts on a page.

    collected = collect_folder("results", session)

Deliveries are read once. Whatever Spark stumbles over because its bytes changed inside a file is
looked for page by page, left out with its run and named, and the rest is done again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.base.errors import ShoalError, UsageError
from shoal.pipeline.jobs.collected import Collected, DelayCurve, Point, Provenance, RunFigures
from shoal.pipeline.jobs.overlays import collect_diameters, collect_matrices
from shoal.pipeline.jobs.paths import predict_delays
from shoal.pipeline.jobs.points import PointOfRuns, group_runs
from shoal.pipeline.jobs.policies import collect_policies, compared_points
from shoal.pipeline.jobs.search import collect_search
from shoal.pipeline.jobs.stages import (
    CHECKING,
    COMPARING,
    COUNTING,
    LOOKING,
    OVERLAYS,
    PATHS,
    SEARCHING,
    STARTING,
    Stage,
    Tell,
    plan_stages,
)
from shoal.pipeline.jobs.twins import collect_twins
from shoal.pipeline.reading import FoundRun, Problem, Runs, find_runs
from shoal.pipeline.told import Packets, TopicFigures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

StartSpark = Callable[[int], "SparkSession"]


def collect_folder(folder: str, session: StartSpark, tell: Tell = lambda stage: None) -> Collected:
    """Everything about the runs of a folder; UsageError if none of them can be read.

    `session` is asked for Spark when there is something to do for it, and told how many rows.
    """
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
    from shoal.pipeline.transforms.delays import distribute_delays, summarise_delays
    from shoal.pipeline.transforms.points import merge_counts, thin_distribution
    from shoal.pipeline.transforms.summary import (
        add_penalty,
        count_by_key,
        group_key,
        summarise_counted,
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


def mean_absolute(errors_percent: Sequence[float]) -> float | None:
    """The mean absolute percentage error over overlays, as the paper takes it (MAPE)."""
    return math.fsum(map(abs, errors_percent)) / len(errors_percent) if errors_percent else None


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
