"""Reconnecting: every kind of broken graph becomes one piece without breaking the degree bound."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import NodeId, node_id
from shoal.protocols.streams.topology.graph import Graph, reconnect


def node(number: int) -> NodeId:
    return node_id(number.to_bytes(20, "big"))


def graph_of(degree: int, node_count: int, links: list[tuple[int, int]]) -> Graph:
    graph = Graph(degree)
    for number in range(node_count):
        graph.add_node(node(number))
    for a, b in links:
        graph.link(node(a), node(b))
    graph.take_changes()
    return graph


def clique(first: int, size: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(first, first + size) for b in range(first, a)]


def component_count(graph: Graph) -> int:
    unseen = dict.fromkeys(graph.nodes)
    count = 0
    while unseen:
        count += 1
        stack = [unseen.popitem()[0]]
        while stack:
            for neighbour in graph.neighbours(stack.pop()):
                if neighbour in unseen:
                    del unseen[neighbour]
                    stack.append(neighbour)
    return count


def degrees(graph: Graph) -> list[int]:
    return [len(graph.neighbours(member)) for member in graph.nodes]


def test_a_connected_graph_is_left_alone() -> None:
    for size in range(5):
        graph = graph_of(4, size, clique(0, size))
        before = graph.version
        assert reconnect(graph, Random(1)) == 0
        assert graph.version == before


def test_two_full_components_take_one_switch() -> None:
    graph = graph_of(3, 8, clique(0, 4) + clique(4, 4))
    assert reconnect(graph, Random(1)) == 1
    changes = graph.take_changes()
    assert (len(changes.added), len(changes.removed)) == (2, 2)
    assert degrees(graph) == [3] * 8
    assert component_count(graph) == 1


def test_a_switch_at_a_bridge_keeps_both_of_its_sides() -> None:
    # Two five-node ends, each with one node that has a slot for the bridge, make a 3-regular
    # graph of ten nodes with a bridge; three such graphs, so that bridges are often hit.
    end = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    links = []
    for base in (0, 10, 20):
        links += [(base + a, base + b) for a, b in end]
        links += [(base + 5 + a, base + 5 + b) for a, b in end] + [(base, base + 5)]
    for seed in range(200):
        graph = graph_of(3, 30, links)
        assert reconnect(graph, Random(seed)) == 2
        assert degrees(graph) == [3] * 30
        assert component_count(graph) == 1


def test_isolated_nodes_are_linked_to_each_other() -> None:
    graph = graph_of(3, 1000, [])
    assert reconnect(graph, Random(1)) == 999
    graph.check_invariants()
    assert component_count(graph) == 1


def test_a_tree_goes_into_a_link_of_a_full_component() -> None:
    graph = graph_of(3, 7, [*clique(0, 4), (4, 5), (5, 6)])
    reconnect(graph, Random(1))
    graph.check_invariants()
    assert component_count(graph) == 1
    assert degrees(graph)[:4] == [3] * 4


@given(
    degree=st.integers(3, 5),
    node_count=st.integers(0, 40),
    wishes=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=90),
    seed=st.integers(0, 2**32),
)
def test_any_graph_becomes_one_piece_and_no_node_loses_a_link(
    degree: int, node_count: int, wishes: list[tuple[int, int]], seed: int
) -> None:
    graph = graph_of(degree, node_count, [])
    for a, b in ((node(x), node(y)) for x, y in wishes if x != y and max(x, y) < node_count):
        if not graph.linked(a, b) and graph.free_slots(a) and graph.free_slots(b):
            graph.link(a, b)
    before = degrees(graph)
    merged = component_count(graph) - 1
    assert reconnect(graph, Random(seed)) == max(merged, 0)
    graph.check_invariants()
    assert component_count(graph) <= 1
    assert all(new >= old for new, old in zip(degrees(graph), before, strict=True))


def test_the_link_cut_in_the_largest_component_is_uniform() -> None:
    # A 3-regular ring of six nodes takes in a clique of four.
    main = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (0, 3), (1, 4), (2, 5)]
    cut: Counter[bytes] = Counter()
    rng = Random(5)
    for _ in range(1800):
        graph = graph_of(3, 10, main + clique(6, 4))
        reconnect(graph, rng)
        cut.update(pair.a + pair.b for pair in graph.take_changes().removed if pair.b < node(6))
    # 200 in each cell, one standard deviation is 13.
    assert len(cut) == 9
    assert all(abs(count - 200) < 65 for count in cut.values())
