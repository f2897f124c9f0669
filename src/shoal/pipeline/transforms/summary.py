"""One row per run: what was published, what came, how soon, how often, at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.pipeline.transforms.delays import (
    BY_RUN,
    PERCENTILES,
    count_delays,
    summarise_delays,
)

MS_US = 1000
COUNTED = ("delay_tenths_ms", "due", "hops", "duplicates")


def count_messages(messages: DataFrame, by: Sequence[str] = BY_RUN) -> DataFrame:
    """What was published: by, messages, expected, returned (copies that came back)."""
    return messages.groupBy(*by).agg(
        F.count("*").alias("messages"),
        F.sum("expected").alias("expected"),
        F.sum("duplicates").alias("returned"),
    )


def unicast_mean(delays: DataFrame) -> DataFrame:
    """The mean of each run's delay table, a region with itself included: run, unicast_ms."""
    return delays.groupBy("run").agg((F.avg("delay_us") / MS_US).alias("unicast_ms"))


def add_penalty(summary: DataFrame, delays: DataFrame) -> DataFrame:
    """The relative delay penalty: mean delay through the overlay over that of sending directly.
    Adds unicast_ms and rdp; both are null where a run has no delay table, rdp if it is all zero."""
    direct = F.when(F.col("unicast_ms") > 0, F.col("unicast_ms"))
    return summary.join(F.broadcast(unicast_mean(delays)), on="run", how="left").withColumn(
        "rdp", F.col("mean_ms") / direct
    )


def summarise_runs(
    deliveries: DataFrame,
    messages: DataFrame,
    by: Sequence[str] = BY_RUN,
    percentiles: Sequence[float] = PERCENTILES,
) -> DataFrame:
    """Everything that can be said of a run, or of another group that both tables know.

    A run that published and had nothing delivered is there too: coverage 0, delays null. Coverage
    is null where nothing was expected.
    """
    return summarise_counted(count_by_key(deliveries, by), messages, by, percentiles)


def group_key(by: Sequence[str] = BY_RUN) -> Column:
    """A number that stands for the names of a group: Spark groups by it in half the time. Two of
    a million groups share a number with a probability of one in forty million."""
    return F.xxhash64(*by).alias("key")


def count_by_key(deliveries: DataFrame, by: Sequence[str] = BY_RUN) -> DataFrame:
    """Deliveries of each delay, with `key` for the group: see count_delays."""
    return count_delays(deliveries.select(group_key(by), *COUNTED), ["key"])


def summarise_counted(
    counts: DataFrame,
    messages: DataFrame,
    by: Sequence[str] = BY_RUN,
    percentiles: Sequence[float] = PERCENTILES,
) -> DataFrame:
    """What summarise_runs gives, from counts by key that may serve others too."""
    delays = summarise_delays(counts, ["key"], percentiles)
    # The names come back with the few rows of the published side.
    published = count_messages(messages, by).withColumn("key", group_key(by))
    joined = published.join(delays, on="key", how="left")
    delivered, besides = F.coalesce("delivered", F.lit(0)), F.coalesce("besides", F.lit(0))
    expected = F.when(F.col("expected") > 0, F.col("expected"))
    copies = F.coalesce("duplicates", F.lit(0)) + F.col("returned")
    counted = ("key", "delivered", "besides", "duplicates")
    return joined.select(
        *by,
        "messages",
        "expected",
        delivered.alias("delivered"),
        besides.alias("delivered_besides"),
        (delivered / expected).alias("coverage"),
        (copies / (delivered + besides + F.col("messages"))).alias("duplicates_per_message"),
        *(name for name in delays.columns if name not in counted),
    )
