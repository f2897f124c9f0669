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
