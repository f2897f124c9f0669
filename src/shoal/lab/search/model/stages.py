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

from shoal.lab.search.model.cast import Links
from shoal.lab.search.model.circle import (
    Circle,
    Flags,
    check_circle,
    crash,
    draw_circle,
    draw_locations,
    leave,
)
from shoal.lab.search.model.graph import Graph, build_graph, largest_part, true_totals
from shoal.lab.search.model.options import ModelOptions
from shoal.lab.search.model.repair import repair
from shoal.protocols.search.messages import Totals
from shoal.sim.randomness import stable_seed

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
