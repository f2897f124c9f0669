"""Messages to readings: parsed, checked, and with the reason where that fails.

readings = parse_readings(source, rules)
good_readings(readings), quarantine(readings)
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_city.tables.config import Rules

CONTENT = """
    vehicle string, route string, direction int, time string, sent string, lat double, lon double,
    accuracy double, speed double, odometer double, delay long, terminus boolean, broken string
"""
"""The fields that are used; others may come and go. `broken` is the text that did not fit."""
NEEDED = ("vehicle", "route", "direction", "time", "sent", "lat", "lon", "speed", "delay",
          "terminus")  # fmt: skip
SPEED_MAX_MPS = 50.0

PLACE_IN_LOG = ("stream", "partition", "log", "seq")
READING = ("vehicle", "route", "direction", "time", "lat", "lon", "accuracy_m", "speed_cms",
           "odometer_m", "delay_s", "terminus")  # fmt: skip


def parse_readings(source: DataFrame, rules: Rules) -> DataFrame:
    """PLACE_IN_LOG, READING, lateness_ms, content and problem, which is null where all is well.

    Speeds are whole centimetres and delays whole seconds: sums of whole numbers are the same in
    whatever order they are added up, so history and live agree to the last digit.
    """
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}
    # Vehicles publish bytes, which the source does not take for text.
    text = F.coalesce("value", F.try_validate_utf8(F.col("content").cast("string")))
    parsed = (
        source.withColumn("text", text)
        # Exploded, though it is one: else Spark parses anew for every field and every check.
        .select("*", F.explode(F.array(F.from_json("text", CONTENT, options))).alias("said"))
        .withColumn("time", F.try_to_timestamp("said.time"))
        .withColumn("sent", F.try_to_timestamp("said.sent"))
    )
    said = {
        name: F.col(f"said.{name}")
        for name in ("vehicle", "route", "direction", "lat", "lon", "terminus")
    }
    return parsed.select(
        *PLACE_IN_LOG,
        *(column.alias(name) for name, column in said.items()),
        "time",
        F.coalesce("said.accuracy", F.lit(0.0)).alias("accuracy_m"),
        F.round(F.col("said.speed") * 100).cast("long").alias("speed_cms"),
        F.round("said.odometer").cast("long").alias("odometer_m"),
        F.col("said.delay").alias("delay_s"),
        _lateness_ms(rules).alias("lateness_ms"),
        "content",
        _problem(rules).alias("problem"),
    )


def good_readings(readings: DataFrame) -> DataFrame:
    """PLACE_IN_LOG, READING, lateness_ms."""
    return readings.where("problem is null").select(*PLACE_IN_LOG, *READING, "lateness_ms")


def quarantine(readings: DataFrame) -> DataFrame:
    """PLACE_IN_LOG, problem, content: what could not be used, and why."""
    return readings.where("problem is not null").select(*PLACE_IN_LOG, "problem", "content")


def _lateness_ms(rules: Rules) -> Column:
    """From the measurement into the log. A vehicle whose clock is behind is late by that, too."""
    if not rules.played_back:
        return F.unix_millis("ingest_timestamp") - F.unix_millis("time")
    on_vehicle = F.unix_millis("sent") - F.unix_millis("time")
    on_the_way = F.unix_millis("ingest_timestamp") - F.unix_millis("timestamp")
    return on_vehicle + F.greatest(on_the_way, F.lit(0))


def _problem(rules: Rules) -> Column:
    """The first thing that is wrong, or null."""
    measured_by = F.col("sent" if rules.played_back else "timestamp")
    ahead_ms = F.unix_millis("time") - F.unix_millis(measured_by)
    checks: list[tuple[Column, Column | str]] = [
        (F.col("error").isNotNull(), F.concat(F.lit("source: "), F.col("error"))),
        (F.col("text").isNull(), "not text"),
        (F.col("said").isNull() | F.col("said.broken").isNotNull(), "not JSON of this shape"),
        *((F.col(f"said.{name}").isNull(), f"no {name}") for name in NEEDED),
        (F.col("time").isNull() | F.col("sent").isNull(), "time is no time"),
        (~(F.col("said.lat").between(-90, 90) & F.col("said.lon").between(-180, 180)),
         "impossible place"),
        (~F.col("said.speed").between(0, SPEED_MAX_MPS), "impossible speed"),
        (F.col("sent") < F.col("time"), "sent before it was measured"),
        (ahead_ms > int(rules.ahead_s * 1000), "clock ahead of its message"),
    ]  # fmt: skip
    first, *others = checks
    reasons = reduce(lambda so_far, check: so_far.when(check[0], check[1]), others, F.when(*first))
    return reasons


# Late readings, set apart by a rule of our own, so that Spark has none to drop.
#
# Spark drops a row at a stateful operator when it is older than the watermark, which is the newest
# time of *earlier batches* less a delay: which rows those are depends on where batches happened to
# end, differs between queries over the same stream, and is told as a count only. A history that is
# read at once has no such rows. Live and history could then not be held against each other.
#
# Here a reading is late if it took more than `lateness_s` from its measurement into the log. That
# is a property of the row: the same in every query, after every restart, live and in history.
#
# Spark's watermark stays behind that rule. Be r a reading that is not late, and q one that was read
# in an earlier batch. q was stored no later than r, as ingest times never go back in a log, and
# partitions are read at most `skew_s` apart. q was measured at most `ahead_s` after its message was
# made, and that was before it was stored; others are in quarantine. So
#
#     time(q) <= stored(q) + ahead_s <= stored(r) + skew_s + ahead_s
#             <= time(r) + lateness_s + skew_s + ahead_s = time(r) + watermark_s
#
# and Spark keeps r. Should a reader be further apart than that, Spark counts what it dropped, and
# the job says so (jobs/vehicles.py).


def late_readings(good: DataFrame, rules: Rules) -> DataFrame:
    """PLACE_IN_LOG, READING, lateness_ms of what live passes over; one row per message, so that a
    late reading that was sent twice is here twice."""
    return good.where(_is_late(rules)).select(*PLACE_IN_LOG, *READING, "lateness_ms")


def positions(good: DataFrame, rules: Rules, *, include_late: bool) -> DataFrame:
    """READING, each once, ready for windows and state: without late ones if they are not wanted.

    A stream must go without them, since its windows may be closed; history may have both.
    """
    wanted = good if include_late else good.where(~_is_late(rules))
    # All that was said is the key: of two different readings of one moment both stay.
    return (
        wanted.select(*READING)
        .withWatermark("time", f"{int(rules.watermark_s * 1000)} milliseconds")
        .dropDuplicates(list(READING))
    )


def _is_late(rules: Rules) -> Column:
    return F.col("lateness_ms") > int(rules.lateness_s * 1000)
