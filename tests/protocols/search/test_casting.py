"""Dividing bubbles: slices fit together, whatever the graph looks like."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.protocols.search.bubbles.bubble_split import Candidate, Division, Part, divide, permuted

ME = NodeId(bytes(20))


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(20, "big"))


def candidates(*peers: int) -> list[Candidate]:
    """Edges 1, 2, ... to these; 0 is ourselves."""
    return [Candidate(number, node(peer)) for number, peer in enumerate(peers, 1)]


def test_the_worked_example() -> None:
    assert divide(9, 3, 6, 2, candidates(7, 8, 9, 9), ME) == Division(
        False, [Part(1, 4, 2, 4), Part(2, 4, 0, 1)]
    )


def test_the_first_gets_what_cannot_be_divided() -> None:
    assert divide(9, 0, 9, 3, candidates(4, 5, 6), ME).parts == [
        Part(1, 3, 0, 3),
        Part(2, 3, 0, 3),
        Part(3, 2, 0, 2),
    ]


@pytest.mark.parametrize(
    ("peers", "parts"),
    [
        ((0, 8, 9), [Part(2, 7, 0, 7)]),  # a self loop counts as one node
        ((8, 8, 9), [Part(1, 7, 0, 7)]),  # and so does a second edge to the same
        ((0, 0, 8, 9), [Part(3, 6, 0, 6)]),  # nobody else so far: the next one
        ((8,), [Part(1, 8, 0, 8)]),  # fewer edges than the split
        ((0, 0), []),
        ((), []),
        ((8, 9, 0, 8, 9, 7, 7), [Part(1, 4, 0, 4), Part(2, 4, 0, 4)]),
    ],
)
def test_redundant_edges(peers: tuple[int, ...], parts: list[Part]) -> None:
    assert divide(9, 0, 9, 2, candidates(*peers), ME) == Division(True, parts)


def test_a_bubble_that_ends_here() -> None:
    assert divide(1, 0, 1, 2, candidates(7, 8), ME).parts == []
    assert divide(2, 0, 1, 2, candidates(7, 8), ME).parts == []
    assert divide(2, 1, 2, 2, candidates(7, 8), ME) == Division(False, [Part(1, 1, 0, 1)])
    assert divide(2, 0, 2, 2, candidates(0, 8), ME).parts == []


@pytest.mark.parametrize("slice_", [(5, 2, 2), (5, 3, 2), (5, -1, 2), (5, 0, 6), (0, 0, 0)])
def test_a_slice_that_cannot_be_is_refused(slice_: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="0 <= start < end <= size"):
        divide(*slice_, 2, candidates(7), ME)
    with pytest.raises(UsageError, match="split of 1"):
        divide(5, 0, 5, 0, candidates(7), ME)


class Edge(NamedTuple):
    number: int
    peer: int


def test_the_order_depends_on_bubble_and_node_and_is_fair() -> None:
    edges = [Edge(number, number) for number in range(1, 7)]
    first = Counter(permuted(edges, bytes([a, b]), ME)[0] for a in range(50) for b in range(60))
    assert all(count == pytest.approx(500, rel=0.2) for count in first.values())
    assert len(first) == 6
    orders = {tuple(permuted(edges, b"one", node(number))) for number in range(100)}
    assert len(orders) > 80
    assert permuted(edges, b"one", ME) == permuted(edges[::-1], b"one", ME)


def test_an_edge_that_comes_or_goes_leaves_the_others_in_order() -> None:
    edges = [Edge(number, number) for number in range(1, 9)]
    whole = permuted(edges, b"bubble", ME)
    for gone in edges:
        left = [edge for edge in edges if edge != gone]
        assert permuted(left, b"bubble", ME) == [edge for edge in whole if edge != gone]


class Graph:
    """A random circle: each node has some locations, and an edge to both sides of each."""

    def __init__(self, nodes: int, rng: Random) -> None:
        circle = [number for number in range(nodes) for _ in range(rng.randint(2, 4))]
        rng.shuffle(circle)
        self.edges: list[list[Edge]] = [[] for _ in range(nodes)]
        self.peers: dict[tuple[int, int], int] = {}
        self.back: dict[tuple[int, int], int] = {}
        """By a node and the number of its edge: its number at the other end."""
        for one, other in zip(circle, [*circle[1:], circle[0]], strict=True):
            first, second = 2 * len(self.back), 2 * len(self.back) + 1
            self.edges[one].append(Edge(first, other))
            self.edges[other].append(Edge(second, one))
            self.back[one, first], self.peers[one, first] = second, other
            self.back[other, second], self.peers[other, second] = first, one

    def order(self, at: int, bubble: bytes) -> list[Candidate]:
        order = permuted(self.edges[at], bubble, node(at))
        return [Candidate(edge.number, node(edge.peer)) for edge in order]


class Walk:
    """One bubble in a graph: which node has which positions, by slices."""

    def __init__(self, graph: Graph, bubble: bytes, total: int, split: int) -> None:
        self.graph, self.total, self.split = graph, total, split
        self.orders = [graph.order(at, bubble) for at in range(len(graph.edges))]
        self.handled: list[tuple[int, int]] = []  # node and position
        self.asked: list[tuple[int, int]] = []

    def run(self, start: int, end: int) -> None:
        self._visit(0, -1, 0, (self.total, start, end))

    def _visit(self, at: int, came: int, offset: int, slice_: tuple[int, int, int]) -> None:
        size, start, end = slice_
        others = [one for one in self.orders[at] if one.edge != came]
        division = divide(*slice_, self.split, others, node(at))
        whole = divide(size, 0, size, self.split, others, node(at))
        local = size - sum(part.size for part in whole.parts)
        if division.here:
            self.asked.append((at, offset))
        self.handled += [(at, offset + here) for here in range(start, min(end, local))]
        begins = {}
        for part in whole.parts:
            begins[part.edge] = offset + local
            local += part.size
        for part in division.parts:
            there, back = self.graph.peers[at, part.edge], self.graph.back[at, part.edge]
            self._visit(there, back, begins[part.edge], (part.size, part.start, part.end))


@pytest.mark.parametrize("seed", range(30))
def test_slices_handle_every_position_exactly_once(seed: int) -> None:
    """3,000 bubbles on small graphs, where self loops and double edges are everywhere."""
    rng = Random(seed)
    for number in range(100):
        graph = Graph(rng.choice((1, 2, 3, 5, 10, 40)), rng)
        bubble, total, split = bytes([seed, number]), rng.randint(1, 40), rng.randint(1, 4)
        at_once = Walk(graph, bubble, total, split)
        at_once.run(0, total)
        assert sorted(position for _, position in at_once.handled) == list(range(total))
        cuts = sorted({0, total, *(rng.randint(0, total) for _ in range(rng.randint(0, 4)))})
        sliced = Walk(graph, bubble, total, split)
        for start, end in pairwise(cuts):
            before = len(sliced.handled)
            sliced.run(start, end)
            positions = sorted(position for _, position in sliced.handled[before:])
            assert positions == list(range(start, end)), (seed, number)
        assert sorted(sliced.handled) == sorted(at_once.handled)
        assert sorted(sliced.asked) == sorted(at_once.asked)
