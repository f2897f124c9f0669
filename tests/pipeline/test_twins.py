"""Runs over sockets beside their simulations: which belong together, and what is compared."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from shoal_lab.report.analysis.collect import collect_folder
from shoal_lab.report.analysis.points import group_runs
from shoal_lab.report.analysis.report_data import Collected, Point, RunFigures, Twin
from shoal_lab.report.analysis.twins import find_twins
from shoal_lab.report.blocks import Table
from shoal_lab.report.build import build_report
from shoal_lab.report.pages import to_html
from shoal_lab.report.sections.sockets import node_differences, sockets_section
from shoal_lab.runs.run_frames import FoundRun
from tests.pipeline.frames import delivery, edge, message, node, settings, table_delay, write

NODES = 9


def found(run: str, seed: int = 1, on: str | None = "simulator", **more: Any) -> FoundRun:
    scenario = settings("x", **more)
    if on is not None:
        scenario["on"] = on
    return FoundRun(run, {"run": run, "seed": seed, "scenario": {**scenario, "seed": seed}}, {})


def test_twins_differ_in_what_they_ran_on_alone() -> None:
    runs = [
        found("s1"), found("s2", 2), found("s3", 3, nodes=64), found("old", 4, on=None),
        found("k1", 1, "sockets"), found("k3", 3, "sockets"), found("k4", 4, "sockets"),
        found("k5", 1, "sockets", degree=6),
    ]  # fmt: skip
    twins = find_twins(group_runs(runs))
    # Neither another seed nor another size will do; a run that says nothing was simulated.
    pairs = [(twin.simulator.run, twin.sockets.run) for twin in twins]
    assert pairs == [("s1", "k1"), ("old", "k4")]
    assert twins[0].label == "nodes 32, degree 4"


def write_run(folder: Path, run: str, on: str, seed: int, rng: Random, cut: bool) -> None:
    rows = [
        delivery(
            run,
            rng.randrange(500, 3000),
            message=number,
            node=n,
            hops=rng.randrange(1, 7),
            due=rng.random() < 0.9,
        )
        for number in range(30)
        for n in range(1, NODES)
    ]
    ring = [(a, (a + 1) % NODES) for a in range(NODES)]
    ways = [*ring, *((b, a) for a, b in ring)]
    if cut:
        ways[0] = (0, 4)
    write(
        folder,
        run,
        scenario=settings("streams-sockets", NODES, on=on),
        seed=seed,
        figures={"held": {"count": 9, "late_ms_mean": 0.25, "late_ms_max": 3.0}},
        deliveries=rows,
        messages=[message(run, number, expected=NODES - 1) for number in range(30)],
        nodes=[node(run, n) for n in range(NODES)],
        delays=[table_delay(run, "x", "y", 20_000)],
        topologies=[edge(run, a, b, 1000) for a, b in ways],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs, the second with another topology over sockets; and a run without a twin."""
    made, rng = tmp_path_factory.mktemp("twins"), Random(5)
    for seed in (1, 2):
        write_run(made, f"sim{seed}", "simulator", seed, rng, cut=False)
        write_run(made, f"real{seed}", "sockets", seed, rng, cut=seed == 2)
    write_run(made, "sim3", "simulator", 3, rng, cut=False)
    return made


@pytest.fixture(scope="module")
def collected(spark: SparkSession, folder: Path) -> Collected:
    return collect_folder(str(folder), lambda _: spark)


@pytest.mark.spark
def test_nodes_are_compared_as_duckdb_does(collected: Collected, folder: Path) -> None:
    theirs = duckdb.execute(
        "select run, node, avg(delay_tenths_ms) / 10 from read_parquet($files) where due "
        "group by all order by node",
        {"files": f"{folder}/*/deliveries.parquet"},
    ).fetchall()
    means: dict[str, list[float]] = {}
    for run, _, mean_ms in theirs:
        means.setdefault(run, []).append(mean_ms)
    assert [(twin.simulator, twin.sockets) for twin in collected.twins] == [
        ("sim1", "real1"), ("sim2", "real2"),
    ]  # fmt: skip
    for twin in collected.twins:
        wanted = list(zip(means[twin.simulator], means[twin.sockets], strict=True))
        assert len(wanted) == NODES - 1
        for ours, theirs_ms in zip(twin.nodes, wanted, strict=True):
            assert ours == pytest.approx(theirs_ms)
        apart = [abs(b / a - 1) for a, b in wanted]
        assert node_differences(twin) == pytest.approx((math.fsum(apart) / len(apart), max(apart)))
        assert twin.late_ms == 0.25


@pytest.mark.spark
def test_hops_are_counted_as_duckdb_does(collected: Collected, folder: Path) -> None:
    theirs = duckdb.execute(
        "select run, hops, count(*) from read_parquet($files) where due group by all",
        {"files": f"{folder}/*/deliveries.parquet"},
    ).fetchall()
    counts = Counter({(run, hops): n for run, hops, n in theirs})
    for twin in collected.twins:
        assert [hops for hops, _, _ in twin.hops] == [1, 2, 3, 4, 5, 6]
        for hops, simulated, ours in twin.hops:
            assert (simulated, ours) == (counts[twin.simulator, hops], counts[twin.sockets, hops])


@pytest.mark.spark
def test_links_are_compared_way_by_way(collected: Collected) -> None:
    equal, different = collected.twins
    assert equal.links == (2 * NODES, 0, 0)
    assert different.links == (2 * NODES - 1, 1, 1)


@pytest.mark.spark
def test_twins_are_on_the_page(collected: Collected) -> None:
    section = sockets_section(collected)
    assert section is not None
    means, percentiles, nodes, hops = (b for b in section[0].blocks if isinstance(b, Table))
    runs = {run.run: run for point in collected.points for run in point.runs}
    for row, twin in zip(means.rows, collected.twins, strict=True):
        simulated, ours = runs[twin.simulator].mean_ms, runs[twin.sockets].mean_ms
        assert simulated is not None
        assert ours is not None
        assert row[2:6] == (
            str(twin.seed), f"{simulated:,.1f}", f"{ours:,.1f}",
            f"{100 * (ours / simulated - 1):+.2f} %",
        )  # fmt: skip
    assert len(percentiles.rows) == len(nodes.rows) == 2
    assert [row[-1] for row in nodes.rows] == ["equal", "different"]
    assert len(hops.rows) == 12
    page = to_html(build_report(collected))
    assert "Sockets against simulator" in page


def twin_of(simulated_ms: float, ours_ms: float) -> Collected:
    """One pair, of which only the means matter."""
    runs = (
        RunFigures(run="s", seed=1, mean_ms=simulated_ms),
        RunFigures(run="k", seed=1, mean_ms=ours_ms),
    )
    twin = Twin(
        scenario="x", label="nodes 2", seed=1, simulator="s", sockets="k",
        nodes=((100.0, 101.0), (200.0, 196.0)), hops=((1, 3, 1),), links=(4, 0, 0),
    )  # fmt: skip
    point = Point(scenario="x", about="", settings={}, label="", runs=runs)
    return Collected(
        folder="", points=(point,), provenance=(), replays=(), problems=(), twins=(twin,)
    )


@pytest.mark.parametrize(
    ("ours_ms", "difference", "verdict"),
    [(103.0, "+3.00 %", "within 3 %"), (103.1, "+3.10 %", "outside"), (96.9, "-3.10 %", "outside"),
     (97.0, "-3.00 %", "within 3 %"), (100.0, "+0.00 %", "within 3 %")],
)  # fmt: skip
def test_three_per_cent_is_the_limit(ours_ms: float, difference: str, verdict: str) -> None:
    section = sockets_section(twin_of(100.0, ours_ms))
    assert section is not None
    means, _, nodes, hops = (b for b in section[0].blocks if isinstance(b, Table))
    assert means.rows[0][5:7] == (difference, verdict)
    (told,) = section[1]
    assert (told.against, told.published, told.expected) == ("simulator", None, 100.0)
    assert (told.point, told.verdict) == ("x, nodes 2, seed 1", verdict)
    assert nodes.rows[0][3:6] == ("2", "1.50 %", "2.00 %")
    assert hops.rows[0][3:] == ("1", "3", "1", "100.0 %", "100.0 %")


def test_the_limit_is_in_the_summary_apart_from_what_is_published() -> None:
    summary = build_report(twin_of(100.0, 104.0)).summary
    assert summary[1:] == (
        "Over sockets, 0 of 1 mean delays lie within 3 % of the simulator's.",
        "Outside: mean delay over sockets, ms (x, nodes 2, seed 1): 104, simulated 100.",
    )


def test_a_twin_that_got_nothing_has_no_verdict() -> None:
    section = sockets_section(twin_of(0.0, 10.0))
    assert section is not None
    assert section[1] == []


def test_without_twins_there_is_no_section() -> None:
    nobody = Collected(folder="", points=(), provenance=(), replays=(), problems=())
    assert sockets_section(nobody) is None
