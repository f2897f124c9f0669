"""Which bubbles met: every query with every piece of data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from shoal.lab.search.model.cast import Bubbles
from shoal.lab.search.model.circle import Flags


class Matched(NamedTuple):
    """How many pairs of bubbles have a living node in common."""

    pairs: int
    part: float
    error: float
    """Standard error of that part: pairs that share a bubble are not independent."""


def match(data: Bubbles, queries: Bubbles, living: Flags) -> Matched:
    """All pairs of a data and a query bubble."""
    # A product of counts: at how many nodes each pair met.
    met = ((_incidence(data, living) @ _incidence(queries, living).T) > 0).toarray()
    spread = sum(met.mean(axis=axis).var() / met.shape[1 - axis] for axis in (0, 1))
    return Matched(met.size, float(met.mean()), float(np.sqrt(spread)))


def _incidence(bubbles: Bubbles, living: Flags) -> csr_array:
    there = living[bubbles.node]
    at = bubbles.bubble[there], bubbles.node[there]
    shape = len(bubbles.hops), len(living)
    return csr_array((np.ones(len(at[0]), np.int32), at), shape=shape)
