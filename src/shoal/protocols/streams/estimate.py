"""What a tracker can tell of a stream at any time: its overlay, and the delays to expect.

A message takes the fastest of all paths, since every node floods at once. So the delay between
two nodes is their distance in the overlay, each link weighted with half its round trip
(section IV-C of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.base.ids import NodeId
from shoal.protocols.streams.topology import Pair

BLOCK_SOURCES = 256  # rows of the distance matrix held at once: memory stays linear


class Estimate(msgspec.Struct, frozen=True):
    """Delays over all ordered pairs of distinct nodes, in milliseconds."""

    nodes: int
    links: int
    measured_links: int
    """Links without a measurement yet take no part."""
    reachable_pairs: int
    min_ms: float | None
    mean_ms: float | None
    max_ms: float | None
    per_node_ms: dict[str, float | None]
    """For each node, the mean delay from it to all others."""


def estimate_delays(
    nodes: Sequence[NodeId], links: Sequence[Pair], rtts_us: Mapping[Pair, int]
) -> Estimate:
    """Dijkstra from every node over the links that somebody measured."""
    index = {node: at for at, node in enumerate(nodes)}
    measured = [pair for pair in links if pair in rtts_us]
    graph = _graph(index, measured, rtts_us)
    total_ms, pairs, low_ms, high_ms = 0.0, 0, np.inf, 0.0
    per_node: dict[str, float | None] = {}
    for start in range(0, len(nodes), BLOCK_SOURCES):
        sources = list(range(start, min(start + BLOCK_SOURCES, len(nodes))))
        distances = dijkstra(graph, directed=False, indices=sources)
        distances[np.arange(len(sources)), sources] = np.inf  # a node's way to itself is none
        for row, source in zip(distances, sources, strict=True):
            reached = row[np.isfinite(row)]
            per_node["0x" + nodes[source].hex()] = float(reached.mean()) if reached.size else None
            if reached.size:
                total_ms += float(reached.sum())
                pairs += int(reached.size)
                low_ms, high_ms = min(low_ms, reached.min()), max(high_ms, reached.max())
    return Estimate(
        nodes=len(nodes),
        links=len(links),
        measured_links=len(measured),
        reachable_pairs=pairs,
        min_ms=float(low_ms) if pairs else None,
        mean_ms=total_ms / pairs if pairs else None,
        max_ms=float(high_ms) if pairs else None,
        per_node_ms=per_node,
    )


def _graph(
    index: Mapping[NodeId, int], measured: Sequence[Pair], rtts_us: Mapping[Pair, int]
) -> csr_array:
    size = len(index)
    # A weight of zero would mean no link: a round trip below the clock's grain is the grain.
    weights: NDArray[np.float64] = np.array(
        [max(rtts_us[pair], 1) / 2000 for pair in measured], dtype=np.float64
    )
    rows = np.array([index[pair.a] for pair in measured], dtype=np.int32)
    columns = np.array([index[pair.b] for pair in measured], dtype=np.int32)
    return csr_array((weights, (rows, columns)), shape=(size, size))
