"""Spark and DuckDB on the same files, whatever their layout; and a real run of the lab."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession

from benchmarks import report
from shoal.sim.delays import load_table
from shoal.sim.faults import Crash
from shoal_lab.report.analysis.deliveries import add_penalty, summarise_runs
from shoal_lab.runs.run_files import RunWriter
from shoal_lab.runs.run_frames import Runs, read_runs
from shoal_lab.runs.runner import RunResult, run_scenario
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings
from tests.pipeline.frames import flip_a_bit, write_simple
from tests.pipeline.interpreted import COMPILED, INTERPRETED

pytestmark = pytest.mark.spark

SCENARIO = Scenario(
    name="small",
    network=NetworkSettings(nodes=32),
    workload=WorkloadSettings(messages=20, settle_s=15.0, drain_s=3.0),
    # With somebody who comes back, so that not all deliveries are due.
    faults=(Crash(fraction=0.2, start_s=15.8, end_s=16.5),),
)

ORACLE = """
select run, message_count, expected, delivered, besides, delivered / expected,
    (copies + returned) / (delivered + besides + message_count),
    mean_ms, min_ms, max_ms, p[1] / 10, p[2] / 10, p[3] / 10, hops_mean, hops_max
from (
    select run, count(*) filter (due) as delivered, count(*) filter (not due) as besides,
        sum(duplicates) as copies, avg(delay_tenths_ms) filter (due) / 10 as mean_ms,
        min(delay_tenths_ms) filter (due) / 10 as min_ms,
        max(delay_tenths_ms) filter (due) / 10 as max_ms,
        quantile_cont(delay_tenths_ms, [0.5, 0.95, 0.99]) filter (due) as p,
        avg(hops) filter (due) as hops_mean, max(hops) filter (due) as hops_max
    from read_parquet($deliveries) group by run
) join (
    select run, count(*) as message_count, sum(expected) as expected, sum(duplicates) as returned
    from read_parquet($messages) group by run
) using (run) order by run
"""


@pytest.fixture(autouse=True, scope="module")
def compiled(spark: SparkSession) -> Iterator[None]:
    """Here queries are compiled, as users have it."""
    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunResult]]:
    """Three runs of the lab."""
    folder = tmp_path_factory.mktemp("runs")
    with RunWriter(folder) as writer:
        results = [run_scenario(SCENARIO, seed, check=False, writer=writer) for seed in (1, 2, 3)]
    return folder, results


@pytest.fixture(scope="module")
def rows(spark: SparkSession, recorded: tuple[Path, list[RunResult]]) -> list[Row]:
    """What Spark says of them, with the penalty as the last two columns."""
    runs = read_runs(spark, str(recorded[0]))
    found: list[Row] = add_penalty(summary(runs), runs.table("delays")).orderBy("run").collect()
    return found


def summary(runs: Runs) -> DataFrame:
    return summarise_runs(runs.table("deliveries"), runs.table("messages")).orderBy("run")


def same(ours: list[Any], theirs: list[Any]) -> bool:
    assert len(ours) == len(theirs)
    return all(
        a[0] == b[0] and list(a[1:]) == pytest.approx(list(b[1:]), rel=1e-9)
        for a, b in zip(ours, theirs, strict=True)
    )


def test_results_are_those_of_duckdb(
    rows: list[Row], recorded: tuple[Path, list[RunResult]]
) -> None:
    folder, _ = recorded
    files = {name: f"{folder}/*/{name}.parquet" for name in ("deliveries", "messages")}
    theirs = duckdb.execute(ORACLE, files).fetchall()
    assert sum(row[4] for row in theirs) > 0, "some deliveries are not due, or this tests little"
    assert same([row[:-2] for row in rows], theirs)


def test_results_are_the_figures_of_the_run(
    rows: list[Row], recorded: tuple[Path, list[RunResult]]
) -> None:
    _, results = recorded
    table = load_table("aws")
    for row, result in zip(rows, results, strict=True):
        figures = result.figures
        assert row["run"].startswith(f"small-{result.seed}-")
        assert (row["messages"], row["expected"], row["delivered"]) == (
            figures.published, figures.expected, figures.delivered,
        )  # fmt: skip
        assert row["delivered_besides"] == figures.delivered_besides
        assert row["duplicates_per_message"] == pytest.approx(figures.duplicates_per_message)
        # Each delay was rounded to a tenth of a millisecond.
        assert row["mean_ms"] == pytest.approx(figures.delay_ms.mean, abs=0.05)
        assert row["p50_ms"] == pytest.approx(figures.delay_ms.p50, abs=0.051)
        assert row["p99_ms"] == pytest.approx(figures.delay_ms.p99, abs=0.051)
        assert row["max_ms"] == pytest.approx(figures.delay_ms.max, abs=0.051)
        assert row["hops_mean"] == pytest.approx(figures.hops.mean)
        assert row["hops_max"] == figures.hops.max
        assert row["unicast_ms"] == pytest.approx(table.mean_ns() / 1e6, abs=0.001)
        assert row["rdp"] == pytest.approx(row["mean_ms"] / row["unicast_ms"])


def test_results_do_not_depend_on_how_files_are_split_and_ordered(
    spark: SparkSession,
    rows: list[Row],
    recorded: tuple[Path, list[RunResult]],
    tmp_path: Path,
    seed: int,
) -> None:
    folder, _ = recorded
    rng = Random(seed)
    for run in folder.iterdir():
        target = tmp_path / run.name
        target.mkdir()
        (target / "run.json").write_bytes((run / "run.json").read_bytes())
        for file in run.glob("*.parquet"):
            split(file, target, rng)
    parts = read_runs(spark, str(tmp_path))
    assert parts.problems == ()
    assert len(parts.runs[0].files["deliveries"]) > 1
    # Not even the last bit differs: whatever is added up is a whole number.
    assert [tuple(row) for row in summary(parts).collect()] == [tuple(row[:-2]) for row in rows]


def split(file: Path, target: Path, rng: Random) -> None:
    """The rows of a file in any order, in any number of files and row groups."""
    table = pq.read_table(file)
    order = list(range(table.num_rows))
    rng.shuffle(order)
    table = table.take(order)
    cuts = sorted({0, table.num_rows, *(rng.randrange(table.num_rows + 1) for _ in range(4))})
    for number, (begin, end) in enumerate(pairwise(cuts)):
        part = target / f"{file.stem}-{number}.parquet"
        pq.write_table(table.slice(begin, end - begin), part, row_group_size=rng.randint(1, 300))


def test_a_table_that_no_run_has_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    write_simple(tmp_path, "a")
    assert read_runs(spark, str(tmp_path)).table("delays").count() == 0


def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    odd = tmp_path / "a {b} [c] *"
    odd.mkdir()
    write_simple(odd, "run")
    assert read_runs(spark, str(odd)).table("deliveries").count() == 2


def test_other_runs_are_reported_when_one_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    write_simple(tmp_path, "good", [10, 30])
    file = write_simple(tmp_path, "bad", range(1000)) / "deliveries.parquet"
    flip_a_bit(file, "delay_tenths_ms")
    # Spark does not take the changed bytes for figures.
    with pytest.raises(Py4JJavaError, match=r"bad/deliveries\.parquet"):
        summary(read_runs(spark, str(tmp_path))).collect()
    checked = read_runs(spark, str(tmp_path), verify=True)
    assert [problem.file for problem in checked.problems] == [str(file)]
    assert [(row["run"], row["mean_ms"]) for row in summary(checked).collect()] == [("good", 2.0)]


def test_a_tiny_benchmark_has_figures(spark: SparkSession, tmp_path: Path) -> None:
    report.generate(tmp_path, rows=6_000, runs=2)
    result = report.measure(spark, tmp_path, rounds=1)
    assert (result.rows, result.runs) == (6_000, 2)
    assert min(result.first_cpu_s, result.spark_cpu_s, result.duckdb_cpu_s, result.ratio) > 0
