"""In which order nodes consider their edges: another one for each bubble, the same each time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.lab.search.model.circle import Numbers
from shoal.lab.search.model.graph import Graph

DEGREE_MAX = 255

_GOLDEN, _MIX, _MIX_2 = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_INDEX = np.uint32(DEGREE_MAX)
_LAST = np.uint32(0xFFFFFFFF)


class Candidates(NamedTuple):
    """The edges that each of some messages may go on by."""

    slots: npt.NDArray[np.int64]
    """A row for each message, in its order; beyond its candidates there is nothing of meaning."""
    there: npt.NDArray[np.int64]
    """How many there are."""

    def at(self, rows: npt.NDArray[np.int64]) -> Candidates:
        """Of these messages alone."""
        return Candidates(self.slots[rows], self.there[rows])


def permuted(
    graph: Graph, number: npt.NDArray[np.uint64], node: Numbers, came: Numbers
) -> Candidates:
    """All edges but the one that the message came on (a slot, or -1), by bubble number and node."""
    first = graph.first[node]
    degree = graph.first[node + 1] - first
    columns = np.arange(max(2, int(degree.max(initial=0))), dtype=np.uint64)
    base = _mixed(_mixed(number) + node.astype(np.uint64))
    hashed = base[:, None] + columns * _GOLDEN
    hashed ^= hashed >> np.uint64(32)
    hashed *= _MIX
    # Sorted keys that end in the number of their edge: several times faster than an argsort.
    keys = (hashed >> np.uint64(32)).astype(np.uint32) & ~_INDEX | columns.astype(np.uint32)
    keys[columns >= degree.astype(np.uint64)[:, None]] = _LAST
    rows = np.flatnonzero(came >= 0)
    keys[rows, came[rows] - first[rows]] = _LAST
    keys.sort(axis=1)
    slots = first[:, None] + (keys & _INDEX)
    return Candidates(np.minimum(slots, len(graph.peer) - 1), degree - (came >= 0))


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Splitmix64: every bit of the result depends on every bit."""
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
