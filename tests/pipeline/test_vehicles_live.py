"""Live and history over the same hour: they differ by the rows of `late`, and by nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_city.fleet.fleet import Fleet, FleetSettings, Message, in_sent_order
from shoal_city.tables.config import Rules
from shoal_city.tables.queries import RowsDropped, start_live, write
from shoal_city.tables.readings import (
    READING,
    good_readings,
    late_readings,
    parse_readings,
    positions,
)
from shoal_city.tables.vehicle_tables import vehicle_tables
from tests.pipeline.vehicle_frames import SPARK_SOURCE, said_row, source_rows, write_source

pytestmark = pytest.mark.spark

HOUR_S = 3600.0
FILES = 2
"""What the first batch leaves open is closed by the second, and by the one without rows after it:
more batches do the same again, and each takes a second or more of every query."""
FLUSH_S = 2 * HOUR_S
"""A reading of another vehicle, long after: it closes what the hour left open."""
FLUSH_HOUR = "2026-03-01T09"
SOME_LATE = Rules(lateness_s=30.0)
NONE_LATE = Rules(lateness_s=100.0)
"""Messages are held back for up to ninety seconds, and a few more on their way."""
HELD_S = 90.0
SETTINGS = FleetSettings(
    vehicles=20, routes=2, rate=3.0, duration_s=HOUR_S, stuck=2, bunches=1,
    dropouts_per_hour=12.0, malformed=0.01, repeated=0.01,
)  # fmt: skip
INCIDENTS = Fleet(SETTINGS).incidents
UNHEARD, PUNCTUAL = INCIDENTS.stuck
(BUNCH,) = INCIDENTS.bunches


def messages() -> Iterator[Message]:
    """An hour in which the fleet holds messages back, and more so where it matters to alerts: a
    vehicle is not heard in time while it is stuck, nor one of a bunch when the bunch begins. On
    the way of the other stuck vehicle all is heard in time."""
    punctual = f'"route":"{PUNCTUAL.route}","direction":{PUNCTUAL.direction},'.encode()
    unheard = {
        UNHEARD.vehicle: (UNHEARD.start_s, UNHEARD.end_s),
        BUNCH.vehicles[1]: (BUNCH.start_s, BUNCH.start_s + 300.0),
    }
    for message in Fleet(SETTINGS).messages():
        second = (message.time_ms - SETTINGS.start_ms) / 1000
        start_s, end_s = unheard.get(message.vehicle, (0.0, 0.0))
        if start_s <= second < end_s:
            yield message._replace(sent_ms=message.time_ms + int(HELD_S * 1000))
        elif punctual in message.content:
            yield message._replace(sent_ms=message.time_ms)
        else:
            yield message


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = source_rows(in_sent_order(messages()))
    step = -(-len(rows) // FILES)
    parts = [rows[begin : begin + step] for begin in range(0, len(rows), step)]
    flush = said_row(FLUSH_S, vehicle="flush", route="flush", seq=len(rows) + 1)
    parts[-1].append(flush)
    return write_source(tmp_path_factory.mktemp("hour"), parts)


@pytest.fixture(autouse=True, scope="module")
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Every batch of every operator costs a task for each partition."""
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


def stream(spark: SparkSession, folder: str) -> DataFrame:
    return spark.readStream.schema(SPARK_SOURCE).option("maxFilesPerTrigger", 1).parquet(folder)


def run_live(
    spark: SparkSession, folder: str, rules: Rules, checkpoints: Path, names: Sequence[str]
) -> Counter[Any]:
    sinks = dict.fromkeys(names, write("memory"))
    live = start_live(
        stream(spark, folder), sinks, str(checkpoints), rules, trigger={"availableNow": True}
    )
    try:
        live.wait()
    finally:
        live.stop()
    return told({name: spark.table(f"vehicles_{name}") for name in names})


def history(
    spark: SparkSession, folder: str, rules: Rules, names: Sequence[str], *, include_late: bool
) -> Counter[Any]:
    source = spark.read.schema(SPARK_SOURCE).parquet(folder)
    tables = vehicle_tables(source, rules, include_late=include_late)
    return told({name: tables[name] for name in names})


def told(tables: dict[str, DataFrame]) -> Counter[Any]:
    """What would be published, by table, without what is only there to push the watermark."""
    # One query for all of them: what they have in common is then done once.
    parts = [table.select(F.lit(name), "value") for name, table in tables.items()]
    rows = [tuple(row) for row in reduce(DataFrame.unionAll, parts).collect()]
    return Counter(row for row in rows if "flush" not in row[1] and FLUSH_HOUR not in row[1])


def of(name: str, rows: Counter[Any]) -> Counter[Any]:
    return Counter({row: count for row, count in rows.items() if row[0] == name})


def ways(rows: Counter[Any]) -> set[tuple[str, int]]:
    """The routes and directions that rows are about."""
    said = [json.loads(value) for _, value in rows]
    return {(row["route"], row["direction"]) for row in said}


def test_history_and_live_are_the_same_when_nothing_is_late(
    spark: SparkSession, hour: str, tmp_path: Path
) -> None:
    live = run_live(spark, hour, NONE_LATE, tmp_path, ["alerts"])
    assert live == history(spark, hour, NONE_LATE, ["alerts", "late"], include_late=True)
    assert of("alerts", live).total() == 6


def test_history_and_live_differ_by_what_is_late_and_by_nothing_else(
    spark: SparkSession, hour: str, tmp_path: Path
) -> None:
    names = ("alerts", "trips", "speeds", "late")
    live = run_live(spark, hour, SOME_LATE, tmp_path, names)
    # Without the rows of `late`, history is what live was.
    assert live == history(spark, hour, SOME_LATE, names, include_late=False)
    assert of("late", live).total() > 50
    # And they matter: with them history is another one.
    everything = history(spark, hour, SOME_LATE, names, include_late=True)
    assert of("late", live) == of("late", everything)
    assert of("speeds", live) != of("speeds", everything)
    assert of("trips", live) != of("trips", everything)
    # Alerts are about all vehicles of a route and direction, so it is there that one may be
    # missing, or begin at another time: where nothing was late they are the same.
    heard, all_heard = of("alerts", live), of("alerts", everything)
    unheard, bunch = (UNHEARD.route, UNHEARD.direction), (BUNCH.route, BUNCH.direction)
    assert ways(all_heard - heard) == {unheard, bunch}
    assert ways(heard - all_heard) == {bunch}
    assert {unheard, bunch} <= ways(of("late", live))
    assert ways(heard & all_heard) == {(PUNCTUAL.route, PUNCTUAL.direction)}
    assert (PUNCTUAL.route, PUNCTUAL.direction) not in ways(of("late", live))


def test_the_readings_of_history_are_those_of_live_and_the_late_ones(
    spark: SparkSession, hour: str
) -> None:
    source = spark.read.schema(SPARK_SOURCE).parquet(hour)
    good = good_readings(parse_readings(source, SOME_LATE))
    late = set(late_readings(good, SOME_LATE).select(*READING).collect())
    in_time = Counter(positions(good, SOME_LATE, include_late=False).collect())
    everything = Counter(positions(good, SOME_LATE, include_late=True).collect())
    assert late
    assert everything == in_time + Counter(late)


def test_rows_that_spark_drops_behind_our_back_are_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Two partitions that are read an hour apart. Spark goes by the watermark of the batch before,
    # so that the first to lose rows is the third.
    ahead = [said_row(HOUR_S + second, seq=second) | {"partition": 1} for second in range(1, 4)]
    behind = [said_row(second, seq=second) for second in range(1, 6)]
    folder = write_source(tmp_path / "in", [ahead[:2], ahead[2:], behind])
    live = start_live(
        stream(spark, folder), {"speeds": write("memory")},
        str(tmp_path / "checkpoints"), trigger={"availableNow": True},
    )  # fmt: skip
    with pytest.raises(RowsDropped, match=r"\{'speeds': 5\}.*raise it"):
        live.wait()
