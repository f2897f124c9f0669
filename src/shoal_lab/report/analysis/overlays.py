"""What runs say of their overlays alone: pairs that were linked, and diameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_lab.report.analysis.report_data import Diameter, PairMatrix
from shoal_lab.runs.run_frames import FoundRun, Runs

CELLS_MAX = 125
"""Squares a side of the matrix in a picture: each is then three points wide on a page."""


def collect_matrices(runs: Runs, numbers: Mapping[str, int]) -> dict[int, PairMatrix]:
    """By point, over the overlays of all of its runs."""

    members: dict[int, list[FoundRun]] = {}
    for run in runs.runs:
        if "pairs" in run.files:
            members.setdefault(numbers[run.run], []).append(run)
    found: dict[int, PairMatrix] = {}
    for point, repeats in members.items():
        pairs = Runs(runs.session, repeats, ()).table("pairs")
        (summary,) = summarise_pairs(add_up_pairs(pairs)).collect()
        side = math.ceil(summary["nodes"] / CELLS_MAX)
        squares = [
            (row["x"], row["y"], row["links"]) for row in square_pairs(pairs, side).collect()
        ]
        figures = [run.info["result"]["figures"] for run in repeats]
        found[point] = pair_matrix(summary.asDict(), squares, side, figures)
    return found


def pair_matrix(
    summary: Mapping[str, Any],
    squares: Sequence[tuple[int, int, int]],
    side: int,
    figures: Sequence[Mapping[str, Any]],
) -> PairMatrix:
    """Probabilities from counts over all repeats. How many overlays were counted is said by the
    figures of each alone, and so is its test for blocks."""
    nodes, pairs = summary["nodes"], summary["pairs"]
    overlays = sum(int(told["overlays"]) for told in figures)
    tests = [p for told in figures if (p := told.get("block_p_value")) is not None]
    mean = summary["total"] / pairs / overlays
    variance = summary["squares"] / pairs / overlays**2 - mean**2
    return PairMatrix(
        nodes=nodes,
        degree=int(figures[0]["degree"]),
        overlays=overlays,
        pairs=pairs,
        mean=mean,
        deviation=math.sqrt(max(0.0, variance)),
        least=summary["least"] / overlays,
        most=summary["most"] / overlays,
        block_p_value=combine_p_values(tests),
        cells=_cells(nodes, overlays, squares, side),
    )


def combine_p_values(p_values: Sequence[float]) -> float | None:
    """Fisher's method: the chance that independent tests come out at least so unlikely, taken
    together. Of one test it is its own; None if there is none."""
    # It takes half a second to load, and most reports have no pairs.
    from scipy.special import chdtrc

    if not p_values:
        return None
    surprise = -2 * math.fsum(math.log(p) if p else -math.inf for p in p_values)
    return float(chdtrc(2 * len(p_values), surprise))


def _cells(
    nodes: int, overlays: int, squares: Sequence[tuple[int, int, int]], side: int
) -> tuple[tuple[float, ...], ...]:
    """The whole matrix, both halves, as mean probabilities; a node is never linked to itself."""
    count = math.ceil(nodes / side)
    times = np.zeros((count, count))
    for x, y, n in squares:
        times[x, y] += n
        # On the diagonal a square holds each of its pairs twice, elsewhere once.
        times[y, x] += n
    widths = np.minimum(side, nodes - side * np.arange(count))
    places = np.outer(widths, widths) - np.diag(widths)
    shares = np.divide(times, places * overlays, out=np.zeros_like(times), where=places > 0)
    return tuple(tuple(map(float, row)) for row in shares)


def collect_diameters(runs: Runs, numbers: Mapping[str, int]) -> dict[int, tuple[Diameter, ...]]:
    """By point, over all of its runs."""

    if not any("diameters" in run.files for run in runs.runs):
        return {}
    merged: dict[tuple[int, int, int], list[int]] = {}
    for row in summarise_diameters(runs.table("diameters")).collect():
        key = numbers[row["run"]], row["nodes"], row["degree"]
        n, total, least, most = merged.get(key, [0, 0, row["min"], row["max"]])
        merged[key] = [
            n + row["overlays"], total + row["total"], min(least, row["min"]),
            max(most, row["max"]),
        ]  # fmt: skip
    found: dict[int, tuple[Diameter, ...]] = {}
    for (point, nodes, degree), (n, total, least, most) in sorted(merged.items()):
        diameter = Diameter(
            nodes=nodes, degree=degree, overlays=n, min=least, mean=total / n, max=most
        )
        found[point] = (*found.get(point, ()), diameter)
    return found


# What many overlays have in common: which pairs are linked how often, and how far it is.


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
