"""The format "shoal" in Spark: batch, streams, restarts, and what goes wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.source_golden import COMMITTED, GOLDEN, ROWS, golden_server, run_query
from tests.support.log_server import START_MS, STREAM, LogServer, numbers, servers_of, signed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def gatherer(got: list[int]) -> Callable[[DataFrame, int], None]:
    def gather(frame: DataFrame, number: int) -> None:
        got.extend(numbers([row.value for row in frame.select("value").collect()]))

    return gather


def test_a_batch_read_with_a_filter_while_a_server_dies(
    spark: SparkSession, a: LogServer, b: LogServer
) -> None:
    a.append(signed(n, partition=n % 2) for n in range(400))
    a.append([signed(1000, forged=True)])
    b.follow(a)
    a.pages_left = 2
    frame = spark.read.format("shoal").options(
        servers=servers_of(a, b), stream=STREAM, maxRecordsPerPartition="100"
    )
    since = datetime.fromtimestamp(START_MS / 1000 + 0.1, UTC)
    rows = frame.load().where(f"timestamp >= '{since.isoformat()}' or error is not null").collect()
    assert numbers([row.value for row in rows if row.error is None]) == list(range(100, 400))
    (bad,) = [row for row in rows if row.error is not None]
    assert (bad.error, bad.publisher, bad.seq) == ("its publisher did not sign it", None, 201)
    assert any("/log?" in asked for asked in b.asked), "the rest is from the other one"
    a.pages_left = None
    a.asked.clear()
    only = frame.load().where(f"timestamp >= '{since.isoformat()}'").select("value")
    assert len(only.collect()) == 300
    pages = [asked for asked in a.asked if "/log?" in asked]
    assert pages
    assert all(f"from={START_MS + 100}" in page for page in pages), "servers filter"
    try:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        assert frame.load().where("seq <= 10").count() == 20, "and a plain session reads too"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_query_goes_on_from_its_checkpoint_with_another_server(
    spark: SparkSession, a: LogServer, b: LogServer, tmp_path: Path
) -> None:
    a.append(signed(n, partition=n % 2) for n in range(100, 300))
    b.append(signed(n, partition=n % 2) for n in range(298, 304))
    b.follow(a)
    a.follow(b)
    got: list[int] = []
    options = {
        "servers": servers_of(a, b),
        "stream": STREAM,
        "startingOffsets": "earliest",
        "maxRowsPerTrigger": "120",
    }
    checkpoint = tmp_path / "checkpoint"
    told = run_query(spark, checkpoint, gatherer(got), **options)
    assert sorted(got) == list(range(100, 304))
    assert [progress["numInputRows"] for progress in told] == [120, 84]
    (source,) = told[0]["sources"]
    here, newest = json.loads(source["endOffset"]), json.loads(source["latestOffset"])
    lag = sum(newest["p"][p]["seq"] - here["p"][p]["seq"] for p in newest["p"])
    assert lag == 84
    along = here["p"]["0"]["log"]
    first, second = (a, b) if along == str(a.store.log) else (b, a)
    first.die()
    second.append(signed(n, partition=2) for n in range(10))  # late, and a partition more
    second.append(signed(n) for n in range(10, 20))
    second.die()
    with pytest.raises(Exception, match="no server gave what they have"):
        run_query(spark, checkpoint, gatherer(got), **options, patienceSeconds="0")
    second.start()
    run_query(spark, checkpoint, gatherer(got), **options)
    assert sorted(got) == [*range(20), *range(100, 304)], "once each"


def test_a_golden_checkpoint_is_gone_on_from(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN, checkpoint)
    with golden_server(tmp_path) as server:
        server.append(signed(n) for n in range(1000, 1010))
        options = {"servers": server.address, "stream": STREAM}
        got: list[int] = []
        run_query(spark, checkpoint, gatherer(got), **options)
        assert got == [*range(COMMITTED, ROWS), *range(1000, 1010)]
        assert (checkpoint / "commits" / "2").exists()
        other = STREAM + "2"
        server.append([signed(0, stream=type(STREAM)(other))])
        with pytest.raises(Exception, match="give the query a checkpointLocation of its own"):
            run_query(spark, checkpoint, gatherer(got), **{**options, "stream": other})


def test_what_cannot_be_read_is_said(spark: SparkSession, a: LogServer) -> None:
    read = spark.read.format("shoal").options(servers=a.address, stream=STREAM)
    with pytest.raises(Exception, match="no server keeps stream"):
        read.load().count()
    with pytest.raises(Exception, match="option 'topics': there is none; known are servers"):
        read.option("topics", "x").load().count()
