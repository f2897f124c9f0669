"""A policy that learns delays, driven by hand: no tracker, no nodes, time in rounds.

Members come one after the other, tell the delays of their links and of those they were asked to
probe, each as `word` has it, and the policy improves when it says that it wants to.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
from numpy.typing import NDArray

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.protocols.streams.topology.aware_policy import ROUND_NS, AwarePolicy
from shoal.protocols.streams.topology.link_swaps import HOP_MS
from shoal.protocols.streams.topology.policy import Improvement
from shoal.sim.delays import load_table
from tests.support.streams import node

Matrix = NDArray[np.float64]
Word = Callable[[int, int], float]


def over_aws(count: int) -> Matrix:
    """One-way delays in milliseconds between so many nodes, spread over the regions in turn."""
    table = np.array(load_table("aws").delays_ns) / 1e6
    at = np.arange(count) % len(table)
    delays = (table + table.T)[np.ix_(at, at)] / 2
    np.fill_diagonal(delays, 0)
    return delays


def shortest_ms(delays: Matrix, links: list[tuple[int, int]]) -> Matrix:
    """Delays over an overlay, for all pairs; infinite between its parts. Floyd and Warshall: slow,
    and nothing that the code under test could have in common with it."""
    ms = np.full(delays.shape, np.inf)
    np.fill_diagonal(ms, 0)
    for a, b in links:
        ms[a, b] = ms[b, a] = delays[a, b] + HOP_MS
    for via in range(len(ms)):
        np.minimum(ms, ms[:, via, None] + ms[via], out=ms)
    return ms


class Learning:
    """So many members as there are delays, 20 ms apart."""

    def __init__(self, delays: Matrix, seed: int, word: Word | None = None) -> None:
        self.delays = delays
        self.policy = AwarePolicy(4, Random(seed))
        self.nodes = [node(number) for number in range(len(delays))]
        self.rounds: list[Improvement] = []
        self.now_s = 0.0
        self._word: Word = word or (lambda a, b: float(delays[a, b]))
        self._number = {member: number for number, member in enumerate(self.nodes)}
        self._told: set[tuple[NodeId, NodeId]] = set()
        self._coming = list(self.nodes)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            arrived = round(self.now_s / 0.02) + 1 - (len(self.nodes) - len(self._coming))
            for member in self._coming[: max(0, arrived)]:
                self.policy.join(member)
            self._coming = self._coming[max(0, arrived) :]
            self._tell_links()
            improved = self.policy.improve(lambda member: True, round((self.now_s + 1) * S_NS))
            self.rounds.append(improved)
            for asked, others in improved.probes:
                for other in others:
                    self._tell(asked, other)
            self.now_s += (self.policy.pause_ns or ROUND_NS) / S_NS

    def links(self) -> list[tuple[int, int]]:
        """By number, the smaller one first."""
        number, policy = self._number, self.policy
        pairs = [(number[a], number[b]) for a in policy.nodes for b in policy.neighbours(a)]
        return sorted((a, b) for a, b in pairs if a < b)

    def stretch(self) -> float:
        """The mean delay over the overlay, by that of the direct ways."""
        return float(shortest_ms(self.delays, self.links()).sum() / self.delays.sum())

    def _tell_links(self) -> None:
        links = {(a, b) for a in self.policy.nodes for b in self.policy.neighbours(a)}
        for a, b in sorted(links - self._told):
            self._tell(a, b)
        self._told = links

    def _tell(self, a: NodeId, b: NodeId) -> None:
        ms = self._word(self._number[a], self._number[b])
        self.policy.delay_learned(a, b, round(ms * 2e6))
