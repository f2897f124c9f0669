"""A baseline for topologies that know delays: half of each node's links lead to its nearest nodes.

The literature's way to make a random regular overlay aware of its underlay ("d-regular TA" among
the published penalties): half of the d neighbours are near, the other half random, so that the
overlay stays in one piece and of small diameter. It is told all true delays, which no tracker
knows: for the lab only.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt

from shoal.base.ids import NodeId
from shoal.protocols.streams.topology.graph import Link, reconnect
from shoal.protocols.streams.topology.policy import LinkChanges
from shoal.protocols.streams.topology.random_policy import RandomPolicy

RoundTrips = Callable[[list[NodeId]], npt.NDArray[np.int64]]
"""The true round trips between all of these nodes."""


class NearHalfPolicy(RandomPolicy):
    """A random overlay, whose sweep draws near links into it.

    Who is to be near to whom: of all pairs the nearest first, a link for each if neither end has
    half its slots taken by such links. Among equals come those that are linked already, so that
    little changes when few nodes came or went, and then chance.

    A near link that is missing takes the places of two random ones: the other ends of those are
    linked instead. Every node keeps its number of links, and the random half stays random.
    """

    def __init__(self, degree: int, rng: Random, round_trips: RoundTrips) -> None:
        super().__init__(degree, rng)
        self._round_trips = round_trips

    def sweep(self) -> LinkChanges:
        """As before, with near links; free of cost if nothing changed since the last."""
        if self._graph.version != self._swept_version:
            self._on_hold = False
            self._fill()
            self._draw_near()
            reconnect(self._graph, self._rng)
            self._swept_version = self._graph.version
        return super().sweep()

    def _draw_near(self) -> None:
        graph = self._graph
        near = self._near_links()
        wanted = set(near)
        for a, b in near:
            if graph.linked(a, b):
                continue
            if graph.free_slots(a) and graph.free_slots(b):
                graph.link(a, b)
                continue
            spare_a, spare_b = self._spare(a, wanted), self._spare(b, wanted)
            for c, e in [(c, e) for c in spare_a for e in spare_b]:
                # c and e are not a and b, which are not linked; if they are one, it keeps its
                # links and these two go without.
                if c != e and not graph.linked(c, e):
                    graph.cut(a, c)
                    graph.cut(b, e)
                    graph.link(a, b)
                    graph.link(c, e)
                    break

    def _spare(self, node: NodeId, wanted: set[Link]) -> list[NodeId]:
        """Neighbours that are none of its near ones, in random order."""
        others = [
            end
            for end in self._graph.neighbours(node)
            if ((node, end) if node < end else (end, node)) not in wanted
        ]
        self._rng.shuffle(others)
        return others

    def _near_links(self) -> list[Link]:
        """The nearest first."""
        graph, nodes = self._graph, list(self._graph.nodes)
        at = {node: number for number, node in enumerate(nodes)}
        linked = np.zeros((len(nodes), len(nodes)), np.bool_)
        for a, b in graph.links:
            linked[at[a], at[b]] = linked[at[b], at[a]] = True
        low, high = np.triu_indices(len(nodes), 1)
        chance = np.random.default_rng(self._rng.getrandbits(64)).random(len(low))
        trips_ns = self._round_trips(nodes)[low, high]
        order = np.lexsort((chance, ~linked[low, high], trips_ns))
        room = [self.degree // 2] * len(nodes)
        left = sum(room)
        found = []
        for a, b in zip(low[order].tolist(), high[order].tolist(), strict=True):
            if room[a] and room[b]:
                room[a] -= 1
                room[b] -= 1
                left -= 2
                one, other = nodes[a], nodes[b]
                found.append((one, other) if one < other else (other, one))
                if left < 2:
                    break
        return found
