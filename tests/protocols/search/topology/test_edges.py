"""Edges have names: several between two nodes, loops, and messages on edges that have ended."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import InvariantViolated
from shoal.protocols.search.circle.locations import Edges
from shoal.protocols.search.messages import (
    BreakEdge,
    Cancel,
    EdgeClosed,
    EdgeName,
    MergeEdge,
    Ping,
    Redirect,
    SplitEdge,
)
from tests.support.circle import UNKNOWN, CircleBench, Peer

BOOT, MASTER, SLAVE, OTHER = (Peer(number) for number in range(1, 5))
GONE = EdgeName(8, 9, True)
UNDER = EdgeName(8, 9, False)

ON_NO_EDGE: list[Any] = [
    Redirect(GONE, OTHER.record, 3),
    BreakEdge(GONE),
    Cancel(UNDER),
    MergeEdge(UNDER, OTHER.record, 3),
    SplitEdge(GONE, OTHER.record, 3, 20),
    Ping(GONE, 0, 0, UNKNOWN, 0.0),
]


@pytest.mark.parametrize("message", ON_NO_EDGE, ids=lambda message: type(message).__name__)
def test_a_message_on_an_edge_that_has_ended_is_answered_by_its_end(message: Any) -> None:
    bench = CircleBench(BOOT)
    ((to, answer),) = bench.says(OTHER, message)
    assert to == OTHER.node
    assert answer == EdgeClosed(EdgeName(9, 8, not message.edge.master))


def test_the_end_of_an_edge_that_has_ended_is_not_answered() -> None:
    """Else two nodes would tell each other for ever."""
    assert CircleBench(BOOT).says(OTHER, EdgeClosed(GONE)) == []


def test_both_ends_close_at_once() -> None:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    bench.says(OTHER, OTHER.master_hello(9, location.id, slave=False))  # closes to the old one
    assert bench.says(MASTER, EdgeClosed(EdgeName(1, location.id, True))) == []
    assert not bench.ring.edges.with_peer(MASTER.node)


def test_two_nodes_may_share_several_edges_and_one_link() -> None:
    bench = CircleBench(BOOT)
    first = bench.stand(MASTER, SLAVE)
    second = bench.stand(MASTER, MASTER)
    assert len(bench.ring.edges.with_peer(MASTER.node)) == 3
    bench.says(MASTER, EdgeClosed(EdgeName(1, first.id, True)))
    assert first.master is None
    assert second.holes == 0
    assert MASTER.node in bench.ring.links, "it is still needed"
    bench.says(MASTER, EdgeClosed(EdgeName(1, second.id, True)))
    bench.says(MASTER, EdgeClosed(EdgeName(2, second.id, False)))
    assert MASTER.node not in bench.ring.links


def test_all_edges_go_with_their_link() -> None:
    bench = CircleBench(BOOT)
    first = bench.stand(MASTER, SLAVE)
    second = bench.stand(MASTER, SLAVE)
    bench.crash(MASTER)
    assert first.master is second.master is None
    assert bench.circle.degree == 2


def test_an_edge_whose_end_overtakes_its_link_gives_the_link_back() -> None:
    """Our claim is answered after the edge that needed it has ended."""
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    bench.host.link_opened(MASTER.node)
    bench.host.received(MASTER.node, MASTER.master_hello(1, id))
    bench.host.received(MASTER.node, EdgeClosed(EdgeName(1, id, True)))
    bench.run()
    assert len(bench.ring.edges) == 0
    assert MASTER.node not in bench.ring.links


def test_names_tell_both_ends_of_a_loop_apart() -> None:
    edges = Edges()
    down = edges.add(MASTER.record, 5, 5, master=True, now_ns=0)
    up = edges.add(MASTER.record, 5, 5, master=False, now_ns=0)
    assert edges.named(MASTER.node, up.name) is down
    assert edges.named(MASTER.node, down.name) is up
    edges.remove(down)
    assert list(edges) == [up]
    edges.remove(down)  # once more is no harm
    assert up in edges


def test_an_edge_takes_the_place_of_one_with_its_name() -> None:
    edges = Edges()
    old = edges.add(MASTER.record, 5, 6, master=True, now_ns=0)
    new = edges.add(MASTER.record, 5, 6, master=True, now_ns=1)
    assert list(edges) == [new]
    assert new.number > old.number
    edges.remove(old)
    assert list(edges) == [new]


def test_what_must_not_be_is_noticed() -> None:
    def broken(how: str) -> None:
        bench = CircleBench(BOOT)
        location = bench.stand(MASTER, SLAVE)
        ring = bench.ring
        assert location.slave is not None
        if how == "unknown edge":
            ring.edges.remove(location.slave)
        elif how == "closing edge":
            location.slave.closing = True
        elif how == "lost edge":
            location.slave = None
        elif how == "unused link":
            ring.links.opened(OTHER.node, 0)
        elif how == "missing link":
            ring.links.release(SLAVE.node)
        elif how == "empty place":
            ring.locations.add("standing")
        elif how == "wrong role":
            location.master = location.slave
        elif how == "wrong name":
            location.slave.theirs += 1
        bench.machine.check_invariants()

    kinds = ["unknown edge", "closing edge", "lost edge", "unused link", "missing link"]
    for how in [*kinds, "empty place", "wrong role", "wrong name"]:
        with pytest.raises(InvariantViolated):
            broken(how)
    broken("nothing")
