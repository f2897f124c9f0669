"""What runs say of their overlays alone: pairs that were linked, and diameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.pipeline.jobs.collected import Diameter, PairMatrix
from shoal.pipeline.reading import FoundRun, Runs

CELLS_MAX = 125
"""Squares a side of the matrix in a picture: each is then three points wide on a page."""


def collect_matrices(runs: Runs, numbers: Mapping[str, int]) -> dict[int, PairMatrix]:
    """By point. Of several repeats the first: each is a thousand overlays by itself."""
    from shoal.pipeline.transforms.topology import square_pairs, summarise_pairs

    chosen: dict[int, FoundRun] = {}
    for run in runs.runs:
        if "pairs" in run.files:
            chosen.setdefault(numbers[run.run], run)
    found: dict[int, PairMatrix] = {}
    for point, run in chosen.items():
        pairs = Runs(runs.session, [run], ()).table("pairs")
        (summary,) = summarise_pairs(pairs).collect()
        side = math.ceil(summary["nodes"] / CELLS_MAX)
        squares = [
            (row["x"], row["y"], row["links"]) for row in square_pairs(pairs, side).collect()
        ]
        figures = run.info.get("result", {}).get("figures", {})
        found[point] = pair_matrix(summary.asDict(), squares, side, figures)
    return found


def pair_matrix(
    summary: Mapping[str, Any],
    squares: Sequence[tuple[int, int, int]],
    side: int,
    figures: Mapping[str, Any],
) -> PairMatrix:
    """Probabilities from counts. How many overlays were counted is said by the run's figures
    alone, and so is its test for blocks."""
    nodes, pairs, overlays = summary["nodes"], summary["pairs"], int(figures["overlays"])
    mean = summary["total"] / pairs / overlays
    variance = summary["squares"] / pairs / overlays**2 - mean**2
    return PairMatrix(
        nodes=nodes,
        degree=int(figures["degree"]),
        overlays=overlays,
        pairs=pairs,
        mean=mean,
        deviation=math.sqrt(max(0.0, variance)),
        least=summary["least"] / overlays,
        most=summary["most"] / overlays,
        block_p_value=figures.get("block_p_value"),
        cells=_cells(nodes, overlays, squares, side),
    )


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
    from shoal.pipeline.transforms.topology import summarise_diameters

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
