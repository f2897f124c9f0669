"""What many overlays have in common: which pairs are linked how often, and how far it is."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows


def add_up_pairs(pairs: DataFrame) -> DataFrame:
    """Several runs as one, by the name of the first: run, a, b, count."""
    return pairs.groupBy("a", "b").agg(F.min("run").alias("run"), F.sum("count").alias("count"))


def summarise_pairs(pairs: DataFrame) -> DataFrame:
    """Of each run: run, nodes, pairs, total, squares, least, most: links of pairs, over all of its
    overlays. Whole numbers, so that the order of rows cannot matter."""
    return pairs.groupBy("run").agg(
        (F.max("b") + 1).alias("nodes"),
        F.count("*").alias("pairs"),
        F.sum("count").alias("total"),
        F.sum(F.col("count") * F.col("count")).alias("squares"),
        F.min("count").alias("least"),
        F.max("count").alias("most"),
    )


def square_pairs(pairs: DataFrame, side: int) -> DataFrame:
    """The matrix of pairs in squares of so many nodes a side: run, x, y, links, with x <= y since
    the first of a pair has the smaller number."""
    x, y = (F.floor(F.col(end) / side) for end in ("a", "b"))
    squares = pairs.groupBy("run", x.alias("x"), y.alias("y"))
    return squares.agg(F.sum("count").alias("links"))


def summarise_diameters(diameters: DataFrame) -> DataFrame:
    """Of each run, size and degree: run, nodes, degree, overlays, total, min, max."""
    return diameters.groupBy("run", "nodes", "degree").agg(
        F.count("*").alias("overlays"),
        F.sum("diameter").alias("total"),
        F.min("diameter").alias("min"),
        F.max("diameter").alias("max"),
    )
