"""The newcomer: asks for neighbours, takes who comes, and refuses whom it did not ask for."""

from __future__ import annotations

import pytest

from shoal.protocols.search.circle.join import HOPS_UNKNOWN
from shoal.protocols.search.circle.locations import JOINING, STANDING
from shoal.protocols.search.messages import EdgeClosed, EdgeName, MergeEdge, SlaveHello
from tests.support.circle import ME, CircleBench, Peer

BOOT, MASTER, SLAVE, LATE = (Peer(number) for number in range(1, 5))


def test_a_newcomer_asks_for_each_of_its_places() -> None:
    bench = CircleBench(BOOT)
    assert len(bench.asked) == bench.machine.config.locations
    assert len({request.location for request in bench.asked}) == len(bench.asked)
    for request in bench.asked:
        assert request.edge is None
        assert request.hops == HOPS_UNKNOWN
        assert request.origin.node == ME.node
    assert not bench.circle.joined


def test_it_stands_between_master_and_slave() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    ((to, answer),) = bench.says(MASTER, MASTER.master_hello(1, id))
    assert (to, type(answer)) == (MASTER.node, SlaveHello), "we are its slave"
    assert (answer.sender, answer.receiver) == (id, 1)
    location = bench.ring.locations.get(id)
    assert location is not None
    assert location.phase == JOINING, "its master said that a slave comes"
    assert bench.says(SLAVE, SLAVE.slave_hello(2, id)) == []
    assert location.phase == STANDING
    assert bench.circle.joined
    assert location.master is not None
    assert location.slave is not None
    assert location.master.name == EdgeName(id, 1, False)
    assert location.slave.name == EdgeName(id, 2, True)
    assert bench.circle.degree == 2


def test_the_slave_may_come_first() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    bench.says(SLAVE, SLAVE.slave_hello(2, id))
    assert not bench.circle.joined
    bench.says(MASTER, MASTER.master_hello(1, id))
    assert bench.circle.joined


def test_it_does_not_wait_for_a_slave_that_its_master_has_not() -> None:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, None)
    assert location.phase == STANDING
    assert location.holes == 1


@pytest.mark.parametrize("comes", ["master", "slave"])
def test_whoever_comes_to_a_place_that_is_not_ours_is_refused(comes: str) -> None:
    bench = CircleBench(BOOT)
    if comes == "master":
        answer = bench.says(MASTER, MASTER.master_hello(1, 77))
        assert answer == [(MASTER.node, EdgeClosed(EdgeName(77, 1, False)))]
    else:
        answer = bench.says(SLAVE, SLAVE.slave_hello(2, 77))
        assert answer == [(SLAVE.node, EdgeClosed(EdgeName(77, 2, True)))]
    assert len(bench.ring.edges) == 0


def test_a_second_slave_is_refused() -> None:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    answer = bench.says(LATE, LATE.slave_hello(9, location.id))
    assert answer == [(LATE.node, EdgeClosed(EdgeName(location.id, 9, True)))]
    assert location.slave is not None
    assert location.slave.peer == SLAVE.node


def test_a_request_that_somebody_had_walk_twice_gives_one_master() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    bench.says(MASTER, MASTER.master_hello(1, id))
    answer = bench.says(LATE, LATE.master_hello(9, id))
    assert answer == [(LATE.node, EdgeClosed(EdgeName(id, 9, False)))]
    ((_, again),) = bench.says(MASTER, MASTER.master_hello(1, id))
    assert isinstance(again, SlaveHello), "the same one may say it twice"
    assert bench.circle.degree == 1


def test_if_the_slave_does_not_come_the_place_has_a_hole() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    bench.says(MASTER, MASTER.master_hello(1, id))
    bench.wait(25)
    location = bench.ring.locations.get(id)
    assert location is not None
    assert (location.phase, location.holes) == (STANDING, 1)


def test_if_the_master_dies_before_the_slave_comes_the_slave_is_taken() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    bench.says(MASTER, MASTER.master_hello(1, id))
    bench.crash(MASTER)
    bench.says(SLAVE, SLAVE.slave_hello(2, id))
    bench.wait(25)
    location = bench.ring.locations.get(id)
    assert location is not None
    assert (location.phase, location.edges) == (STANDING, 1)


def test_a_request_that_nobody_answers_is_made_again() -> None:
    bench = CircleBench(BOOT)
    first = [request.location for request in bench.asked]
    bench.asked.clear()
    bench.wait(30)
    assert len(bench.asked) == len(first)
    assert not {request.location for request in bench.asked} & set(first), "nothing is used twice"


def test_late_neighbours_are_taken_and_then_merged() -> None:
    bench = CircleBench(BOOT)
    late = bench.asked.pop(0).location
    bench.wait(30)
    bench.says(MASTER, MASTER.master_hello(1, late))
    bench.says(SLAVE, SLAVE.slave_hello(2, late))
    assert bench.circle.degree == 2
    sent = bench.wait(10)
    merge = MergeEdge(EdgeName(late, 1, False), SLAVE.record, 2)
    assert (MASTER.node, merge) in sent
    bench.says(SLAVE, EdgeClosed(EdgeName(2, late, False)))
    bench.says(MASTER, EdgeClosed(EdgeName(1, late, True)))
    assert bench.ring.locations.get(late) is None


def test_whoever_comes_much_too_late_is_refused() -> None:
    bench = CircleBench(BOOT)
    late = bench.asked.pop(0).location
    bench.wait(95)
    ((to, answer),) = bench.says(MASTER, MASTER.master_hello(1, late))
    assert (to, answer) == (MASTER.node, EdgeClosed(EdgeName(late, 1, False)))


def test_joining_places_do_not_pile_up() -> None:
    bench = CircleBench(BOOT)
    bench.wait(600)
    assert len(bench.ring.locations) <= bench.machine.config.locations * 5


def test_a_hello_with_the_address_of_somebody_else_is_counted_and_ignored() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    bench.says(MASTER, SLAVE.master_hello(1, id), SLAVE.slave_hello(2, id))
    assert bench.rejected == ["not-its-address"] * 2
    assert len(bench.ring.edges) == 0
    assert SLAVE.contact not in bench.circle.acquaintances.recent()


def test_a_hello_whose_address_is_not_signed_is_counted_and_closed() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    answer = bench.says(MASTER, MASTER.master_hello(1, id), valid=False)
    assert answer[-1] == (MASTER.node, EdgeClosed(EdgeName(id, 1, False)))
    assert bench.rejected == ["bad-address"]
    assert len(bench.ring.edges) == 0
    assert MASTER.contact not in bench.circle.acquaintances.recent()
    bench.says(MASTER, MASTER.master_hello(1, id))
    assert MASTER.contact in bench.circle.acquaintances.recent()
