"""Search networks: their tables, by point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_lab.report.analysis.report_data import (
    LoadOfSearch,
    MatchOfSearch,
    MomentOfSearch,
    SearchPoint,
    StageOfSearch,
    WatchesOfSearch,
)
from shoal_lab.runs.run_frames import Runs

S = TypeVar("S", bound=msgspec.Struct)


def collect_search(runs: Runs, numbers: Mapping[str, int]) -> dict[int, SearchPoint]:
    """By point, of those that have such runs."""

    if not any("search_stages" in run.files for run in runs.runs):
        return {}
    points = runs.session.createDataFrame(list(numbers.items()), "run string, point long")

    def rows(
        table: str, merge: Callable[[DataFrame, DataFrame], DataFrame], *order: str
    ) -> dict[int, list[dict[str, Any]]]:
        """By point; tables that no run has cost nothing."""
        found: dict[int, list[dict[str, Any]]] = {}
        if any(table in run.files for run in runs.runs):
            collected = [row.asDict() for row in merge(runs.table(table), points).collect()]
            for row in sorted(collected, key=lambda row: [row[name] for name in order]):
                found.setdefault(row.pop("point"), []).append(row)
        return found

    stages = rows("search_stages", merge_stages, "stage")
    matches = rows("search_matches", merge_matches, "stage", "certainty", "data")
    loads = rows("search_loads", merge_loads, "stage", "degree")
    needed = rows("search_steps", steps_needed, "run", "holder")
    curves = rows("search_steps", merge_steps, "step")
    moments = rows("search_moments", merge_moments, "time_s")
    watches = rows("search_watches", merge_watches)
    return {
        point: SearchPoint(
            stages=_structs(StageOfSearch, stages[point]),
            matches=_structs(MatchOfSearch, matches.get(point, [])),
            loads=_structs(LoadOfSearch, loads.get(point, [])),
            steps=tuple(row["steps"] for row in needed.get(point, [])),
            curve=tuple((row["step"], row["within"]) for row in curves.get(point, [])),
            moments=_structs(MomentOfSearch, moments.get(point, [])),
            watches=next(iter(_structs(WatchesOfSearch, watches.get(point, []))), None),
        )
        for point in stages
    }


def _structs(kind: type[S], rows: list[dict[str, Any]]) -> tuple[S, ...]:
    return tuple(kind(**row) for row in rows)


# Search networks, simulated or modelled: what the runs of one point come to together.
#
# All of these take a table of runs and `points`, which has run and point (see jobs/points.py).


MOST = 0.99
"""What part of the nodes has to know the network, for a measurement to count as done."""


def merge_stages(stages: DataFrame, points: DataFrame) -> DataFrame:
    """By point and stage: runs, nodes, edges, least_part, threshold."""
    return (
        _of_points(stages, points)
        .groupBy("point", "stage")
        .agg(
            F.count("*").alias("runs"),
            F.avg("nodes").alias("nodes"),
            F.avg("edges").alias("edges"),
            F.min("largest_part").alias("least_part"),
            F.avg("threshold").alias("threshold"),
        )
    )


def merge_matches(matches: DataFrame, points: DataFrame) -> DataFrame:
    """By point, stage, certainty and data. Runs weigh as many pairs as they have; their errors are
    independent, so that squares add up."""
    pairs = F.sum("pairs")
    met = F.round(F.col("pairs") * F.col("matched")).cast("long")
    square = F.col("pairs") * F.col("error") * F.col("pairs") * F.col("error")
    return (
        _of_points(matches, points)
        .groupBy("point", "stage", "certainty", "data")
        .agg(
            pairs.alias("pairs"),
            (F.sum(met) / pairs).alias("matched"),
            (F.sqrt(F.sum(square)) / pairs).alias("error"),
            F.max("theory").alias("theory"),
            F.avg("data_size").alias("data_size"),
            F.avg("query_size").alias("query_size"),
            F.avg("reached").alias("reached"),
            F.avg("messages").alias("messages"),
            F.avg("collisions").alias("collisions"),
            F.max("hops_max").alias("hops_max"),
            F.max("hops_bound").alias("hops_bound"),
        )
    )


def merge_loads(loads: DataFrame, points: DataFrame) -> DataFrame:
    """By point, stage and degree: nodes and messages."""
    return (
        _of_points(loads, points)
        .groupBy("point", "stage", "degree")
        .agg(F.sum("nodes").alias("nodes"), F.sum("messages").alias("messages"))
    )


def steps_needed(steps: DataFrame, points: DataFrame) -> DataFrame:
    """By point, run and holder or round: after how many steps most nodes were within 5 %; null if
    they never were."""
    enough = F.when(F.col("within") >= MOST, F.col("step"))
    return (
        _of_points(steps, points)
        .groupBy("point", "run", "holder")
        .agg(F.min(enough).alias("steps"))
    )


def merge_steps(steps: DataFrame, points: DataFrame) -> DataFrame:
    """By point and step: what part of the nodes was within 5 %, in the mean of those that were
    still looked at."""
    return _of_points(steps, points).groupBy("point", "step").agg(F.avg("within").alias("within"))


def merge_moments(moments: DataFrame, points: DataFrame) -> DataFrame:
    """By point and whole second: means of the network's figures, and searches added up."""
    counts = ("old_searches", "old_found", "new_searches", "new_found")
    means = ("nodes", "largest_part", "complete", "known")
    return (
        _of_points(moments, points)
        .groupBy("point", F.round("time_s").cast("long").alias("time_s"))
        .agg(
            *(F.avg(name).alias(name) for name in means),
            *(F.sum(name).alias(name) for name in counts),
        )
    )


def merge_watches(watches: DataFrame, points: DataFrame) -> DataFrame:
    """By point: queries, due, told, told_again, least_told of any query with something due."""
    part = F.when(F.col("due") > 0, F.col("told") / F.col("due"))
    return (
        _of_points(watches, points)
        .groupBy("point")
        .agg(
            F.count("*").alias("queries"),
            *(F.sum(name).alias(name) for name in ("due", "told", "told_again")),
            F.min(part).alias("least_told"),
        )
    )


def _of_points(table: DataFrame, points: DataFrame) -> DataFrame:
    return table.join(F.broadcast(points), on="run", how="inner")
