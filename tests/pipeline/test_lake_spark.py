"""The lake under Spark: as frames, from a streaming query, and from one that was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.base.errors import ConfigError
from shoal_spark import session
from shoal_spark.commands import LandingFailed, land_frames
from shoal_spark.lake.delta_table import keep_up, read_lake
from shoal_spark.lake.landing import Lake, land
from shoal_spark.lake.shapes import parse_ddl
from tests.pipeline.lake_driver import stream_of
from tests.pipeline.lake_frames import ARROW, FIRST, SCHEMA_DDL, STREAM, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


def write_files(folder: Path, *contents: list[Any]) -> None:
    """A file for each batch, each a second younger than the one before."""
    folder.mkdir(exist_ok=True)
    first_seq = 1 + sum(pq.read_metadata(file).num_rows for file in folder.iterdir())
    for batch in contents:
        number = len(list(folder.iterdir()))
        file = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows_of(batch, first_seq), ARROW), file)
        os.utime(file, (1_800_000_000 + number,) * 2)
        first_seq += len(batch)


def test_a_frame_goes_in_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    shape = parse_ddl(spark, "speed double, at timestamp, stops array<struct<id: bigint>>")
    lake = Lake(str(tmp_path / "a [lake]"), shape)
    contents = [
        {"speed": 8, "at": "2026-11-16T10:00:00+01:00", "stops": [{"id": 1}, None]},
        {"speed": "fast"},
        {"speed": 0.5, "Speed2": {"x": [True]}},
    ]
    frame = spark.createDataFrame(rows_of(contents), SCHEMA_DDL)
    assert land(frame, lake, "import", 0).rows == 2
    assert land(frame, lake, "import", 0).replayed
    found = read_lake(spark, lake.table)
    first, last = found.orderBy("seq").collect()
    assert first.stream == STREAM
    assert first.timestamp.replace(tzinfo=UTC) == FIRST
    assert (first.date, last.date) == (date(2026, 11, 16), date(2026, 11, 17))
    assert first.data.at.isoformat() == "2026-11-16T09:00:00"
    assert [stop and stop.id for stop in first.data.stops] == [1, None]
    assert (first.data.speed, last.data.speed) == (8.0, 0.5)
    assert last.data.Speed2.x == [True]
    assert found.where("date = '2026-11-17'").count() == 1
    (bad,) = read_lake(spark, lake.quarantine).collect()
    assert bytes(bad.content) == b'{"speed":"fast"}'
    # A frame stays what it is while more comes in and its files are compacted.
    land(spark.createDataFrame(rows_of([{"speed": 1.0}], 4), SCHEMA_DDL), lake, "import", 1)
    keep_up(lake.table)
    assert found.count() == 2
    assert read_lake(spark, lake.table).count() == 3
    assert read_lake(spark, lake.table, version=0).isEmpty()


def test_schemas_as_people_write_them(spark: SparkSession) -> None:
    assert parse_ddl(spark, "a bigint, B struct<c: string>") == pa.struct(
        [("a", pa.int64()), ("B", pa.struct([("c", pa.string())]))]
    )
    with pytest.raises(ConfigError, match=r"decimal\(10,0\) is no type of the lake: write bigint"):
        parse_ddl(spark, "a decimal")
    with pytest.raises(ConfigError, match="schema 'a b c'"):
        parse_ddl(spark, "a b c")


def test_a_driver_killed_after_the_commit_lands_nothing_twice_and_a_restored_one_says_so(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files, lake, checkpoint = tmp_path / "in", Lake(str(tmp_path / "lake")), str(tmp_path / "cp")
    write_files(files, [{"a": 1}, b"bad"], [{"a": 2}, {"a": "bad"}, {"b": 1.5}])
    command = [sys.executable, "-m", "tests.pipeline.lake_driver"]
    driver = subprocess.Popen(
        [*command, str(files), lake.table, checkpoint, "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    with driver.stdout:
        try:
            assert driver.stdout.readline() == "landed 1\n"
        finally:
            os.killpg(driver.pid, signal.SIGKILL)  # and the JVM
            driver.wait()
    before = seqs(spark, lake)
    assert before == ([1, 3, 5], [2, 4])
    shutil.copytree(checkpoint, tmp_path / "backup")

    write_files(files, [{"a": 4, "b": 2}, b"bad"])
    monkeypatch.setattr(session, "spark_session", lambda settings: nullcontext(spark))

    def run_on() -> None:
        land_frames(
            lambda spark: stream_of(spark, str(files)),
            table=lake.table,
            checkpoint=checkpoint,
            schema="b double",
            once=True,
            interval_s=1.0,
            json=True,
            master="local[2]",
            more={},
        )

    run_on()
    said = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["batch"], line["replayed"]) for line in said[:-1]] == [(1, True), (2, False)]
    assert (said[-1]["rows"], said[-1]["quarantined"]) == (1, 1)
    landed = ([1, 3, 5, 6], [2, 4, 7])
    assert seqs(spark, lake) == landed

    write_files(files, [{"a": 5}])
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    with pytest.raises(LandingFailed, match=r"batch 1 of query .* is older than the last one"):
        run_on()
    assert seqs(spark, lake) == landed


def seqs(spark: SparkSession, lake: Lake) -> tuple[list[int], list[int]]:
    landed, bad = (
        sorted(row.seq for row in read_lake(spark, uri).select("seq").collect())
        for uri in (lake.table, lake.quarantine)
    )
    return landed, bad
