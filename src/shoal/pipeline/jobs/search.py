"""Search networks: their tables, by point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from shoal.pipeline.jobs.searched import (
    LoadOfSearch,
    MatchOfSearch,
    MomentOfSearch,
    SearchPoint,
    StageOfSearch,
    WatchesOfSearch,
)
from shoal.pipeline.reading import Runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

S = TypeVar("S", bound=msgspec.Struct)


def collect_search(runs: Runs, numbers: Mapping[str, int]) -> dict[int, SearchPoint]:
    """By point, of those that have such runs."""
    from shoal.pipeline.transforms import search

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

    stages = rows("search_stages", search.merge_stages, "stage")
    matches = rows("search_matches", search.merge_matches, "stage", "certainty", "data")
    loads = rows("search_loads", search.merge_loads, "stage", "degree")
    needed = rows("search_steps", search.steps_needed, "run", "holder")
    curves = rows("search_steps", search.merge_steps, "step")
    moments = rows("search_moments", search.merge_moments, "time_s")
    watches = rows("search_watches", search.merge_watches)
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
