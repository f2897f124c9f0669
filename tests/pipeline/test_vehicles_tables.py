"""Each step of the vehicle pipeline on small literal frames, and the whole of it over history."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from shoal.base.errors import UsageError
from shoal_city.fleet.fleet import Fleet, FleetSettings, in_sent_order
from shoal_city.fleet.motion import SPOILT
from shoal_city.tables.config import Rules
from shoal_city.tables.queries import start_live, write, write_history
from shoal_city.tables.readings import (
    good_readings,
    late_readings,
    parse_readings,
    positions,
    quarantine,
)
from shoal_city.tables.vehicle_tables import KEYS, speeds, vehicle_tables
from tests.pipeline.vehicle_frames import (
    START_MS,
    moment,
    said,
    said_row,
    source_row,
    source_rows,
    write_source,
)

pytestmark = pytest.mark.spark

RULES = Rules()


@pytest.fixture
def frame(spark: SparkSession, tmp_path: Path) -> Any:
    def make(rows: Iterable[dict[str, Any]]) -> DataFrame:
        return spark.read.parquet(write_source(tmp_path / "rows", [list(rows)]))

    return make


def encoded(**other: Any) -> bytes:
    return json.dumps(said(**other)).encode()


def test_what_cannot_be_used_is_kept_with_its_reason(frame: Any) -> None:
    whole = encoded()
    contents = {
        "not text": b"\xff" + whole,
        "not JSON of this shape": whole[:-20],
        "no vehicle": encoded(vehicle=None),
        "no terminus": encoded(terminus=None),
        "time is no time": encoded(time="yesterday"),
        "impossible place": encoded(lat=960.2),
        "impossible speed": encoded(speed=-1.0),
        "sent before it was measured": encoded(sent=-0.5 + 1, second=1.0),
        "clock ahead of its message": encoded(second=5.5),
    }
    rows = [source_row(content, START_MS, seq=seq) for seq, content in enumerate(contents.values())]
    rows.append(source_row(encoded(speed="fast"), START_MS, seq=100))
    rows.append(source_row(b"", START_MS, seq=101, error="bad signature"))
    rows.append(source_row(whole, START_MS, seq=102))
    rows.append(source_row(whole, START_MS, seq=103, as_text=True))
    parsed = parse_readings(frame(rows), RULES)
    bad = {row.seq: row.problem for row in quarantine(parsed).collect()}
    assert bad.pop(100) in ("not JSON of this shape", "no speed")
    assert bad.pop(101) == "source: bad signature"
    assert bad == dict(enumerate(contents))
    good = good_readings(parsed).select("seq", "vehicle", "speed_cms", "lateness_ms").collect()
    assert sorted(tuple(row) for row in good) == [(102, "v1", 800, 20), (103, "v1", 800, 20)]


def test_a_reading_is_late_by_the_time_that_it_took_into_the_log(frame: Any) -> None:
    rows = [
        said_row(0.0, sent=29.98, seq=1),  # 20 ms more into the log: just in time
        said_row(0.001, sent=29.982, seq=2),
        source_row(encoded(second=1.0), START_MS + 1000, seq=3, stored_after_ms=30_000),
        source_row(encoded(second=2.0), START_MS + 2000, seq=4, stored_after_ms=30_001),
        # A clock that is forty seconds behind.
        source_row(encoded(second=3.0), START_MS + 43_000, seq=5),
    ]
    good = good_readings(parse_readings(frame(rows), RULES))
    late = {row.seq: row.lateness_ms for row in late_readings(good, RULES).collect()}
    assert late == {2: 30_001, 4: 30_001, 5: 40_020}
    counts = [positions(good, RULES, include_late=which).count() for which in (False, True)]
    assert counts == [2, 5]


def test_a_fleet_that_is_played_back_is_measured_by_its_own_clock(frame: Any) -> None:
    rules, later_ms = Rules(played_back=True), START_MS + 10**9
    rows = [
        source_row(encoded(second=0.0, sent=29.98), later_ms, seq=1),
        source_row(encoded(second=0.0, sent=29.981), later_ms, seq=2),
        # The storage node's clock is behind: that makes nothing early.
        source_row(encoded(second=1.0, sent=32.0), later_ms, seq=3, stored_after_ms=-9000),
    ]
    good = good_readings(parse_readings(frame(rows), rules))
    late = {row.seq: row.lateness_ms for row in late_readings(good, rules).collect()}
    assert late == {2: 30_001, 3: 31_000}


def test_a_message_that_came_twice_counts_once(frame: Any) -> None:
    rows = [
        said_row(0.0, seq=1),
        said_row(0.0, sent=2.0, seq=2),  # the same reading, sent again
        said_row(0.0, seq=3, lat=60.3),  # another one of the same moment
        said_row(0.0, seq=4, vehicle="v2"),
    ]
    good = good_readings(parse_readings(frame(rows), RULES))
    found = positions(good, RULES, include_late=False).collect()
    assert sorted((row.vehicle, row.lat) for row in found) == [
        ("v1", 60.2),
        ("v1", 60.3),
        ("v2", 60.2),
    ]


def test_a_reading_is_in_every_window_that_slides_over_it(frame: Any) -> None:
    rows = [
        said_row(30, speed=8.0, delay=10),
        said_row(45, vehicle="v2", speed=9.5, delay=-3),
        said_row(50, speed=0.0, terminus=True),
    ]
    good = good_readings(parse_readings(frame(rows), RULES))
    found = speeds(positions(good, RULES, include_late=False), RULES).collect()
    route = sorted((row for row in found if row.scope == "route"), key=lambda row: row.start)
    assert [row.end for row in route] == [datetime(2026, 3, 1, 7, minute) for minute in range(1, 6)]
    assert {row[4:] for row in route} == {(2, 2, 8.75, 3.5)}
    assert {(row.scope, row.name) for row in found} == {("route", "r1"), ("cell", "6020:1245")}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, str]:
    """Half an hour of a small fleet, in three files."""
    settings = FleetSettings(vehicles=20, routes=2, rate=4.0, duration_s=1800.0, stuck=1,
                             bunches=1, dropouts_per_hour=6.0, malformed=0.01)  # fmt: skip
    fleet = Fleet(settings)
    rows = source_rows(in_sent_order(fleet.messages()))
    third = len(rows) // 3
    parts = [rows[:third], rows[third : 2 * third], rows[2 * third :]]
    folder = write_source(tmp_path_factory.mktemp("history"), parts)
    return fleet, folder


ORACLE = """
with said as (
    select distinct on (vehicle, time) * from (
        select content->>'vehicle' as vehicle, content->>'route' as route,
            (content->>'time')::timestamptz as time, (content->>'speed')::double as speed,
            (content->>'delay')::bigint as delay, (content->>'terminus')::boolean as terminus
        from whole
    )
), starts as (
    select *, time_bucket(interval 60 seconds, time) - to_seconds(60 * unnest(range(5))) as start
    from said where not terminus
)
select route, epoch_ms(start), count(*), count(distinct vehicle),
    round(sum(round(speed * 100)) / count(*) / 100, 3), round(sum(delay) / count(*), 1)
from starts group by all order by all
"""


def test_speeds_of_a_fleet_are_those_that_duckdb_finds(
    spark: SparkSession, history: tuple[Fleet, str]
) -> None:
    fleet, folder = history
    whole = pa.table(
        {"content": [m.content.decode() for m in fleet.messages() if m.fault not in SPOILT]}
    )
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("texts", whole)
        database.execute("create view whole as select content::json as content from texts")
        expected = database.execute(ORACLE).fetchall()
    table = vehicle_tables(spark.read.parquet(folder), RULES)["speeds"]
    found = table.where("scope = 'route'").selectExpr(
        "name", "unix_millis(start)", "readings", "vehicles", "speed_mps", "delay_s"
    )
    assert len(expected) > 50
    ours = sorted(tuple(row) for row in found.collect())
    assert [row[:4] for row in ours] == [tuple(row[:4]) for row in expected]
    for row, other in zip(ours, expected, strict=True):
        assert row[4:] == pytest.approx(other[4:], abs=1e-9)


def test_a_history_is_written_by_sinks_and_says_what_was_done_to_the_fleet(
    spark: SparkSession, history: tuple[Fleet, str], tmp_path: Path
) -> None:
    fleet, folder = history
    sinks = {name: write("parquet", path=f"{tmp_path}/{name}") for name in KEYS if name != "speeds"}
    write_history(spark.read.parquet(folder), sinks, RULES)
    written: dict[str, list[Row]] = {
        name: spark.read.parquet(f"{tmp_path}/{name}").collect() for name in sinks
    }
    began = {(row.kind, *row.vehicles) for row in written["alerts"] if row.phase == "begins"}
    (stuck,), (bunch,) = fleet.incidents.stuck, fleet.incidents.bunches
    assert began == {("stuck", stuck.vehicle), ("bunch", *bunch.vehicles)}
    spoilt = [message for message in fleet.messages() if message.fault in SPOILT]
    assert len(written["quarantine"]) == len(spoilt) > 0
    assert len(written["late"]) > 0
    # A trip has every reading that is not at a terminus, once.
    whole = {m.content for m in fleet.messages() if m.fault not in SPOILT}
    under_way = sum(not json.loads(content)["terminus"] for content in whole)
    assert sum(row.readings for row in written["trips"]) == under_way
    alert = json.loads(written["alerts"][0].value)
    assert alert["vehicles"] == list(written["alerts"][0].vehicles)
    assert written["alerts"][0].key == alert["route"]


def test_a_source_of_the_other_kind_and_a_table_that_is_not_there_are_refused(
    spark: SparkSession, history: tuple[Fleet, str], tmp_path: Path
) -> None:
    source = spark.read.parquet(history[1])
    with pytest.raises(UsageError, match=r"make it with spark\.readStream"):
        start_live(source, {}, str(tmp_path))
    with pytest.raises(UsageError, match="no table buses: there are speeds"):
        write_history(source, {"buses": write("noop")})


def test_moments_are_written_as_vehicles_write_them() -> None:
    assert moment(61.5) == "2026-03-01T07:01:01.500Z"
