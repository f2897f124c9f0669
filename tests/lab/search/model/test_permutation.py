"""The order in which a bubble sees a node's edges."""

from __future__ import annotations

import numpy as np

from shoal_lab.experiments.search_model.cast import permuted
from shoal_lab.experiments.search_model.circle import Graph, build_graph, draw_circle


def network(nodes: int = 50, locations: int = 3) -> Graph:
    rng = np.random.default_rng(1)
    return build_graph(draw_circle(np.full(nodes, locations, np.int32), rng), nodes)


def test_all_edges_but_the_one_it_came_on_in_an_order_of_its_own() -> None:
    graph = network()
    node = np.array([7, 7, 7, 9], np.int32)
    came = np.array([-1, -1, graph.first[7] + 2, -1], np.int32)
    numbers = np.array([1, 2, 1, 1], np.uint64)
    found = permuted(graph, numbers, node, came)
    assert found.there.tolist() == [6, 6, 5, 6]
    mine = [int(graph.first[7]) + at for at in range(6)]
    rows = [found.slots[row, : found.there[row]].tolist() for row in range(4)]
    assert sorted(rows[0]) == sorted(rows[1]) == mine
    assert rows[0] != rows[1]
    assert rows[2] == [slot for slot in rows[0] if slot != mine[2]], "the same order, one less"
    assert sorted(rows[3]) == [int(graph.first[9]) + at for at in range(6)]


def test_every_pair_of_edges_is_as_likely_to_be_first() -> None:
    graph, count = network(), 30_000
    node, nowhere = np.full(count, 7, np.int32), np.full(count, -1, np.int32)
    slots = permuted(graph, np.arange(count, dtype=np.uint64), node, nowhere).slots
    first, second = slots[:, 0] - graph.first[7], slots[:, 1] - graph.first[7]
    pairs = np.bincount(first * 6 + second, minlength=36).reshape(6, 6)
    assert not np.diag(pairs).any()
    pairs = pairs[~np.eye(6, dtype=np.bool_)]
    chi_square = ((pairs - count / 30) ** 2 / (count / 30)).sum()
    assert chi_square < 58  # with 29 degrees of freedom, once in a thousand more
