"""How many nodes there are, and whether too many of them lie around one place.

Places are hashes, so the k nearest nodes of any place need about the same room. Lookups of random
places measure it. Where they need much less, somebody has tried many keys to get near: then values
go, and are looked for, beside that place as well, where the attacker is not.
"""

from __future__ import annotations

from collections import deque
from random import Random
from statistics import median

from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.ids import SPACE, DhtId, id_of_node, sibling
from shoal.protocols.dht.table import RoutingTable

GROWN = 2.0  # chance does that to one of a few hundred nodes


class Density:
    """The size of the network, as the last lookups of random places saw it."""

    def __init__(self, table: RoutingTable, config: DhtConfig) -> None:
        self._table = table
        self._config = config
        self._samples: deque[float] = deque(maxlen=config.density_samples)

    @property
    def nodes(self) -> float | None:
        """About how many nodes there are; None as long as we know fewer than k. The median: nobody
        can crowd half of a few random places."""
        return median(self._samples) if self._samples else self._around_us()

    @property
    def outgrown(self) -> bool:
        """Whether our own neighbours, whom we know at any time, are much nearer than what was
        measured has it: the network has grown since, or somebody crowds us."""
        around = self._around_us()
        return around is not None and (not self._samples or around > GROWN * median(self._samples))

    def forget(self) -> None:
        """What was measured is out of date."""
        self._samples.clear()

    def measured(self, distances: list[int]) -> None:
        """How far the nearest nodes of a random place are, nearest first."""
        nodes = self._estimate(distances)
        if nodes is not None:
            self._samples.append(nodes)

    def crowded(self, distances: list[int]) -> bool:
        """Whether the nearest nodes of a place are nearer than chance would have them."""
        nodes, k = self.nodes, self._config.k
        if nodes is None or len(distances) < k:
            return False
        return nodes * distances[k - 1] / SPACE < self._config.crowded_part * k

    def beside(self, target: DhtId, rng: Random) -> list[DhtId]:
        """Places in the two neighbouring parts of the space: the inner one has half to all of k
        nodes, the outer one twice as many. Drawn anew each time, so that nobody waits there."""
        nodes, k = self.nodes or 1.0, self._config.k
        depth = max(1, int(nodes / k).bit_length() - 1)
        return [sibling(target, depth, rng), sibling(target, depth - 1, rng)]

    def _around_us(self) -> float | None:
        near = self._table.closest(self._table.id, self._config.k)
        return self._estimate([id_of_node(one.node) ^ self._table.id for one in near])

    def _estimate(self, distances: list[int]) -> float | None:
        k = self._config.k
        if len(distances) < k or not distances[k - 1]:
            return None
        return (k - 1) * SPACE / distances[k - 1]  # without bias
