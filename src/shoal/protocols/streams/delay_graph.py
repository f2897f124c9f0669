"""Delays between all nodes of an overlay, by Dijkstra from every node.

Delays vary, and the fastest path is then another one for every message: in the mean it is faster
than the path that is fastest in the mean. So distances are taken several times, each time with
delays drawn around the measured means as widely as they were measured to vary, and averaged
(docs/decisions/0007). Draws are of one seed: the same measurements give the same estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.base.ids import NodeId
from shoal.protocols.streams.link_delay import LinkDelay
from shoal.protocols.streams.topology import Pair

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
