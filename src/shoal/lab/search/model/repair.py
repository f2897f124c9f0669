"""How a network fills up again after a crash.

All who miss two edges or more send a SplitEdge for each two, and who has two too many, since holes
were filled meanwhile, merges a location. A walk ends in its own component, at nodes in proportion
to their degree. Who has fewer than `rejoin_below` edges does not walk from there, but asks hosts
that it knows of, living ones at random, another one for each location.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.lab.search.model.circle import (
    NOBODY,
    Circle,
    Flags,
    Numbers,
    lone_circle,
    merge,
)
from shoal.lab.search.model.graph import components

ROUNDS_MAX = 64  # of walks; the last few nodes find an edge long before
TOLERANCE = 2  # a degree may be off by one: so many edges are a location's


class Repaired(NamedTuple):
    """What came of it."""

    circle: Circle
    rounds: int
    """Of walks, one for each missing pair of edges, until nobody missed two."""
    splits: int


def repair(
    circle: Circle, wanted: Numbers, living: Flags, rejoin_below: int, rng: np.random.Generator
) -> Repaired:
    """Until no living node is two or more off the degree that it wants."""
    if not len(circle.owner):  # nobody knows anybody: one of them begins anew
        founder = int(np.flatnonzero(living)[0])
        circle = lone_circle(founder, max(1, int(wanted[founder]) // 2))
    splits = 0
    for rounds in range(ROUNDS_MAX):
        degree = degrees(circle, len(living))
        excess = np.where(living, degree - wanted, 0)
        short = np.flatnonzero(excess <= -TOLERANCE).astype(np.int32)
        many = excess >= TOLERANCE
        if not len(short) and not many.any():
            return Repaired(circle, rounds, splits)
        if len(short):
            lost = -excess[short] // 2
            joiners = np.repeat(short, lost)
            starts = _starts(joiners, degree, living, rejoin_below, rng)
            found = _walk(circle, starts, len(living), rng)
            # An edge is split once at a time: others walk on, to be there in the next round.
            places, chosen = np.unique(found, return_index=True)
            circle = _split(circle, places, joiners[chosen])
            splits += len(places)
        if many.any():
            circle = _shed(circle, many)
    return Repaired(circle, ROUNDS_MAX, splits)


def degrees(circle: Circle, nodes: int) -> Numbers:
    """Edges of each node."""
    ends = (circle.master != NOBODY).astype(np.int8) + (circle.slave != NOBODY)
    return np.bincount(circle.owner, ends, nodes).astype(np.int32)


def _starts(
    joiners: Numbers, degree: Numbers, living: Flags, rejoin_below: int, rng: np.random.Generator
) -> Numbers:
    """From where the walks of these nodes begin; each may be another host's."""
    hosts = np.flatnonzero(living & (degree > 0)).astype(np.int32)
    asked = hosts[rng.integers(len(hosts), size=len(joiners))]
    return np.where(degree[joiners] < max(1, rejoin_below), asked, joiners)


def _walk(circle: Circle, starts: Numbers, nodes: int, rng: np.random.Generator) -> Numbers:
    """A location for each walk: a random one of a node found in proportion to its degree."""
    label = components(circle, nodes)
    masters = np.flatnonzero(circle.slave != NOBODY)
    part = label[circle.owner[masters]]
    order = np.argsort(part, kind="stable")
    counts = np.bincount(part, minlength=int(label.max()) + 1)
    first = np.cumsum(counts) - counts
    inside = label[starts]
    drawn = masters[order[first[inside] + (rng.random(len(starts)) * counts[inside]).astype(int)]]
    end = np.where(rng.random(len(starts)) < 0.5, drawn, circle.slave[drawn])
    node = circle.owner[end]
    by_node = np.argsort(circle.owner, kind="stable").astype(np.int32)
    held = np.bincount(circle.owner, minlength=nodes)
    begin = np.cumsum(held) - held
    found: Numbers = by_node[begin[node] + (rng.random(len(node)) * held[node]).astype(int)]
    return found


def _split(circle: Circle, places: Numbers, joiners: Numbers) -> Circle:
    """A new location for each joiner, between a location and its slave or the hole there."""
    new = np.arange(len(joiners), dtype=np.int32) + np.int32(len(circle.owner))
    after = circle.slave[places]
    owner = np.concatenate([circle.owner, joiners])
    master = np.concatenate([circle.master, places])
    slave = np.concatenate([circle.slave, after])
    slave[places] = new
    linked = after != NOBODY
    master[after[linked]] = new[linked]
    return Circle(owner, master, slave)


def _shed(circle: Circle, many: Flags) -> Circle:
    """These nodes merge a location each, one with a hole if they can."""
    held = np.flatnonzero(many[circle.owner])
    whole = (circle.master[held] != NOBODY) & (circle.slave[held] != NOBODY)
    held = held[np.lexsort((whole, circle.owner[held]))]
    _, chosen = np.unique(circle.owner[held], return_index=True)
    kept = np.ones(len(circle.owner), np.bool_)
    kept[held[chosen]] = False
    return merge(circle, kept)
