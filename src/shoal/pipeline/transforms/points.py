"""What the repeats of one setting have in common: deliveries of several runs, taken together.

A point is a number that stands for all runs with the same settings (see jobs/points.py). Counts
of runs add up to those of their point, so that deliveries are read once for both.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

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
