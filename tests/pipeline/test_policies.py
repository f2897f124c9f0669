"""Policies beside one another: direct delays and stretch from literal rows; what is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from shoal_lab.report.analysis.collect import collect_folder
from shoal_lab.report.analysis.policies import count_stretches, direct_means
from shoal_lab.report.analysis.report_data import Collected
from tests.pipeline.frames import (
    arrow_table,
    delivery,
    edge,
    message,
    node,
    settings,
    table_delay,
    write,
)  # fmt: skip

pytestmark = pytest.mark.spark


def frame(spark: SparkSession, name: str, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(arrow_table(name, rows))


def nodes_in(run: str, *regions: str) -> list[dict[str, Any]]:
    return [node(run, number) | {"region": region} for number, region in enumerate(regions)]


def delays_of(run: str) -> list[dict[str, Any]]:
    """Not the same there and back; z has no nodes."""
    return [
        table_delay(run, "x", "x", 1_000), table_delay(run, "x", "y", 10_000),
        table_delay(run, "y", "x", 20_000), table_delay(run, "y", "y", 0),
        table_delay(run, "x", "z", 999_000),
    ]  # fmt: skip


def test_direct_delays_count_pairs_of_distinct_nodes(spark: SparkSession) -> None:
    nodes = [*nodes_in("two", "x", "x", "y"), *nodes_in("one", "x"), *nodes_in("far", "y", "x")]
    delays = [row for run in ("two", "one", "far") for row in delays_of(run)]
    found = direct_means(frame(spark, "nodes", nodes), frame(spark, "delays", delays))
    assert {row["run"]: row["direct_ms"] for row in found.collect()} == {
        # 0-1, 1-0 within x; both to y and back.
        "two": pytest.approx((2 * 1 + 2 * 10 + 2 * 20) / 6),
        "far": pytest.approx(15.0),
        "one": None,
    }


def test_stretch_is_taken_pair_by_pair(spark: SparkSession) -> None:
    rows = [
        # Node 0 in x to node 1 in y, 10 ms: 15 ms in the mean.
        delivery("a", 100, message=0, node=1, region="y"),
        delivery("a", 200, message=1, node=1, region="y"),
        delivery("a", 9999, message=2, node=1, region="y", due=False),
        # To node 2 in x, 1 ms: 0.9; and 3 s, which is too far to be told apart.
        delivery("a", 9, node=2, region="x"),
        delivery("b", 30_000, node=2, region="x"),
        # Back from y, 20 ms: the table knows the direction.
        delivery("a", 100, node=0, region="x") | {"publisher": 1},
        # y to y takes no time.
        delivery("b", 100, node=3, region="y") | {"publisher": 1},
        delivery("elsewhere", 100, node=1, region="y"),
    ]
    nodes = [row for run in ("a", "b", "elsewhere") for row in nodes_in(run, "x", "y", "x", "y")]
    delays = [row for run in ("a", "b", "elsewhere") for row in delays_of(run)]
    points = spark.createDataFrame([("a", 1), ("b", 1)], "run string, point long")
    found = count_stretches(
        frame(spark, "deliveries", rows),
        frame(spark, "nodes", nodes),
        frame(spark, "delays", delays),
        points,
    )
    counted = {(r["point"], r["stretch_hundredths"]): r["n"] for r in found.collect()}
    assert counted == {(1, 150): 1, (1, 90): 1, (1, 10_000): 1, (1, 50): 1}


def write_policy(folder: Path, run: str, policy: str | None, delay: int, seed: int = 1) -> None:
    scenario = settings("aware-aws", 3)
    if policy is not None:
        scenario["network"]["policy"] = policy
    write(
        folder,
        run,
        scenario=scenario,
        seed=seed,
        deliveries=[delivery(run, delay, node=n, region="xy"[n % 2]) for n in (1, 2)],
        messages=[message(run, expected=2)],
        nodes=nodes_in(run, "x", "y", "x"),
        delays=delays_of(run)[:4],
        topologies=[edge(run, 0, 1, 10_000), edge(run, 1, 0, 20_000), edge(run, 0, 2, 1_000)],
    )


@pytest.fixture(scope="module")
def collected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    folder = tmp_path_factory.mktemp("policies")
    write_policy(folder, "old", None, 310)  # from before there was a choice
    write_policy(folder, "aware1", "aware", 110)
    write_policy(folder, "aware2", "aware", 130, seed=2)
    return collect_folder(str(folder), lambda _: spark)


def test_runs_of_several_policies_are_compared(collected: Collected) -> None:
    found = {str(p.settings.get("network.policy")): p for p in collected.points}
    aware, blind = found["aware"], found["random"]
    direct_ms = (2 * 1 + 2 * 10 + 2 * 20) / 6
    assert aware.values("direct_ms") == pytest.approx([direct_ms] * 2)
    assert aware.values("node_rdp") == pytest.approx([11 / direct_ms, 13 / direct_ms])
    assert blind.values("node_rdp") == pytest.approx([31 / direct_ms])
    assert aware.stretch is not None
    assert blind.stretch is not None
    assert aware.stretch.pairs == 4
    # 0 to 1 takes 10 ms, 0 to 2 takes 1.
    assert blind.stretch.cdf == ((3.1, 0.5), (31.0, 1.0))


def test_a_map_has_every_link_once(collected: Collected) -> None:
    maps = [point.links for point in collected.points]
    for links in maps:
        assert links is not None
        assert links.links == ((0, 1, 10.0), (0, 2, 1.0))
        assert len(links.places) == 3
    assert maps[0] is not None
    assert maps[1] is not None
    assert maps[0].places == maps[1].places, "only then can they be compared"


def test_one_policy_alone_is_not_compared(spark: SparkSession, tmp_path: Path) -> None:
    write_policy(tmp_path, "aware1", "aware", 110)
    (point,) = collect_folder(str(tmp_path), lambda _: spark).points
    assert (point.stretch, point.links, point.values("direct_ms")) == (None, None, [])
