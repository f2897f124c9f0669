"""Ways through an overlay beside the direct ones: how long these take, and how much is lost.

Nodes are where their region is, and the delay table of a run says how far regions are apart. In
some tables every node is a region of its own.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.pipeline.jobs.collected import STRETCH_MAX, STRETCH_STEPS
from shoal.pipeline.transforms.delays import TENTHS
from shoal.pipeline.transforms.summary import MS_US, group_key


def direct_means(nodes: DataFrame, delays: DataFrame) -> DataFrame:
    """The mean direct delay over all ordered pairs of distinct nodes: run, direct_ms. Null where a
    run has a single node."""
    counts = nodes.groupBy("run", F.col("region").alias("a")).agg(F.count("*").alias("n_a"))
    others = counts.select("run", F.col("a").alias("b"), F.col("n_a").alias("n_b"))
    itself = F.when(F.col("a") == F.col("b"), F.col("n_a")).otherwise(0)
    pairs = F.col("n_a") * F.col("n_b") - itself
    return (
        delays.join(F.broadcast(counts), on=["run", "a"])
        .join(F.broadcast(others), on=["run", "b"])
        .groupBy("run")
        .agg(
            (F.try_divide(F.sum(F.col("delay_us") * pairs), F.sum(pairs)) / MS_US).alias(
                "direct_ms"
            )
        )
    )


def count_stretches(
    deliveries: DataFrame, nodes: DataFrame, delays: DataFrame, points: DataFrame
) -> DataFrame:
    """Ordered pairs of nodes by their stretch, the mean delay of what one sent to the other over
    the direct delay: point, stretch_hundredths, n. Of deliveries that were due; pairs whose direct
    way takes no time are left out. `points` has run and point."""
    run, region = group_key(), F.xxhash64("region")
    # Names as numbers: millions of pairs are grouped, and looked up among as many delays.
    pairs = (
        deliveries.where("due")
        .select(run, "publisher", "node", region.alias("b"), "delay_tenths_ms")
        .join(F.broadcast(points.select(run, "point")), on="key")
        .groupBy("key", "point", "publisher", "node")
        .agg(F.max("b").alias("b"), F.avg("delay_tenths_ms").alias("tenths"))
    )
    publishers = nodes.select(run, F.col("node").alias("publisher"), region.alias("a"))
    ends = [F.xxhash64(end).alias(end) for end in ("a", "b")]
    ways = delays.where("delay_us > 0").select(run, *ends, "delay_us")
    ratio = F.col("tenths") * (MS_US / TENTHS) / F.col("delay_us")
    steps = F.round(ratio * STRETCH_STEPS).cast("long")
    most = F.lit(STRETCH_MAX * STRETCH_STEPS).cast("long")
    return (
        pairs.join(F.broadcast(publishers), on=["key", "publisher"])
        .join(ways, on=["key", "a", "b"])
        .groupBy("point", F.least(steps, most).alias("stretch_hundredths"))
        .agg(F.count("*").alias("n"))
    )
