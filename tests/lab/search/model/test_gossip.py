"""The measurement, against the whole rule with all its fish."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.base.errors import InvariantViolated
from shoal_lab.experiments.search_model import gossip
from shoal_lab.experiments.search_model.circle import (
    Graph,
    build_graph,
    draw_circle,
    draw_locations,
)
from shoal_lab.experiments.search_model.gossip import MOST, Step, measure, steps_needed


def network(nodes: int, low: int, high: int) -> Graph:
    rng = np.random.default_rng(1)
    return build_graph(draw_circle(draw_locations(nodes, low, high, rng), rng), nodes)


def measure_slowly(graph: Graph, holder: int) -> list[float]:
    """What part of the nodes is within 5 % after each step, where everybody has fish."""
    count = graph.nodes
    sizes = np.random.default_rng(2).permutation(count).tolist()
    sizes[holder] = count  # the largest
    degree = graph.degree.tolist()
    true = [sum(d**power for d in degree) for power in range(3)]
    held = [[1.0, float(d), float(d * d), 1.0] for d in degree]
    within: list[float] = []
    while len(within) < 40 and (not within or within[-1] < MOST):
        pings: list[list[tuple[int, list[float]]]] = [[] for _ in range(count)]
        for node in range(count):
            part = [value / (degree[node] + 1) for value in held[node]]
            held[node] = part.copy()
            for slot in range(graph.first[node], graph.first[node + 1]):
                pings[graph.peer[slot]].append((sizes[node], part))
        for node, got in enumerate(pings):
            for fish, part in got:
                for column in range(3):
                    held[node][column] = held[node][column] + part[column]
                if fish > sizes[node]:
                    sizes[node], held[node][3] = fish, part[3]
                elif fish == sizes[node]:
                    held[node][3] += part[3]
        good = sum(
            all(abs(mine[c] / mine[3] / true[c] - 1) <= 0.05 for c in range(3)) for mine in held
        )
        within.append(good / count)
    return within


def test_it_is_push_sum_with_fish() -> None:
    graph = network(300, 2, 10)
    steps = measure(graph, np.ones(300, np.bool_), np.array([17], np.int32))
    slow = measure_slowly(graph, 17)
    assert len(slow) == len(steps)
    assert [step.within for step in steps] == pytest.approx(slow, abs=0.01)


@pytest.mark.parametrize(
    ("low", "high", "fewest", "most"), [(2, 10, 12, 14), (5, 5, 14, 16), (3, 3, 24, 26)]
)
def test_ten_thousand_nodes_know_their_number_soon(
    low: int, high: int, fewest: int, most: int
) -> None:
    graph = network(10_000, low, high)
    holders = np.array([1, 2, 3], np.int32)
    told: list[Step] = []
    steps = measure(graph, np.ones(10_000, np.bool_), holders, told.append)
    assert told == steps
    needed = [steps_needed(steps, holder) for holder in range(3)]
    assert all(fewest <= (one or 0) <= most for one in needed), needed
    assert steps_needed(steps[:3], 0) is None


def test_the_gone_do_not_count() -> None:
    rng = np.random.default_rng(1)
    graph = build_graph(draw_circle(np.full(100, 3, np.int32), rng), 200)
    holder = np.array([5], np.int32)
    assert steps_needed(measure(graph, np.arange(200) < 100, holder), 0)
    assert steps_needed(measure(graph, np.ones(200, np.bool_), holder), 0) is None


def test_mass_that_gets_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(100, 3, 3)
    leaky = graph._replace(first=np.append(graph.first[:-1], graph.first[-1] - 1))
    monkeypatch.setattr(gossip, "STEPS_MAX", 5)
    with pytest.raises(InvariantViolated, match="off"):
        measure(
            leaky._replace(peer=leaky.peer[:-1]), np.ones(100, np.bool_), np.array([5], np.int32)
        )
