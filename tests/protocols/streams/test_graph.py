"""The graph: bounded degree, uniform random choice, net changes, and an honest self-check."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import NodeId, node_id
from shoal.protocols.streams.topology.graph import Graph
from shoal.protocols.streams.topology.policy import LinkChanges, Pair, pair_of


def node(number: int) -> NodeId:
    return node_id(number.to_bytes(20, "big"))


A, B, C, D, E = (node(number) for number in range(5))


def graph_of(degree: int, *links: tuple[NodeId, NodeId]) -> Graph:
    graph = Graph(degree)
    for member in (A, B, C, D, E):
        graph.add_node(member)
    for a, b in links:
        graph.link(a, b)
    graph.take_changes()
    return graph


def test_a_pair_names_one_link_once() -> None:
    assert pair_of(B, A) == pair_of(A, B) == Pair(A, B)
    for a, b in ((B, A), (A, A)):
        with pytest.raises(UsageError, match="smaller id first"):
            Pair(a, b)


def test_touched_names_each_changed_node_once() -> None:
    changes = LinkChanges(added=(Pair(A, C), Pair(B, D)), removed=(Pair(C, D),))
    assert changes.touched() == (C, D, A, B)


def test_neighbours_come_oldest_link_first() -> None:
    graph = graph_of(3, (A, D), (A, B), (A, C))
    graph.cut(A, D)
    graph.link(D, A)
    assert graph.neighbours(A) == (B, C, D)
    assert graph.neighbours(D) == (A,)
    graph.check_invariants()


def test_full_nodes_are_not_open_and_take_no_link() -> None:
    graph = graph_of(2, (A, B), (A, C))
    assert graph.free_slots(A) == 0
    assert A not in graph.open_nodes
    with pytest.raises(UsageError, match="no free slot"):
        graph.link(A, D)
    graph.cut(A, B)
    assert A in graph.open_nodes
    graph.check_invariants()


@pytest.mark.parametrize(
    ("a", "b", "reason"), [(A, A, "are one"), (A, B, "linked"), (A, node(9), "not in the graph")]
)
def test_impossible_links_raise(a: NodeId, b: NodeId, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        graph_of(3, (A, B)).link(a, b)


def test_other_misuse_raises() -> None:
    graph = graph_of(3)
    with pytest.raises(UsageError, match="not linked"):
        graph.cut(A, B)
    with pytest.raises(UsageError, match="already"):
        graph.add_node(A)
    with pytest.raises(UsageError, match="not in the graph"):
        graph.remove_node(node(9))
    with pytest.raises(UsageError, match="at least 1"):
        Graph(0)


def test_nothing_to_choose_from_raises() -> None:
    with pytest.raises(UsageError, match="no random link"):
        Graph(3).random_link(Random(1))
    with pytest.raises(UsageError, match="no random open node"):
        Graph(3).random_open_node(Random(1))


def test_removing_a_node_cuts_its_links() -> None:
    graph = graph_of(3, (A, B), (A, C), (B, C))
    graph.remove_node(A)
    assert graph.take_changes() == LinkChanges(removed=(Pair(A, B), Pair(A, C)))
    assert list(graph.nodes) == [B, C, D, E]
    assert graph.links == [(B, C)]
    graph.check_invariants()


def test_changes_are_net_and_taken_once() -> None:
    graph = graph_of(3, (A, B))
    graph.link(C, D)
    graph.cut(C, D)
    graph.cut(A, B)
    graph.link(A, B)
    graph.link(E, A)
    assert graph.take_changes() == LinkChanges(added=(Pair(A, E),))
    assert graph.take_changes() == LinkChanges()


def test_version_moves_with_every_change_and_only_then() -> None:
    graph = graph_of(3, (A, B))
    before = graph.version
    graph.random_link(Random(1))
    graph.take_changes()
    assert graph.version == before
    graph.cut(A, B)
    graph.link(A, B)
    assert graph.version == before + 2


def test_random_choices_are_uniform_after_swaps() -> None:
    graph = graph_of(3, (A, B), (A, C), (B, C), (C, D), (D, E))
    graph.cut(A, B)
    rng = Random(7)
    links = Counter(graph.random_link(rng) for _ in range(8000))
    opened = Counter(graph.random_open_node(rng) for _ in range(8000))
    # 2000 expected in each of the four cells (C is full), one standard deviation is 39.
    assert set(links) == {(A, C), (B, C), (C, D), (D, E)}
    assert set(opened) == {A, B, D, E}
    assert all(abs(count - 2000) < 200 for count in (*links.values(), *opened.values()))


def test_the_self_check_sees_each_kind_of_damage() -> None:
    def damaged(part: str) -> Graph:
        graph = graph_of(2, (A, B), (B, C))
        rows, links = graph._adjacency, graph._links
        match part:
            case "itself":
                rows[A][A] = 0
            case "only one of":
                del rows[A][B]
            case "is no index":
                rows[A][B] = rows[B][A] = 7
            case "is another's":
                rows[A][B] = rows[B][A] = 1
            case "links, of 2":
                rows[B] |= {D: 0}
            case "link ends":
                links.append((A, B))
            case "free slots":
                graph._open_slot(B)
            case "and its index differ":
                graph._open.append(A)
            case "is open but not in":
                graph._open_slot(node(9))
            case _:
                graph._open[:2] = graph._open[1::-1]
        return graph

    for message in (
        "itself",
        "only one of",
        "is no index",
        "is another's",
        "links, of 2",
        "link ends",
        "free slots",
        "and its index differ",
        "is open but not in",
        "of the open list",
    ):
        with pytest.raises(InvariantViolated, match=message):
            damaged(message).check_invariants()
