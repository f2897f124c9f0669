"""The circle of locations: drawn at random, cut by crashes, closed over those who leave."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from shoal.base.errors import InvariantViolated
from shoal.protocols.search.messages import Totals

NOBODY = -1

Numbers = npt.NDArray[np.int32]
"""Of nodes, locations or slots: four bytes, since a million nodes have twelve million slots."""
Flags = npt.NDArray[np.bool_]


class Circle(NamedTuple):
    """Locations by number, and their neighbours on the circle; NOBODY is a hole."""

    owner: Numbers
    """The node of each location."""
    master: Numbers
    slave: Numbers


def draw_locations(nodes: int, low: int, high: int, rng: np.random.Generator) -> Numbers:
    """How many locations each node has: low to high, all equally likely."""
    return rng.integers(low, high, nodes, dtype=np.int32, endpoint=True)


def draw_circle(locations: Numbers, rng: np.random.Generator) -> Circle:
    """One closed circle in random order: what joins by long random walks come to."""
    owner = np.repeat(np.arange(len(locations), dtype=np.int32), locations)
    order = rng.permutation(len(owner)).astype(np.int32)
    master, slave = np.empty_like(owner), np.empty_like(owner)
    slave[order] = np.roll(order, -1)
    master[order] = np.roll(order, 1)
    return Circle(owner, master, slave)


def crash(circle: Circle, living: Flags) -> Circle:
    """What is left when the silence of the dead was noticed.

    Holes stay holes, and a location with two of them is dismissed.
    """
    there = living[circle.owner]
    linked = np.append(there, False)  # NOBODY is the last one
    master = np.where(linked[circle.master], circle.master, NOBODY)
    slave = np.where(linked[circle.slave], circle.slave, NOBODY)
    return _linked_alone(Circle(circle.owner, master, slave), there)


def leave(circle: Circle, living: Flags) -> Circle:
    """What is left when nodes took their leave."""
    return merge(circle, living[circle.owner])


def merge(circle: Circle, kept: Flags) -> Circle:
    """Without the other locations: the two edges of each become one, or a hole where one was."""
    gone = np.append(~kept, False)
    slave = np.append(circle.slave, NOBODY)
    # Over a run of them by doubling: each passes on what it points to.
    while (over := gone[slave]).any():
        slave = np.where(over, slave[slave], slave)
    slave = slave[:-1]
    master = np.full_like(circle.master, NOBODY)
    linked = np.flatnonzero(kept & (slave != NOBODY))
    master[slave[linked]] = linked
    return _linked_alone(Circle(circle.owner, master, slave), kept)


def lone_circle(node: int, locations: int) -> Circle:
    """What a first node has: one circle of its own locations."""
    here = np.arange(locations, dtype=np.int32)
    return Circle(np.full_like(here, node), np.roll(here, 1), np.roll(here, -1))


def check_circle(circle: Circle) -> None:
    """InvariantViolated unless masters and slaves know each other."""
    numbers = np.arange(len(circle.owner))
    for ours, theirs, name in (
        (circle.slave, circle.master, "slave"),
        (circle.master, circle.slave, "master"),
    ):
        linked = ours != NOBODY
        wrong = numbers[linked][theirs[ours[linked]] != numbers[linked]]
        if len(wrong):
            raise InvariantViolated(
                f"{len(wrong)} locations, {wrong[0]} among them, are unknown to their {name}"
            )


def _linked_alone(circle: Circle, kept: Flags) -> Circle:
    """These locations but for those without any edge, numbered from 0 again."""
    kept = kept & ((circle.master != NOBODY) | (circle.slave != NOBODY))
    numbers = np.full(len(kept) + 1, NOBODY, np.int32)
    numbers[:-1][kept] = np.arange(kept.sum(), dtype=np.int32)
    return Circle(circle.owner[kept], numbers[circle.master[kept]], numbers[circle.slave[kept]])


# The edges of a circle, as nodes see them; and what is measured of them.


class Graph(NamedTuple):
    """A multigraph. The slots of a node, one for each end of an edge, are numbered in a row."""

    first: npt.NDArray[np.int64]
    """The first slot of each node; one more at the end."""
    peer: Numbers
    """The node at the other end of each slot's edge."""
    back: Numbers
    """The slot there."""

    @property
    def nodes(self) -> int:
        """All numbers that there are, also of nodes without an edge."""
        return len(self.first) - 1

    @property
    def degree(self) -> Numbers:
        """Edges of each node; a self loop counts twice."""
        return np.diff(self.first).astype(np.int32)


def build_graph(circle: Circle, nodes: int) -> Graph:
    """The edges of a circle: from each location to its slave."""
    masters = np.flatnonzero(circle.slave != NOBODY)
    ends = np.concatenate([circle.owner[masters], circle.owner[circle.slave[masters]]])
    edges = len(masters)
    order = np.argsort(ends, kind="stable").astype(np.int32)
    slot = np.empty_like(order)
    slot[order] = np.arange(2 * edges, dtype=np.int32)
    other = np.where(order < edges, order + edges, order - edges)
    first = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(ends, minlength=nodes), out=first[1:])
    return Graph(first, ends[other], slot[other])


def components(circle: Circle, nodes: int) -> Numbers:
    """A number for each node: that of the part of the network that it is in."""
    masters = np.flatnonzero(circle.slave != NOBODY)
    a, b = circle.owner[masters], circle.owner[circle.slave[masters]]
    links = coo_array((np.ones(len(masters), np.int8), (a, b)), shape=(nodes, nodes))
    labels: Numbers = connected_components(links, directed=False)[1]
    return labels


def largest_part(circle: Circle, living: Flags) -> float:
    """What part of the living is in the largest component."""
    sizes = np.bincount(components(circle, len(living))[living])
    return float(sizes.max() / living.sum())


def true_totals(graph: Graph, living: Flags) -> Totals:
    """D0, D1 and D2: what the living would measure."""
    degree = graph.degree[living].astype(np.int64)
    return Totals(float(len(degree)), float(degree.sum()), float((degree**2).sum()))
