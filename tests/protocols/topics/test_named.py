"""Who named which event: each neighbour has room for so many."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.identity.topics.cid import Cid, cid_of
from shoal.protocols.topics.config import NAMED_MAX
from shoal.protocols.topics.fetching import Named, Peer
from tests.support.machines import peer_id

A, B, C = (peer_id(n) for n in range(3))
X = cid_of(b"x")


def names(count: int, kind: str = "") -> list[Cid]:
    return [cid_of(f"{kind}{number}".encode()) for number in range(count)]


class Bench:
    def __init__(self, *neighbours: NodeId) -> None:
        self.neighbours = list(neighbours)
        self.named = Named(lambda: self.neighbours)

    def says(self, peer: Peer, ids: list[Cid]) -> list[Cid]:
        """A peer names events; those that have to go for them."""
        return [gone for id in ids for gone in self.named.add(id, peer)]


def test_a_neighbour_fills_its_own_room_only() -> None:
    bench = Bench(A, B)
    assert bench.says(A, names(NAMED_MAX)) == []
    assert [bench.named.has_room(peer) for peer in (A, B, None)] == [False, True, True]


def test_what_came_makes_room() -> None:
    bench = Bench(A)
    every = names(NAMED_MAX)
    bench.says(A, every)
    for _ in range(2):
        bench.named.remove(every[0])
    bench.named.remove(X)
    assert bench.says(A, [X]) == []
    assert not bench.named.has_room(A)


def test_of_head_records_the_oldest_go() -> None:
    bench = Bench(A)
    every = names(NAMED_MAX + 2)
    assert bench.says(None, every) == every[:2]
    assert bench.named.has_room(None)


def test_those_who_come_and_go_share_one_room() -> None:
    bench = Bench(A, B)
    bench.says(A, names(NAMED_MAX, "a"))
    every = names(NAMED_MAX, "b")
    bench.says(B, every)
    bench.neighbours = [A, C]
    assert bench.says(C, [X]) == []
    assert bench.named.has_room(C)
    bench.neighbours = [A, B]
    assert bench.says(B, names(1)) == every[:1], "of all that those who are gone have named"
    assert not bench.named.has_room(A)
