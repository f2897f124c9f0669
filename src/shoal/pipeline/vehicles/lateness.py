"""Late readings, set apart by a rule of our own, so that Spark has none to drop.

Spark drops a row at a stateful operator when it is older than the watermark, which is the newest
time of *earlier batches* less a delay: which rows those are depends on where batches happened to
end, differs between queries over the same stream, and is told as a count only. A history that is
read at once has no such rows. Live and history could then not be held against each other.

Here a reading is late if it took more than `lateness_s` from its measurement into the log. That is
a property of the row: the same in every query, after every restart, live and in history.

Spark's watermark stays behind that rule. Be r a reading that is not late, and q one that was read
in an earlier batch. q was stored no later than r, as ingest times never go back in a log, and
partitions are read at most `skew_s` apart. q was measured at most `ahead_s` after its message was
made, and that was before it was stored; others are in quarantine. So

    time(q) <= stored(q) + ahead_s <= stored(r) + skew_s + ahead_s
            <= time(r) + lateness_s + skew_s + ahead_s = time(r) + watermark_s

and Spark keeps r. Should a reader be further apart than that, Spark counts what it dropped, and the
job says so (jobs/vehicles.py).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.pipeline.vehicles.clean import PLACE_IN_LOG, READING
from shoal.pipeline.vehicles.rules import Rules


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
