"""The edges of a circle, as nodes see them; and what is measured of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from shoal.lab.search.model.circle import NOBODY, Circle, Flags, Numbers
from shoal.protocols.search.messages import Totals


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
