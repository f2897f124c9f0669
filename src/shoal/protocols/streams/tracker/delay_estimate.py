"""What a tracker can tell of a stream at any time: its overlay, and the delays to expect.

A message takes the fastest of all paths, since every node floods at once. So the delay between
two nodes is their distance in the overlay, each link weighted with half its round trip
(section IV-C of the paper), and with the time that the node behind it takes to check the message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.base.ids import NodeId
from shoal.protocols.streams.topology.policy import Pair
from shoal.protocols.streams.tracker.stream_record import LinkDelay


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
    nodes: Sequence[NodeId],
    links: Sequence[Pair],
    delays: Mapping[Pair, LinkDelay],
    handling_us: Mapping[NodeId, int] | None = None,
) -> Estimate:
    """Dijkstra from every node over the links that somebody measured."""
    # SciPy takes longer to load than a whole node, and few are asked for this.

    measured = [pair for pair in links if pair in delays]
    graph = DelayGraph(nodes, measured, delays, handling_us or {})
    total_ms, pairs, low_ms, high_ms = 0.0, 0, math.inf, 0.0
    per_node: dict[str, float | None] = {}
    for node, reached in zip(nodes, graph.delays_from_each(), strict=True):
        per_node["0x" + node.hex()] = float(reached.mean()) if reached.size else None
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


# Delays between all nodes of an overlay, by Dijkstra from every node.
#
# Delays vary, and the fastest path is then another one for every message: in the mean it is faster
# than the path that is fastest in the mean. So distances are taken several times, each time with
# delays drawn around the measured means as widely as they were measured to vary, and averaged
# (docs/decisions/0007). Draws are of one seed: the same measurements give the same estimate.


BLOCK_SOURCES = 256  # rows of the distance matrix held at once: memory stays linear
DRAWS_MAX = 16  # beyond it, what is left is the error of the measurements
DRAWS_MIN = 4
PAIRS_MAX = 1 << 24  # in all draws: a few seconds of one core; more nodes even out fewer draws
LEAST_MS = 0.0005  # a weight of zero would mean no link: half of the clock's grain

Floats = NDArray[np.float64]


class DelayGraph:
    """Both ways of every link, and how long a message takes there."""

    def __init__(
        self,
        nodes: Sequence[NodeId],
        measured: Sequence[Pair],
        delays: Mapping[Pair, LinkDelay],
        handling_us: Mapping[NodeId, int],
    ) -> None:
        index = {node: at for at, node in enumerate(nodes)}
        ends = [(index[pair.a], index[pair.b]) for pair in measured]
        self._size = len(nodes)
        self._from = np.array([a for a, _ in ends] + [b for _, b in ends], np.int32)
        self._to = np.array([b for _, b in ends] + [a for a, _ in ends], np.int32)
        handling_ms = np.array([handling_us.get(node, 0) / 1000 for node in nodes], np.float64)
        link_ms = np.array([delays[pair].one_way_ms for pair in measured] * 2, np.float64)
        self._mean_ms: Floats = link_ms + handling_ms[self._to]
        self._deviation_ms: Floats = np.array(
            [delays[pair].deviation_ms for pair in measured] * 2, np.float64
        )
        self._rng = np.random.default_rng(0)
        fitting = PAIRS_MAX // max(1, self._size**2)
        self._draws = min(DRAWS_MAX, max(DRAWS_MIN, fitting)) if self._deviation_ms.any() else 1

    def delays_from_each(self) -> Iterator[Floats]:
        """For each node in turn, the delays in ms to the other nodes that it reaches."""
        for start in range(0, self._size, BLOCK_SOURCES):
            sources = list(range(start, min(start + BLOCK_SOURCES, self._size)))
            distances = self._distances(sources)
            distances[np.arange(len(sources)), sources] = np.inf  # its way to itself is none
            for row in distances:
                yield row[np.isfinite(row)]

    def _distances(self, sources: Sequence[int]) -> Floats:
        """Mean over all draws, from some nodes to all."""
        total = np.zeros((len(sources), self._size))
        for _ in range(self._draws):
            total += dijkstra(self._drawn(), directed=True, indices=sources)
        mean: Floats = total / self._draws
        return mean

    def _drawn(self) -> csr_array:
        weights = self._mean_ms
        if self._draws > 1:
            # Delay has a floor and a tail. Which tail matters little, how wide it is does.
            off = self._rng.exponential(1.0, len(weights)) - 1.0
            weights = weights + self._deviation_ms * off
        weights = np.maximum(weights, LEAST_MS)
        return csr_array((weights, (self._from, self._to)), shape=(self._size, self._size))
