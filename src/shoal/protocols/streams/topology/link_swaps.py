"""Better links: exchanges that make flooding faster from any publisher to everybody.

The aim is the mean delay between two members over the overlay. It is looked at from a few members
drawn at random: the shortest paths from each are a tree, which is the way that its messages take.
In that tree a link is worth what the members behind it would lose without it, and a link that is
not there would be worth what the members behind its end would gain. Both are known for all links
and thousands of candidates at once, at the price of one shortest path search for each tree.

An exchange takes two links a-b and c-e and makes a-c and b-e of them, so that everybody keeps its
degree. Those that gain most are done, as long as they do not touch each other; what they were
thought to gain is uncertain, and the next round, from other members, sees what came of it. What is
gained is underestimated, for only the members behind the new link are counted, and what is lost is
nearly always overestimated, for each of those behind the old one may have a way of its own. (It is
too low where the next best way to its end comes from far behind that end: in one case of 16,000.)
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.protocols.streams.topology.delay_reports import Floats, Slots

HOP_MS = 0.1  # what a member takes to pass a message on, where nobody has told
CUT_OFF_MS = 300.0  # what being cut off in a tree counts as: there is another way, somewhere

Expect = Callable[[Slots, Slots], Floats]
Flags = NDArray[np.bool_]


class Swap(msgspec.Struct, frozen=True):
    """Cut a-b and c-e, link a-c and b-e."""

    a: int
    b: int
    c: int
    e: int
    gain_ms: float
    """By how much the mean delay is expected to fall."""


class Worth:
    """What links are worth in the shortest path trees of some members."""

    def __init__(
        self, size: int, a: Slots, b: Slots, sources: Slots, expect: Expect, keep: Flags
    ) -> None:
        """Links a-b among members 0 to size - 1; those to keep are worth more than anything."""
        self._expect = expect
        self._from = np.concatenate((a, b))
        self.to = np.concatenate((b, a))
        one_way = expect(a, b) + HOP_MS
        weights = np.concatenate((one_way, one_way))
        graph = csr_array((weights, (self._from, self.to)), shape=(size, size))
        self.ms, parents = dijkstra(graph, indices=sources, return_predecessors=True)
        np.nan_to_num(self.ms, copy=False, posinf=CUT_OFF_MS)
        self._behind = _behind(self.ms, parents)
        losses = self._losses(parents, weights)
        losses = losses[: len(a)] + losses[len(a) :]
        losses[keep] = np.inf
        self.losses: Floats = np.concatenate((losses, losses))
        self._by_member(size)

    def gains(self, a: Slots, b: Slots) -> Floats:
        """What new links would bring, in milliseconds over all trees and members."""
        one_way = self._expect(a, b) + HOP_MS
        ahead = self.ms[:, b] - self.ms[:, a]
        there = np.maximum(ahead - one_way, 0.0) * self._behind[:, b]
        back = np.maximum(-ahead - one_way, 0.0) * self._behind[:, a]
        gains: Floats = (there + back).sum(axis=0)
        return gains

    def cheapest(self, members: Slots, rank: int) -> Slots:
        """For each member its link of the least worth, or the next: as a place in `to`."""
        degrees = self._starts[members + 1] - self._starts[members]
        at = self._starts[members] + np.minimum(rank, degrees - 1)
        found: Slots = self._order[at]
        return found

    def _losses(self, parents: Slots, weights: Floats) -> Floats:
        """What each link, in each direction, saves the members behind its end."""
        feeds = parents[:, self.to] == self._from
        fed = parents[:, self._from] == self.to
        others = self.ms[:, self._from] + weights
        others[feeds | fed] = np.inf  # neither the way that is lost, nor through those it feeds
        order = np.argsort(self.to, kind="stable")
        to = self.to[order]
        starts = np.flatnonzero(np.concatenate(([True], to[1:] != to[:-1])))
        next_best = np.full(self.ms.shape, np.inf)
        next_best[:, to[starts]] = np.minimum.reduceat(others[:, order], starts, axis=1)
        lost = np.minimum(next_best - self.ms, CUT_OFF_MS) * self._behind
        losses: Floats = np.where(feeds, lost[:, self.to], 0.0).sum(axis=0)
        return losses

    def _by_member(self, size: int) -> None:
        self._order = np.lexsort((self.losses, self._from))
        counts = np.bincount(self._from, minlength=size)
        self._starts = np.concatenate(([0], np.cumsum(counts)))


def best_swaps(worth: Worth, a: Slots, c: Slots, ranks: int, most: int) -> list[Swap]:
    """For each pair of members that could be linked, the best exchange that links them, among
    those of the links of either that are worth least, so many ranks of them; of the exchanges that
    gain something, so many that gain most, best first."""
    pairs = worth.ms.size
    gained = worth.gains(a, c)
    best = np.full(len(a), 0.0)
    best_b, best_e = np.zeros_like(a), np.zeros_like(c)
    for rank_a in range(ranks):
        for rank_c in range(ranks):
            link_a, link_c = worth.cheapest(a, rank_a), worth.cheapest(c, rank_c)
            b, e = worth.to[link_a], worth.to[link_c]
            score = gained - worth.losses[link_a] - worth.losses[link_c]
            fits = np.flatnonzero((score > -np.inf) & (b != e) & (b != c) & (e != a) & (a != c))
            score[fits] += worth.gains(b[fits], e[fits])
            better = np.zeros(len(a), bool)
            better[fits] = score[fits] > best[fits]
            best = np.where(better, score, best)
            best_b, best_e = np.where(better, b, best_b), np.where(better, e, best_e)
    order = np.argsort(-best, kind="stable")
    order = order[best[order] > 0][:most]
    return [
        Swap(int(a[i]), int(best_b[i]), int(c[i]), int(best_e[i]), float(best[i]) / pairs)
        for i in order
    ]


def _behind(ms: Floats, parents: Slots) -> Floats:
    """How many members get a tree's messages through each, itself included."""
    trees, size = ms.shape
    rows = np.arange(trees)
    order = np.argsort(ms, axis=1).T
    parents = np.where(parents < 0, size, parents)  # of nobody: a column that is dropped
    behind = np.ones((trees, size + 1))
    for member in order[:0:-1]:  # from the last to be reached to the first
        behind[rows, parents[rows, member]] += behind[rows, member]
    return behind[:, :size]
