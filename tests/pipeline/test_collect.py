"""A folder of runs, collected: against DuckDB, in any layout, and with damage."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NoReturn

import duckdb
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal_lab.report.analysis.collect import (  # fmt: skip  # fmt: skip
    CHECKING,
    COMPARING,
    COUNTING,
    OVERLAYS,
    PATHS,
    Stage,
    collect_folder,
    count_provenance,
    plan_stages,
    run_figures,
)
from shoal_lab.report.analysis.report_data import Collected, Diameter, mean_absolute
from shoal_lab.runs.result_schema import Packets
from shoal_lab.runs.run_frames import FoundRun, find_runs
from tests.pipeline.frames import (
    delivery,
    diameter,
    edge,
    flip_a_bit,
    message,
    node,
    pair,
    settings,
    table_delay,
    write,
    write_simple,
)  # fmt: skip
from tests.pipeline.test_against_duckdb import split

ORACLE = """
select regexp_extract(run, '^[a-z]+') as point, count(*), avg(delay_tenths_ms) / 10,
    quantile_cont(delay_tenths_ms, [0.5, 0.95, 0.99])
from read_parquet($files) where due group by point order by point
"""


def write_point(folder: Path, point: str, nodes: int, rng: Random) -> None:
    """Three repeats, one of which loses a message."""
    for seed in (1, 2, 3):
        run = f"{point}{seed}"
        delays = [rng.randrange(100, 3000) for _ in range(40 * seed)]
        rows = [
            delivery(run, delay, node=n, hops=n % 7, duplicates=n % 3, due=n % 10 > 0)
            for n, delay in enumerate(delays)
        ]
        due = sum(row["due"] for row in rows)
        write(
            folder,
            run,
            scenario=settings("streams-propagation", nodes),
            seed=seed,
            figures={
                "prediction": {"estimated_ms": 90.0, "error_percent": -seed, "mape_percent": 5}
            },
            deliveries=rows,
            messages=[message(run, 0, expected=due + (seed == 3))],
            nodes=[node(run)],
            delays=[table_delay(run, "x", "y", 20_000 * seed)],
            topologies=[edge(run, 0, 1, 50_000), edge(run, 1, 0, 9)],
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two points of three runs."""
    made, rng = tmp_path_factory.mktemp("points"), Random(7)
    write_point(made, "small", 32, rng)
    write_point(made, "wide", 64, rng)
    return made


@pytest.fixture(scope="module")
def collected(spark: SparkSession, folder: Path) -> Collected:
    return collect_folder(str(folder), lambda _: spark)


@pytest.mark.spark
def test_points_are_those_of_duckdb(collected: Collected, folder: Path) -> None:
    theirs = duckdb.execute(ORACLE, {"files": f"{folder}/*/deliveries.parquet"}).fetchall()
    assert [point.nodes for point in collected.points] == [32, 64]
    for point, (_, delivered, mean_ms, tenths) in zip(collected.points, theirs, strict=True):
        ours = point.delays
        assert ours is not None
        assert ours.delivered == delivered
        assert ours.mean_ms == pytest.approx(mean_ms)
        found = [ours.p50_ms, ours.p95_ms, ours.p99_ms]
        assert found == pytest.approx([tenth / 10 for tenth in tenths])


@pytest.mark.spark
def test_curves_are_those_of_duckdb(collected: Collected, folder: Path) -> None:
    delays = duckdb.execute(
        "select delay_tenths_ms / 10 from read_parquet($files) where due and run like 'small%'",
        {"files": f"{folder}/*/deliveries.parquet"},
    ).fetchall()
    values = [delay for (delay,) in delays]
    curve = collected.points[0].delays
    assert curve is not None
    assert (curve.cdf[0][0], curve.cdf[-1]) == (min(values), (max(values), 1.0))
    for delay_ms, share in curve.cdf:
        assert share == pytest.approx(sum(v <= delay_ms for v in values) / len(values))


@pytest.mark.spark
def test_figures_are_gathered_over_repeats(collected: Collected) -> None:
    point = collected.points[0]
    runs = point.runs
    assert [run.seed for run in runs] == [1, 2, 3]
    means = [run.mean_ms for run in runs]
    mean = point.over_repeats("mean_ms")
    assert mean is not None
    assert (mean.repeats, mean.min, mean.max) == (3, min(means), max(means))  # type: ignore[type-var]
    assert mean.mean == pytest.approx(sum(means) / 3)  # type: ignore[arg-type]
    assert [run.unicast_ms for run in runs] == [20.0, 40.0, 60.0]
    assert runs[1].rdp == pytest.approx(runs[1].mean_ms / 40.0)  # type: ignore[operator]
    assert [run.coverage for run in runs] == [1.0, 1.0, 108 / 109]
    assert point.values("tracker_error_percent") == [-1.0, -2.0, -3.0]
    assert mean_absolute(point.values("tracker_error_percent")) == 2.0
    # Node 0 publishes, and it takes 50 ms to the only other one.
    assert point.values("shortest_ms") == [50.0, 50.0, 50.0]
    error = runs[0].shortest_error_percent
    assert error == pytest.approx(100 * (50.0 / runs[0].mean_ms - 1))  # type: ignore[operator]


@pytest.mark.spark
def test_the_layout_of_files_does_not_matter(
    spark: SparkSession, collected: Collected, folder: Path, tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    for run in folder.iterdir():
        target = tmp_path / run.name
        target.mkdir()
        (target / "run.json").write_bytes((run / "run.json").read_bytes())
        for file in run.glob("*.parquet"):
            split(file, target, rng)
    again = collect_folder(str(tmp_path), lambda _: spark)
    assert (again.points, again.problems) == (collected.points, ())


@pytest.mark.spark
def test_overlays_are_collected_from_runs_that_publish_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    scenario = settings("streams-randomness", nodes=3, degree=2)
    for seed, counts in ((1, (2, 2, 2)), (2, (3, 0, 3))):
        run, figures = f"r{seed}", {"overlays": seed + 1, "degree": 2, "block_p_value": 0.5}
        ends = ((0, 1), (0, 2), (1, 2))
        rows = [pair(run, a, b, n) for (a, b), n in zip(ends, counts, strict=True)]
        write(tmp_path, run, scenario=scenario, seed=seed, figures=figures, pairs=rows)
    for seed, links in ((1, [5, 6]), (2, [8])):
        run = f"d{seed}"
        wide = [diameter(run, n) for n in links]
        write(tmp_path, run, scenario=settings("streams-diameter", 64), seed=seed, diameters=wide)
    found = collect_folder(str(tmp_path), lambda _: spark)
    assert found.problems == ()
    (wide_point, random_point) = found.points
    assert wide_point.diameters == (
        Diameter(nodes=64, degree=4, overlays=3, min=5, mean=19 / 3, max=8),
    )
    matrix = random_point.matrix
    assert matrix is not None
    # Both repeats together: 5, 2 and 5 of 5 overlays.
    assert (matrix.overlays, matrix.pairs, matrix.least, matrix.most) == (5, 3, 0.4, 1.0)
    assert matrix.mean == pytest.approx(0.8)
    assert matrix.deviation == pytest.approx((2 * 0.2**2 + 0.4**2) ** 0.5 / 3**0.5)
    assert matrix.cells[0] == pytest.approx((0.0, 1.0, 0.4))
    assert random_point.delays is None


@pytest.mark.spark
def test_changed_bytes_cost_their_run_only(spark: SparkSession, tmp_path: Path) -> None:
    write_point(tmp_path, "small", 32, Random(1))
    file = tmp_path / "small2" / "deliveries.parquet"
    flip_a_bit(file, "delay_tenths_ms")
    assert find_runs(str(tmp_path))[1] == [], "or Spark never gets to see it"
    stages: list[Stage] = []
    found = collect_folder(str(tmp_path), lambda _: spark, stages.append)
    assert [problem.file for problem in found.problems] == [str(file)]
    assert [run.run for run in found.points[0].runs] == ["small1", "small3"]
    assert CHECKING in [stage.said for stage in stages]


def test_a_run_under_loss_says_what_its_packets_did() -> None:
    told = {"packets": 1000, "dropped": 51, "overflowed": 2, "host_late_us_mean": 812.5, "tcp": 1}
    run = FoundRun("r", {"seed": 3, "result": {"figures": {"network": told}}}, {})
    figures = run_figures(run, {}, None)
    assert figures.packets == Packets(1000, 51, 2, 812.5)
    assert figures.host_late_ms == 0.8125
    other = run_figures(FoundRun("r", {"seed": 3}, {}), {}, None)
    assert (other.packets, other.host_late_ms) == (None, None)


def no_spark(rows: int) -> NoReturn:
    raise AssertionError("Spark was asked for")


def test_spark_is_not_started_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no runs in"):
        collect_folder(str(tmp_path), no_spark)
    write(tmp_path, "bad", deliveries=[], messages=[], nodes=[])
    with pytest.raises(UsageError, match=r"none of the runs in .* can be read:\n.*bad: an empty"):
        collect_folder(str(tmp_path), no_spark)


class Broken:
    """A session that gives up, as one does that is short of memory."""

    @property
    def read(self) -> NoReturn:
        raise PySparkException(
            "An error occurred while calling o7.parquet.\n: java.lang.X: y\n\tat"
        )


def test_a_session_that_gives_up_says_why_in_a_line(tmp_path: Path) -> None:
    write_simple(tmp_path, "a")
    broken: Any = Broken()
    with pytest.raises(ShoalError, match=r"^Spark gave up: java\.lang\.X: y$"):
        collect_folder(str(tmp_path), lambda _: broken)


def test_stages_follow_one_another_and_take_what_their_rows_take() -> None:
    small = {"deliveries": 1000, "messages": 10, "nodes": 100, "topologies": 400}
    large = {**small, "deliveries": 100_000_000}
    stages = plan_stages([small, large])
    ends = [stage.end for stage in stages.values()]
    assert [stage.begin for stage in stages.values()] == [0.0, *ends[:-1]]
    assert ends[-1] == pytest.approx(1.0)
    assert stages[COUNTING].end - stages[COUNTING].begin > 0.5
    assert stages[PATHS].end - stages[PATHS].begin < 0.2
    for said in (OVERLAYS, COMPARING):
        assert stages[said].begin == stages[said].end, "nothing to do"
    stages = plan_stages([small, large], [large])
    assert stages[COMPARING].end - stages[COMPARING].begin > 0.3


def test_provenance_is_told_once() -> None:
    one = {"provenance": {"commit": "a", "packages": {"numpy": "2"}}}
    found = count_provenance([{"provenance": {"commit": "b"}}, one, dict(one), {}])
    assert [(kind.commit, kind.runs) for kind in found] == [("a", 2), ("", 1), ("b", 1)]
    assert found[0].packages == {"numpy": "2"}
