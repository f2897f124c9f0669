"""Tables of search networks: what Spark makes of them, on rows that fit on a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from shoal_lab.report.analysis.collect import collect_folder
from shoal_lab.report.analysis.search import (
    collect_search,
    merge_loads,
    merge_matches,
    merge_moments,
    merge_stages,
    merge_steps,
    merge_watches,
    steps_needed,
)
from shoal_lab.runs.run_frames import read_runs
from tests.pipeline.frames import arrow_table, settings, write, write_simple

pytestmark = pytest.mark.spark


def stage(run: str, name: str = "before", *, nodes: int = 10, part: float = 1.0) -> dict[str, Any]:
    return {
        "run": run, "stage": name, "nodes": nodes, "edges": 3 * nodes, "largest_part": part,
        "threshold": 1.5 * nodes,
    }  # fmt: skip


def match(run: str, matched: float, *, pairs: int = 100, error: float = 0.01) -> dict[str, Any]:
    return {
        "run": run, "stage": "before", "certainty": 1.0, "data": "new", "data_size": 4,
        "query_size": 6, "pairs": pairs, "matched": matched, "error": error, "theory": 0.6321,
        "reached": 5.0, "messages": 5.5, "collisions": 0.5, "hops_max": 3, "hops_bound": 5,
    }  # fmt: skip


def moment(run: str, time_s: float, *, old: tuple[int, int], known: float = 1.0) -> dict[str, Any]:
    return {
        "run": run, "time_s": time_s, "nodes": 10, "largest_part": 0.9, "complete": 0.5,
        "known": known, "old_searches": old[0], "old_found": old[1], "new_searches": 1,
        "new_found": 1,
    }  # fmt: skip


def step(run: str, number: int, within: float, holder: int = 0) -> dict[str, Any]:
    return {"run": run, "step": number, "holder": holder, "within": within}


def watch(run: str, query: int, due: int, told: int, again: int = 0) -> dict[str, Any]:
    return {"run": run, "query": query, "due": due, "told": told, "told_again": again}


def frame(spark: SparkSession, name: str, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(arrow_table(name, rows))


@pytest.fixture(scope="module")
def points(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 0), ("b", 0), ("c", 1)], "run string, point long")


def rows_of(found: DataFrame, *order: str) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in found.collect()]
    return sorted(rows, key=lambda row: [row[name] for name in ("point", *order)])


def test_pairs_of_repeats_add_up(spark: SparkSession, points: DataFrame) -> None:
    rows = [
        match("a", 0.7, pairs=100, error=0.03), match("b", 0.6, pairs=300, error=0.01),
        match("c", 0.5), match("elsewhere", 0.1),
    ]  # fmt: skip
    merged = rows_of(merge_matches(frame(spark, "search_matches", rows), points))
    assert [row["point"] for row in merged] == [0, 1]
    assert merged[0]["pairs"] == 400
    assert merged[0]["matched"] == pytest.approx(0.625)
    assert merged[0]["error"] == pytest.approx((3**2 + 3**2) ** 0.5 / 400)
    assert merged[1]["matched"] == 0.5


def test_stages_and_loads(spark: SparkSession, points: DataFrame) -> None:
    rows = [stage("a", nodes=10, part=0.9), stage("b", nodes=20), stage("c", "left")]
    merged = rows_of(merge_stages(frame(spark, "search_stages", rows), points))
    assert [(row["stage"], row["runs"], row["nodes"], row["least_part"]) for row in merged] == [
        ("before", 2, 15.0, 0.9), ("left", 1, 10.0, 1.0),
    ]  # fmt: skip
    loads = [
        {"run": run, "stage": "before", "degree": 6, "nodes": 4, "messages": 7} for run in "ab"
    ]
    (load,) = rows_of(merge_loads(frame(spark, "search_loads", loads), points))
    assert (load["nodes"], load["messages"]) == (8, 14)


def test_steps_are_the_first_at_which_most_nodes_know(
    spark: SparkSession, points: DataFrame
) -> None:
    rows = [
        step("a", 1, 0.5), step("a", 2, 0.99), step("a", 3, 1.0),
        step("a", 1, 0.1, holder=1), step("a", 2, 0.2, holder=1), step("b", 1, 1.0),
    ]  # fmt: skip
    table = frame(spark, "search_steps", rows)
    needed = rows_of(steps_needed(table, points), "run", "holder")
    assert [row["steps"] for row in needed] == [2, None, 1]
    curve = rows_of(merge_steps(table, points), "step")
    assert [row["step"] for row in curve] == [1, 2, 3]
    assert curve[0]["within"] == pytest.approx((0.5 + 0.1 + 1.0) / 3)


def test_moments_of_repeats_are_put_together(spark: SparkSession, points: DataFrame) -> None:
    rows = [
        moment("a", -5.0, old=(4, 4)), moment("a", 0.0000001, old=(4, 1), known=0.5),
        moment("b", -0.0, old=(2, 0), known=0.7), moment("c", 0.0, old=(9, 9)),
    ]  # fmt: skip
    merged = rows_of(merge_moments(frame(spark, "search_moments", rows), points), "time_s")
    told = [(row["point"], row["time_s"], row["old_searches"], row["old_found"]) for row in merged]
    assert told == [(0, -5, 4, 4), (0, 0, 6, 1), (1, 0, 9, 9)]
    assert merged[1]["known"] == pytest.approx(0.6)


def test_watches_add_up(spark: SparkSession, points: DataFrame) -> None:
    rows = [watch("a", 0, 4, 3), watch("a", 1, 0, 0), watch("b", 0, 10, 9, again=1)]
    (merged,) = rows_of(merge_watches(frame(spark, "search_watches", rows), points))
    assert (merged["queries"], merged["due"], merged["told"], merged["told_again"]) == (
        3,
        14,
        12,
        1,
    )
    assert merged["least_told"] == 0.75


def test_a_folder_of_runs_is_collected_by_point(spark: SparkSession, tmp_path: Path) -> None:
    scenario = settings("search-x", protocol="search", experiment="match")
    for seed, run in enumerate(("one", "two"), 1):
        write(
            tmp_path, run, scenario=scenario, seed=seed,
            search_stages=[stage(run)], search_matches=[match(run, 0.6)],
            search_moments=[moment(run, 0.0, old=(2, 1))],
        )  # fmt: skip
    write_simple(tmp_path, "streams")
    collected = collect_folder(str(tmp_path), lambda _: spark)
    search = {point.scenario: point.search for point in collected.points}
    assert search["streams"] is None
    found = search["search-x"]
    assert found is not None
    assert found.stages[0].runs == 2
    assert found.matches[0].pairs == 200
    assert found.moments[0].old_searches == 4
    assert found.watches is None
    assert found.steps == ()


def test_no_query_is_asked_where_there_is_no_search(spark: SparkSession, tmp_path: Path) -> None:
    write_simple(tmp_path, "streams")
    assert collect_search(read_runs(spark, str(tmp_path)), {"streams": 0}) == {}
