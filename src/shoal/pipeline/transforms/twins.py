"""Two runs that differ only in what they ran on, the simulator or sockets: what is the same?

`twins` says which runs belong together: run, twin (a number that both have), on.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.pipeline.transforms.delays import TENTHS

SIDES = ("simulator", "sockets")


def compare_nodes(deliveries: DataFrame, twins: DataFrame) -> DataFrame:
    """The mean delay of all that each node got and that was due: twin, node, simulator_ms,
    sockets_ms. Null where it got nothing."""
    means = [
        (F.avg(_of(side, F.col("delay_tenths_ms"))) / TENTHS).alias(f"{side}_ms") for side in SIDES
    ]
    return _paired(deliveries.where("due"), twins).groupBy("twin", "node").agg(*means)


def compare_hops(deliveries: DataFrame, twins: DataFrame) -> DataFrame:
    """Deliveries that were due, by the links that they took: twin, hops, simulator, sockets."""
    counts = [F.count(_of(side, F.lit(1))).alias(side) for side in SIDES]
    return _paired(deliveries.where("due"), twins).groupBy("twin", "hops").agg(*counts)


def compare_links(topologies: DataFrame, twins: DataFrame) -> DataFrame:
    """Links that carry data at the end, each way by itself: twin, both, simulator, sockets, where
    the last two are those that only one of them has."""
    there = [F.max(F.col("on") == side).alias(side) for side in SIDES]
    links = _paired(topologies, twins).groupBy("twin", "stream", "a", "b").agg(*there)
    simulator, sockets = F.col("simulator"), F.col("sockets")
    return links.groupBy("twin").agg(
        F.count_if(simulator & sockets).alias("both"),
        F.count_if(simulator & ~sockets).alias("simulator"),
        F.count_if(~simulator & sockets).alias("sockets"),
    )


def _paired(rows: DataFrame, twins: DataFrame) -> DataFrame:
    return rows.join(F.broadcast(twins), on="run", how="inner")


def _of(side: str, value: Column) -> Column:
    return F.when(F.col("on") == side, value)
