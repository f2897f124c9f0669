"""How long deliveries took: exact percentiles by counting.

Delays are whole tenths of a millisecond, so a run of millions of deliveries has a few thousand
different ones. Counting them is one pass with a small hash table, whatever the layout of the
files; everything else follows from the counts. Sorting, which Spark's own `percentile` does,
takes several times as long on whole numbers and up to thirty times on fractions.

A percentile is interpolated between the two nearest deliveries, as numpy does and Spark's and
DuckDB's continuous ones do: of n deliveries in order, that of p lies at p * (n - 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

TENTHS = 10
PERCENTILES = (0.5, 0.95, 0.99)
BY_RUN = ("run",)


def count_delays(deliveries: DataFrame, by: Sequence[str] = BY_RUN) -> DataFrame:
    """Deliveries of each delay: by, delay_tenths_ms, due, n, hops_sum, hops_max, duplicates."""
    # Both in one number: a third key makes Spark's hash table half as fast again.
    delay_and_due = F.shiftleft("delay_tenths_ms", 1).bitwiseOR(F.col("due").cast("long"))
    counted = deliveries.groupBy(*by, delay_and_due.alias("delay_and_due")).agg(
        F.count("*").alias("n"),
        F.sum("hops").alias("hops_sum"),
        F.max("hops").alias("hops_max"),
        F.sum("duplicates").alias("duplicates"),
    )
    return counted.select(
        *by,
        F.shiftright("delay_and_due", 1).alias("delay_tenths_ms"),
        (F.col("delay_and_due").bitwiseAND(1) == 1).alias("due"),
        "n",
        "hops_sum",
        "hops_max",
        "duplicates",
    )


def summarise_delays(
    counts: DataFrame, by: Sequence[str] = BY_RUN, percentiles: Sequence[float] = PERCENTILES
) -> DataFrame:
    """What counts come to: by, delivered, besides, duplicates, mean_ms, min_ms, max_ms, one
    column per percentile, hops_mean, hops_max.

    Delays and hops are of deliveries that were due, and null if there are none; `besides` counts
    those that were not, and `duplicates` is of all. All of it in one go: counts that are used
    twice are counted twice, since Spark leaves out of each what that use does not need.
    """
    group = Window.partitionBy(*by)
    up_to_here = group.orderBy("delay_tenths_ms").rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    due = F.when(F.col("due"), F.col("n")).otherwise(0)
    ranked = counts.select(
        "*",
        due.alias("n_due"),
        F.sum(due).over(up_to_here).alias("through"),
        F.sum(due).over(group).alias("total"),
    )
    delay = F.when(F.col("due"), F.col("delay_tenths_ms"))
    total = F.when(F.max("total") > 0, F.max("total"))
    return ranked.groupBy(*by).agg(
        F.max("total").alias("delivered"),
        F.sum(F.col("n") - F.col("n_due")).alias("besides"),
        F.sum("duplicates").alias("duplicates"),
        (F.sum(delay * F.col("n")) / total / TENTHS).alias("mean_ms"),
        (F.min(delay) / TENTHS).alias("min_ms"),
        (F.max(delay) / TENTHS).alias("max_ms"),
        *(_percentile(share).alias(percentile_name(share)) for share in percentiles),
        (F.sum(F.when(F.col("due"), F.col("hops_sum"))) / total).alias("hops_mean"),
        F.max(F.when(F.col("due"), F.col("hops_max"))).alias("hops_max"),
    )


def distribute_delays(counts: DataFrame, by: Sequence[str] = BY_RUN) -> DataFrame:
    """The cumulative distribution of the deliveries that were due: by, delay_ms, n, share, where
    share is the part that took so long or less."""
    group = Window.partitionBy(*by)
    due = counts.where("due")
    return due.select(
        *by,
        (F.col("delay_tenths_ms") / TENTHS).alias("delay_ms"),
        "n",
        (F.sum("n").over(group.orderBy("delay_tenths_ms")) / F.sum("n").over(group)).alias("share"),
    )


def percentile_name(share: float) -> str:
    """0.5 is p50_ms, 0.999 is p99_9_ms."""
    return f"p{share * 100:g}_ms".replace(".", "_")


def _percentile(share: float) -> Column:
    """Over the rows of one group that know how many deliveries there are, and how many up to
    each of them."""
    place = F.lit(share) * (F.col("total") - 1)

    def delay_at(index: Column) -> Column:
        return F.min(F.when(F.col("through") > index, F.col("delay_tenths_ms")))

    below, above = delay_at(F.floor(place)), delay_at(F.ceil(place))
    part = F.max(place - F.floor(place))
    return (below + (above - below) * part) / TENTHS


# One row per run: what was published, what came, how soon, how often, at what cost.


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


# What the repeats of one setting have in common: deliveries of several runs, taken together.
#
# A point is a number that stands for all runs with the same settings (see jobs/points.py). Counts
# of runs add up to those of their point, so that deliveries are read once for both.


CURVE_STEPS = 200
"""Points of a curve: more than anybody can tell apart on a page."""


def merge_counts(counts: DataFrame, points: DataFrame) -> DataFrame:
    """Counts by `key`, a run's, as counts by point. `points` has key and point."""
    return (
        counts.join(F.broadcast(points), on="key", how="inner")
        .groupBy("point", "delay_tenths_ms", "due")
        .agg(
            F.sum("n").alias("n"),
            F.sum("hops_sum").alias("hops_sum"),
            F.max("hops_max").alias("hops_max"),
            F.sum("duplicates").alias("duplicates"),
        )
    )


def thin_distribution(distribution: DataFrame, steps: int = CURVE_STEPS) -> DataFrame:
    """A distribution by point, with no more than so many of its rows, each of them exact: of all
    delays within one step of share the longest, and the shortest of all."""
    step = F.ceil(F.col("share") * steps)
    last = distribution.groupBy("point", step.alias("step")).agg(
        F.max("delay_ms").alias("delay_ms"), F.max("share").alias("share")
    )
    first = distribution.groupBy("point").agg(
        F.lit(0).cast("long").alias("step"),
        F.min("delay_ms").alias("delay_ms"),
        F.min("share").alias("share"),
    )
    return last.unionByName(first).select("point", "delay_ms", "share").distinct()
