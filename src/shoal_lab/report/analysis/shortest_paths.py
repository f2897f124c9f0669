"""How long messages should take: shortest paths over the overlay of each run.

A task has few runs, since all pairs of 2,048 nodes are four million numbers and a second's work;
one row per run comes out. `path_delays` is a plain function; `predict_delays` spreads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MS_US = 1000
SOURCES_AT_ONCE = 256
"""Rows of the distance matrix in memory: 4 MB a task for 2,048 nodes."""
TASKS_MAX = 64
"""A task costs a tenth of a second by itself: a thousand small runs are not worth so many."""

RESULT = "run string, nodes long, unreachable long, mean_ms double"


class PathDelays(NamedTuple):
    """Shortest paths from all that publish to all others."""

    nodes: int
    unreachable: int
    """Pairs without a path."""
    mean_ms: float | None
    """Over pairs that have one; a publisher of two messages counts twice."""


def path_delays(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    delay_us: npt.ArrayLike,
    sources: npt.ArrayLike,
    messages: npt.ArrayLike,
) -> PathDelays:
    """Of an overlay whose links lead from a to b; `messages` of each source are its weight."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    a, b, delay_us = (np.asarray(column, np.int64) for column in (a, b, delay_us))
    members = np.unique(np.concatenate([a, b]))
    known = np.isin(sources, members)
    sources, messages = np.asarray(sources)[known], np.asarray(messages)[known]
    ends = np.searchsorted(members, a), np.searchsorted(members, b)
    graph = csr_array((delay_us.astype(np.float64), ends), shape=(len(members), len(members)))
    total_us, pairs, unreachable = 0.0, 0, 0
    for begin in range(0, len(sources), SOURCES_AT_ONCE):
        part = slice(begin, begin + SOURCES_AT_ONCE)
        rows_us = dijkstra(graph, indices=np.searchsorted(members, sources[part]))
        found = np.isfinite(rows_us)
        total_us += float(messages[part] @ np.where(found, rows_us, 0.0).sum(axis=1))
        # A source reaches itself, in no time: that is no delivery.
        pairs += int(messages[part] @ (found.sum(axis=1) - 1))
        unreachable += int((~found).sum())
    return PathDelays(len(members), unreachable, total_us / pairs / MS_US if pairs else None)


def predict_delays(topologies: DataFrame, messages: DataFrame, runs: int) -> DataFrame:
    """Of each run that has both tables: run, nodes, unreachable, mean_ms."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

    # Streams share links: a link that two of them use is one way to go.
    links = topologies.groupBy("run", "a", "b").agg(F.min("delay_us").alias("delay_us"))
    overlays = links.groupBy("run").agg(
        F.sort_array(F.collect_list(F.struct("a", "b", "delay_us"))).alias("links")
    )
    published = messages.groupBy("run", "node").agg(F.count("*").alias("messages"))
    sources = published.groupBy("run").agg(
        F.sort_array(F.collect_list(F.struct("node", "messages"))).alias("sources")
    )
    rows = overlays.join(sources, on="run", how="inner").select(
        "run",
        *(F.col(f"links.{name}").alias(name) for name in ("a", "b", "delay_us")),
        F.col("sources.node").alias("sources"),
        F.col("sources.messages").alias("messages"),
    )
    return rows.repartition(max(1, min(runs, TASKS_MAX))).mapInArrow(_path_batches, RESULT)


def _path_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on executors: one row per run in, one row out."""
    import pyarrow as pa

    for batch in batches:
        rows = [_path_row(batch, number) for number in range(batch.num_rows)]
        columns: Sequence[Any] = list(zip(*rows, strict=True)) if rows else [()] * 4
        types = (pa.string(), pa.int64(), pa.int64(), pa.float64())
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)],
            names=["run", "nodes", "unreachable", "mean_ms"],
        )


def _path_row(batch: pa.RecordBatch, number: int) -> tuple[str, int, int, float | None]:
    # Arrays as they lie in memory: as Python numbers a thousand overlays would be a gigabyte.
    names = ("a", "b", "delay_us", "sources", "messages")
    columns = [batch.column(name)[number].values.to_numpy() for name in names]
    return (batch.column("run")[number].as_py(), *path_delays(*columns))
