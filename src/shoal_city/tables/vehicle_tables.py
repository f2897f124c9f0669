"""The whole pipeline, as tables of one source: history or live, by what the source is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_city.tables.alerts import alerts
from shoal_city.tables.config import Rules
from shoal_city.tables.keyed_rules import Row, Seen, apply_rule
from shoal_city.tables.readings import (
    good_readings,
    late_readings,
    parse_readings,
    positions,
    quarantine,
)

KEYS = {"speeds": "name", "trips": "vehicle", "alerts": "route", "late": "vehicle",
        "quarantine": "log"}  # fmt: skip
"""The tables, and the column that subscribers tell their rows apart by."""


def vehicle_tables(
    source: DataFrame, rules: Rules, *, include_late: bool | None = None
) -> dict[str, DataFrame]:
    """Every table of KEYS, with `key` and `value` beside its own columns.

    `source` has the columns of format("shoal"). Late readings are in `late` in any case; history
    counts them everywhere else too, unless told not to, and then says what live said.
    """
    if include_late is None:
        include_late = not source.isStreaming
    readings = parse_readings(source, rules)
    good = good_readings(readings)
    clean = positions(good, rules, include_late=include_late)
    tables = {
        "speeds": speeds(clean, rules),
        "trips": trips(clean, rules),
        "alerts": alerts(clean, rules),
        "late": late_readings(good, rules),
        "quarantine": quarantine(readings),
    }
    return {name: _to_publish(table, KEYS[name]) for name, table in tables.items()}


def _to_publish(table: DataFrame, key: str) -> DataFrame:
    """With the key and the content that a sink publishes: the row as JSON."""
    value = F.to_json(F.struct(*table.columns))
    return table.select("*", F.col(key).alias("key"), value.alias("value"))


# Trips: what a vehicle did between two termini, or until nothing more was heard of it.


OUTPUT = (
    "vehicle string, route string, direction int, start_ms long, end_ms long, ended_by string, "
    "readings long, metres long, delay_start_s long, delay_end_s long"
)


class OpenTrip(msgspec.Struct, array_like=True):
    """A trip that goes on."""

    first: Seen
    last: Seen
    readings: int = 1

    def row(self, ended_by: str) -> Row:
        first, last = self.first, self.last
        metres = max(0, last.odometer_m - first.odometer_m)
        return (first.vehicle, first.route, first.direction, first.time_ms, last.time_ms, ended_by,
                self.readings, metres, first.delay_s, last.delay_s)  # fmt: skip


class TripRule:
    """Trips of one vehicle."""

    def __init__(self, rules: Rules, state: bytes | None = None) -> None:
        self._gap_ms = int(rules.gap_s * 1000)
        self._trip = msgspec.msgpack.decode(state, type=OpenTrip | None) if state else None

    def feed(self, seen: Seen) -> Iterator[Row]:
        # After silence it is another trip, whatever the reading says.
        yield from self.advance(seen.time_ms)
        if (trip := self._trip) is None:
            self._trip = None if seen.terminus else OpenTrip(seen, seen)
        elif seen.terminus:
            yield trip.row("terminus")
            self._trip = None
        elif (seen.route, seen.direction) != (trip.first.route, trip.first.direction):
            # It turned round while nobody heard it.
            yield trip.row("turn")
            self._trip = OpenTrip(seen, seen)
        else:
            trip.last = seen
            trip.readings += 1

    def advance(self, time_ms: int) -> Iterator[Row]:
        if self._trip is not None and time_ms - self._trip.last.time_ms > self._gap_ms:
            yield self._trip.row("gap")
            self._trip = None

    def wakes_ms(self) -> int | None:
        return None if self._trip is None else self._trip.last.time_ms + self._gap_ms + 1

    def state(self) -> bytes:
        return msgspec.msgpack.encode(self._trip)


def trips(positions: DataFrame, rules: Rules) -> DataFrame:
    """vehicle, route, direction, start, end, ended_by (terminus, turn or gap), readings, metres,
    delay_start_s, delay_end_s: a row when a trip has ended."""
    found = apply_rule(positions, ["vehicle"], TripRule, rules, OUTPUT)
    return found.select(
        "vehicle",
        "route",
        "direction",
        F.timestamp_millis("start_ms").alias("start"),
        F.timestamp_millis("end_ms").alias("end"),
        *("ended_by", "readings", "metres", "delay_start_s", "delay_end_s"),
    )


# Speed and delay in sliding windows, of routes and of cells of the map.


def speeds(positions: DataFrame, rules: Rules) -> DataFrame:
    """scope (route or cell), name, start, end, readings, vehicles, speed_mps, delay_s: of vehicles
    on a trip. Live, a window comes out once, when nothing that is not late can change it."""
    scoped = positions.where("not terminus").select(
        "*",
        # One aggregation for both: a second one would be a second query over the same stream.
        F.explode(
            F.array(
                F.struct(F.lit("route").alias("scope"), F.col("route").alias("name")),
                F.struct(F.lit("cell").alias("scope"), _cell(rules).alias("name")),
            )
        ).alias("of"),
    )
    window = F.window("time", f"{rules.window_s} seconds", f"{rules.slide_s} seconds")
    counted = scoped.groupBy(window, "of.scope", "of.name").agg(
        F.count("*").alias("readings"),
        # Exact, and Spark has no count of distinct values for streams.
        F.size(F.collect_set("vehicle")).alias("vehicles"),
        F.sum("speed_cms").alias("speed_cms"),
        F.sum("delay_s").alias("delay_s"),
    )
    return counted.select(
        "scope",
        "name",
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        "readings",
        "vehicles",
        F.round(F.col("speed_cms") / F.col("readings") / 100, 3).alias("speed_mps"),
        F.round(F.col("delay_s") / F.col("readings"), 1).alias("delay_s"),
    )


def _cell(rules: Rules) -> Column:
    """Its south-western corner, in steps of the grid: 6020:1245."""
    south = F.floor(F.col("lat") / rules.cell_degrees).cast("string")
    west = F.floor(F.col("lon") / (2 * rules.cell_degrees)).cast("string")
    return F.concat_ws(":", south, west)
