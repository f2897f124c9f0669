"""Bubbles, against the same rules written for one message at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shoal.base.ids import NodeId, node_id
from shoal.protocols.search.bubbles.bubble_split import Candidate, divide
from shoal.protocols.search.bubbles.seen_bubbles import COLLISIONS_MAX
from shoal_lab.experiments.search_model import cast as module
from shoal_lab.experiments.search_model.cast import Links, Wave, cast, halve, permuted
from shoal_lab.experiments.search_model.circle import (
    Graph,
    build_graph,
    draw_circle,
    draw_locations,
)


def network(nodes: int, low: int = 2, high: int = 10, seed: int = 1) -> Graph:
    rng = np.random.default_rng(seed)
    return build_graph(draw_circle(draw_locations(nodes, low, high, rng), rng), nodes)


def named(node: int) -> NodeId:
    return node_id(int(node).to_bytes(20, "big"))


def cast_slowly(graph: Graph, origin: int, size: int, number: int) -> Counter[int]:
    """Arrivals at each node, by the protocol's own code for one message, where everybody lives."""
    arrivals: Counter[int] = Counter()
    wave = [(origin, -1, size)]
    while wave:
        # In the order in which the model takes them, since it matters who is there first.
        sent: tuple[list[tuple[int, int]], ...] = ([], [], [], [])
        for node, came, left in wave:
            row = permuted(
                graph,
                np.array([number], np.uint64),
                np.array([node], np.int32),
                np.array([came], np.int32),
            )
            slots = row.slots[0, : row.there[0]].tolist()
            turn = arrivals[node]
            arrivals[node] += 1
            if turn == 0:
                edges = [Candidate(slot, named(graph.peer[slot])) for slot in slots]
                for part in divide(left, 0, left, 2, edges, named(node)).parts:
                    column = slots.index(part.edge)
                    sent[1 + column if column < 2 else 0].append((part.edge, part.size))
            elif turn <= COLLISIONS_MAX and slots:
                spares = slots[2:] or slots
                begin = slots.index(spares[(turn - 1) % len(spares)])
                ways = [*slots[begin:], *slots[:begin]]
                sent[3].extend([(slot, left) for slot in ways if graph.peer[slot] != node][:1])
        wave = [
            (int(graph.peer[slot]), int(graph.back[slot]), size)
            for some in sent
            for slot, size in some
        ]
    return arrivals


@pytest.mark.parametrize(("nodes", "size"), [(2000, 60), (60, 30), (10, 50), (2, 9), (500, 1)])
def test_it_is_the_algorithm_for_one_message_at_a_time(nodes: int, size: int) -> None:
    graph = network(nodes)
    origins = np.arange(10, dtype=np.int32) % nodes
    bubbles = cast(Links(graph), origins, size, 99)
    slow = [cast_slowly(graph, int(origins[at]), size, 99 + at) for at in range(10)]
    for at, arrivals in enumerate(slow):
        assert sorted(bubbles.node[bubbles.bubble == at].tolist()) == sorted(arrivals)
        assert len(arrivals) <= size
    messages = sum(arrivals.total() - 1 for arrivals in slow)
    assert bubbles.messages == bubbles.load.sum() == messages
    assert bubbles.collisions == messages + 10 - sum(map(len, slow))
    assert (bubbles.collisions > 0) == (size > 1)


def test_a_size_is_split_in_halves_and_the_first_gets_the_odd_one() -> None:
    graph = network(3000, 5, 5)
    count = 200
    wave = Wave(
        np.arange(count, dtype=np.int32),
        np.arange(count, dtype=np.int32),
        np.full(count, -1, np.int32),
        np.where(np.arange(count) % 2, 9, 10),
    )
    sent = halve(Links(graph), wave, np.arange(count, dtype=np.uint64))
    for bubble in range(count):
        sizes = sent.size[sent.bubble == bubble].tolist()
        if len(sizes) == 2:
            assert sizes == ([4, 4] if bubble % 2 else [5, 4])
    assert len(sent.node) > 1.9 * count
    owner = np.repeat(np.arange(3000), graph.degree)
    assert (owner[sent.came] == sent.node).all(), "it arrives on a slot of its receiver"
    assert (graph.peer[sent.came] == sent.bubble).all(), "whose edge leads back to the sender"


def test_self_loops_and_double_edges_count_here() -> None:
    # One node on its own: whatever it chooses is itself.
    alone = network(1, 3, 3)
    bubbles = cast(Links(alone), np.zeros(1, np.int32), 10, 1)
    assert (len(bubbles.node), bubbles.messages) == (1, 0)
    # Two nodes, and edges that mostly lead to the sender: a large bubble finds its way.
    pair = network(2, 4, 4)
    assert (pair.peer[: pair.first[1]] == 0).any()
    bubbles = cast(Links(pair), np.zeros(100, np.int32), 9, 1)
    assert (np.bincount(bubbles.bubble) == 2).all()


def test_a_bubble_larger_than_the_network_ends() -> None:
    graph = network(30)
    bubbles = cast(Links(graph), np.arange(30, dtype=np.int32), 300, 1)
    assert np.bincount(bubbles.bubble).min() >= 29
    assert bubbles.messages <= 30 * 30 * (COLLISIONS_MAX + 2)


def test_the_dead_swallow_what_they_get_and_rerouting_saves_it() -> None:
    graph = network(5000)
    living = np.random.default_rng(3).random(5000) < 0.5
    origins = np.flatnonzero(living)[:200].astype(np.int32)
    size = 140
    swallowed, rerouted = (
        cast(Links(graph, living, reroutes), origins, size, 5) for reroutes in (False, True)
    )
    for bubbles in (swallowed, rerouted):
        assert living[bubbles.node].all()
    assert len(swallowed.node) < 0.15 * size * len(origins)
    assert 0.95 * size * len(origins) < len(rerouted.node) <= size * len(origins)


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(400)
    origins = np.arange(50, dtype=np.int32)
    whole = cast(Links(graph), origins, 40, 7)
    monkeypatch.setattr(module, "SEEN_BYTES", 400 * 20)
    parts = cast(Links(graph), origins, 40, 7)
    pairs = [sorted(zip(some.bubble, some.node, strict=True)) for some in (whole, parts)]
    assert pairs[0] == pairs[1]
    assert whole.hops.tolist() == parts.hops.tolist()
    assert (whole.messages, whole.collisions) == (parts.messages, parts.collisions)
    assert whole.load.tolist() == parts.load.tolist()


def test_ways_are_short_and_load_goes_by_degree() -> None:
    graph = network(10_000)
    bubbles = cast(Links(graph), np.arange(400, dtype=np.int32), 200, 1)
    assert 7 <= bubbles.hops.max() <= 15
    nodes = np.bincount(graph.degree)
    there = np.flatnonzero(nodes)
    each = bubbles.load[there] / (nodes[there] * there)
    assert each.max() / each.min() < 1.1
