"""The states of a network before and after something happens to it.

Of a crash: "unnoticed", while sends to the dead vanish; "rerouted", when failed sends go to spare
edges at once; "noticed", when neighbours know who is gone; "repaired", when all have found new
neighbours and measured anew. Until then bubbles have the sizes of before. Of a leave there is
"left" alone: the circle closes as they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from shoal.protocols.search.messages import Totals
from shoal.sim.simulation import stable_seed
from shoal_lab.experiments.search_model.cast import Links
from shoal_lab.experiments.search_model.circle import (
    NOBODY,
    Circle,
    Flags,
    Graph,
    Numbers,
    build_graph,
    check_circle,
    components,
    crash,
    draw_circle,
    draw_locations,
    largest_part,
    leave,
    lone_circle,
    merge,
    true_totals,
)
from shoal_lab.experiments.search_model.options import ModelOptions

STAGES: Mapping[str, tuple[str, ...]] = {
    "none": ("before",),
    "crash": ("before", "unnoticed", "rerouted", "noticed", "repaired"),
    "leave": ("before", "left"),
}
SETTLED = ("before", "repaired", "left")
"""Stages in which sizes are those of the network as it is, and data is published anew."""


class Stage(NamedTuple):
    """A state of the network, and what its nodes believe of it."""

    name: str
    links: Links
    living: Flags
    totals: Totals
    """As its nodes know them."""
    edges: int
    """Of the living, with each other."""
    largest_part: float
    repair_rounds: int = 0
    splits: int = 0


def stage_random(seed: int, *names: object) -> np.random.Generator:
    """A generator for one part of a study."""
    return np.random.default_rng(stable_seed(seed, "search-model", *names))


def make_stages(nodes: int, options: ModelOptions, seed: int) -> Iterator[Stage]:
    """One after the other; InvariantViolated if a circle is not sound."""
    locations = draw_locations(nodes, *options.location_range(), stage_random(seed, "locations"))
    circle = draw_circle(locations, stage_random(seed, "circle"))
    everybody = np.ones(nodes, np.bool_)
    graph = build_graph(circle, nodes)
    before = _settled("before", circle, graph, everybody)
    yield before
    event = options.happening()
    if event.kind == "none":
        return
    living = everybody.copy()
    gone = min(nodes - 1, round(event.part * nodes))
    living[stage_random(seed, "gone").permutation(nodes)[:gone]] = False
    if event.kind == "leave":
        left = leave(circle, living)
        yield _settled("left", left, build_graph(left, nodes), living)
        return
    cut = crash(circle, living)
    check_circle(cut)
    known = build_graph(cut, nodes)
    outage = before._replace(
        living=living, edges=len(known.peer) // 2, largest_part=largest_part(cut, living)
    )
    yield outage._replace(name="unnoticed", links=Links(graph, living))
    yield outage._replace(name="rerouted", links=Links(graph, living, reroutes=True))
    yield outage._replace(name="noticed", links=Links(known))
    repaired = repair(
        cut, 2 * locations, living, options.rejoin_below, stage_random(seed, "repair")
    )
    whole = build_graph(repaired.circle, nodes)
    yield _settled("repaired", repaired.circle, whole, living)._replace(
        repair_rounds=repaired.rounds, splits=repaired.splits
    )


def _settled(name: str, circle: Circle, graph: Graph, living: Flags) -> Stage:
    check_circle(circle)
    edges, part = len(graph.peer) // 2, largest_part(circle, living)
    return Stage(name, Links(graph), living, true_totals(graph, living), edges, part)


# How a network fills up again after a crash.
#
# All who miss two edges or more send a SplitEdge for each two, and who has two too many, since
# holes were filled meanwhile, merges a location. A walk ends in its own component, at nodes in
# proportion to their degree. Who has fewer than `rejoin_below` edges does not walk from there, but
# asks hosts that it knows of, living ones at random, another one for each location.


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
