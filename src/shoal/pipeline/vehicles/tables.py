"""The whole pipeline, as tables of one source: history or live, by what the source is."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.pipeline.vehicles.clean import good_readings, parse_readings, quarantine
from shoal.pipeline.vehicles.lateness import late_readings, positions
from shoal.pipeline.vehicles.rules import Rules
from shoal.pipeline.vehicles.speeds import speeds
from shoal.pipeline.vehicles.trips import trips
from shoal.pipeline.vehicles.watch import alerts

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
