"""Leaving a place: its master takes its slave; what the others do when somebody leaves."""

from __future__ import annotations

import pytest

from shoal.protocols.search.circle.locations import LEAVING, Location
from shoal.protocols.search.commands import Left
from shoal.protocols.search.messages import (
    BreakEdge,
    Cancel,
    EdgeClosed,
    EdgeName,
    MasterHello,
    MergeEdge,
    Redirect,
    SlaveHello,
)
from tests.support.circle import CircleBench, Peer

BOOT, MASTER, SLAVE, NEXT, OTHER = (Peer(number) for number in range(1, 6))
LEAVE_S = 10


def standing(
    master: Peer | None = MASTER, slave: Peer | None = SLAVE
) -> tuple[CircleBench, Location]:
    """One place; the others that were asked for are gone."""
    bench = CircleBench(BOOT)
    location = bench.stand(master, slave)
    for other in bench.ring.locations:
        if other is not location:
            bench.ring.locations.remove(other)
    return bench, location


# The leaver


def test_the_master_is_asked_to_take_the_slave() -> None:
    bench, location = standing()
    merge = MergeEdge(EdgeName(location.id, 1, False), SLAVE.record, 2)
    assert bench.leave() == [(MASTER.node, merge)]
    assert location.phase == LEAVING
    assert not bench.left
    sent = bench.says(MASTER, EdgeClosed(EdgeName(1, location.id, True)))
    assert sent == [(MASTER.node, EdgeClosed(EdgeName(location.id, 1, False)))]
    assert not bench.left, "the slave has not heard from its new master yet"
    sent = bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False)))
    assert sent == [(SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True)))]
    assert bench.left
    assert bench.circle.empty
    assert len(bench.ring.edges) == len(bench.ring.links) == 0


def test_without_a_slave_it_says_so() -> None:
    bench, location = standing(slave=None)
    assert bench.leave() == [(MASTER.node, MergeEdge(EdgeName(location.id, 1, False), None, 0))]
    bench.says(MASTER, EdgeClosed(EdgeName(1, location.id, True)))
    assert bench.left


def test_without_a_master_the_edge_to_the_slave_is_broken() -> None:
    bench, location = standing(master=None)
    assert bench.leave() == [(SLAVE.node, BreakEdge(EdgeName(location.id, 2, True)))]
    bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False)))
    assert bench.left


def test_a_slave_that_its_new_master_does_not_reach_is_broken_off_in_the_end() -> None:
    bench, location = standing()
    bench.leave()
    bench.says(MASTER, EdgeClosed(EdgeName(1, location.id, True)))
    sent = bench.wait(LEAVE_S + 6)
    assert sent == [(SLAVE.node, BreakEdge(EdgeName(location.id, 2, True)))]


def test_a_master_that_does_not_answer_is_asked_again_and_then_no_more() -> None:
    bench, location = standing()
    bench.leave()
    tries = bench.machine.config.leave_tries
    sent = bench.wait(tries * (LEAVE_S + 5))
    merges = [message for _, message in sent if type(message) is MergeEdge]
    assert len(merges) == tries - 1
    assert sent[-2:] == [
        (MASTER.node, EdgeClosed(EdgeName(location.id, 1, False))),
        (SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True))),
    ]
    assert bench.left


def test_a_master_that_dies_is_not_asked_again() -> None:
    bench, location = standing()
    bench.leave()
    bench.crash(MASTER)
    sent = bench.wait(LEAVE_S + 6)
    assert sent == [(SLAVE.node, BreakEdge(EdgeName(location.id, 2, True)))]


def test_all_neighbours_die_while_we_leave() -> None:
    bench, _ = standing()
    bench.leave()
    bench.crash(SLAVE)
    bench.crash(MASTER)
    bench.wait(6)
    assert bench.left


def test_a_new_slave_must_be_heard_of_before_we_leave() -> None:
    """Our master's hello would overtake ours at the slave, and ours would undo it."""
    bench, location = standing()
    bench.says(SLAVE, MergeEdge(EdgeName(2, location.id, False), NEXT.record, 3))
    assert bench.leave() == []
    assert bench.wait(6, alive=False) == []
    bench.hear()
    merge = MergeEdge(EdgeName(location.id, 1, False), NEXT.record, 3)
    assert (MASTER.node, merge) in bench.wait(6)


def test_whoever_leaves_while_it_joins_refuses_who_comes() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    assert bench.leave() == []
    assert bench.left
    sent = bench.says(MASTER, MASTER.master_hello(1, id))
    assert sent == [(MASTER.node, EdgeClosed(EdgeName(id, 1, False)))]


def test_whoever_has_a_master_waits_for_the_slave_that_was_sent_to_it() -> None:
    bench = CircleBench(BOOT)
    id = bench.asked[0].location
    bench.says(MASTER, MASTER.master_hello(1, id))
    assert bench.leave() == []
    assert not bench.left
    bench.says(SLAVE, SLAVE.slave_hello(2, id))
    sent = bench.wait(6)
    assert sent == [(MASTER.node, MergeEdge(EdgeName(id, 1, False), SLAVE.record, 2))]
    bench.says(MASTER, EdgeClosed(EdgeName(1, id, True)))
    bench.says(SLAVE, EdgeClosed(EdgeName(2, id, False)))
    assert bench.left


def test_nobody_is_asked_for_neighbours_any_more_when_we_leave() -> None:
    bench = CircleBench(BOOT)
    bench.asked.clear()
    bench.leave()
    bench.wait(60)
    assert bench.asked == []
    assert bench.host.notified.count(Left()) == 1


def test_the_link_to_a_bootstrap_comes_up_when_we_leave_already() -> None:
    bench = CircleBench(OTHER)
    bench.host.link_closed(OTHER.node, "gone")
    bench.held[OTHER.node] = None
    bench.wait(25)  # asks again, and waits for the link
    bench.asked.clear()
    bench.leave()
    bench.up(OTHER)
    assert bench.asked == []


# The master of a leaver


def asks(location: Location, remote: Peer | None = NEXT) -> MergeEdge:
    record, theirs = (None, 0) if remote is None else (remote.record, 3)
    return MergeEdge(EdgeName(2, location.id, False), record, theirs)


def test_the_slave_of_a_leaver_becomes_ours() -> None:
    bench, location = standing()
    (to, hello), (leaver, closed) = bench.says(SLAVE, asks(location))
    assert to == NEXT.node
    assert isinstance(hello, MasterHello)
    assert (hello.sender, hello.receiver, hello.expect_slave) == (location.id, 3, False)
    assert (leaver, closed) == (SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True)))
    assert location.slave is not None
    assert location.slave.peer == NEXT.node
    assert bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False))) == []
    assert SLAVE.node not in bench.ring.links


def test_a_leaver_without_a_slave_leaves_a_hole() -> None:
    bench, location = standing()
    sent = bench.says(SLAVE, asks(location, None))
    assert sent == [(SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True)))]
    assert location.slave is None


def test_a_slave_that_cannot_be_reached_leaves_a_hole() -> None:
    bench, location = standing()
    bench.held[NEXT.node] = None
    assert bench.says(SLAVE, asks(location)) == []
    assert bench.fail(NEXT) == [(SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True)))]
    assert location.slave is None
    assert not location.busy


def test_an_address_that_is_not_signed_is_counted_and_leaves_a_hole() -> None:
    bench, location = standing()
    sent = bench.says(SLAVE, asks(location), valid=False)
    assert sent == [(SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True)))]
    assert bench.rejected == ["bad-address"]
    assert location.slave is None


def test_a_leaver_that_asks_twice_is_taken_out_once() -> None:
    bench, location = standing()
    bench.held[NEXT.node] = None
    bench.says(SLAVE, asks(location), asks(location))
    sent = bench.up(NEXT)
    assert [type(message) for _, message in sent] == [MasterHello, EdgeClosed]


def test_a_leaver_that_dies_before_its_slave_is_reached_leaves_no_hole() -> None:
    bench, location = standing()
    bench.held[NEXT.node] = None
    bench.says(SLAVE, asks(location))
    bench.crash(SLAVE)
    bench.up(NEXT)
    assert location.slave is not None
    assert location.slave.peer == NEXT.node


def test_while_we_leave_the_request_of_our_slave_waits() -> None:
    bench, location = standing()
    bench.leave()
    assert bench.says(SLAVE, asks(location)) == []
    assert location.slave is not None
    assert location.slave.peer == SLAVE.node


def test_only_our_slave_can_ask_us() -> None:
    bench, location = standing()
    bench.says(MASTER, MergeEdge(EdgeName(1, location.id, True), NEXT.record, 3))
    bench.says(MASTER, Cancel(EdgeName(1, location.id, True)))
    assert bench.rejected == ["not-our-slave"] * 2
    assert location.holes == 0


def test_while_a_leaver_is_taken_out_nobody_else_becomes_our_slave() -> None:
    bench, location = standing()
    bench.held[NEXT.node] = None
    bench.says(SLAVE, asks(location))
    bench.crash(SLAVE)
    sent = bench.says(OTHER, OTHER.slave_hello(9, location.id))
    assert sent == [(OTHER.node, EdgeClosed(EdgeName(location.id, 9, True)))]


def test_what_was_under_way_at_a_place_that_was_given_up_changes_nothing() -> None:
    bench, location = standing()
    bench.leave()
    bench.held[NEXT.node] = None
    bench.says(MASTER, Redirect(EdgeName(1, location.id, True), NEXT.record, 3))
    bench.wait(bench.machine.config.leave_tries * (LEAVE_S + 5))
    assert bench.left
    assert bench.up(NEXT) == []
    assert not bench.ring.edges.with_peer(NEXT.node)
    assert NEXT.node not in bench.ring.links


# The slave of a leaver


def test_a_new_master_takes_the_place_of_the_one_that_leaves() -> None:
    bench, location = standing()
    sent = bench.says(OTHER, OTHER.master_hello(9, location.id, slave=False))
    (old, closed), (new, answer) = sent
    assert (old, closed) == (MASTER.node, EdgeClosed(EdgeName(location.id, 1, False)))
    assert (new, type(answer)) == (OTHER.node, SlaveHello)
    assert location.master is not None
    assert location.master.peer == OTHER.node
    assert bench.circle.degree == 2


def test_a_new_master_is_asked_by_whoever_leaves_as_well() -> None:
    bench, location = standing()
    bench.leave()
    sent = bench.says(OTHER, OTHER.master_hello(9, location.id, slave=False))
    assert sent[-1] == (OTHER.node, MergeEdge(EdgeName(location.id, 9, False), SLAVE.record, 2))
    assert bench.ring.races["both-leave"] == 1


@pytest.mark.parametrize("slave", [SLAVE, None])
def test_a_broken_edge_is_a_hole(slave: Peer | None) -> None:
    bench, location = standing(slave=slave)
    sent = bench.says(MASTER, BreakEdge(EdgeName(1, location.id, True)))
    assert sent == [(MASTER.node, EdgeClosed(EdgeName(location.id, 1, False)))]
    assert location.master is None
    kept = bench.ring.locations.get(location.id)
    assert (kept is None) == (slave is None), "without neighbours it is none"


def test_a_broken_edge_that_overtakes_the_new_master_does_no_harm() -> None:
    """We leave as well: our slave must not be let go before our new master has it."""
    bench, location = standing()
    bench.leave()
    sent = bench.says(MASTER, BreakEdge(EdgeName(1, location.id, True)))
    assert sent == [(MASTER.node, EdgeClosed(EdgeName(location.id, 1, False)))]
    sent = bench.says(OTHER, OTHER.master_hello(9, location.id, slave=False))
    assert sent[-1] == (OTHER.node, MergeEdge(EdgeName(location.id, 9, False), SLAVE.record, 2))


def test_only_our_master_can_break_an_edge() -> None:
    bench, location = standing()
    bench.says(SLAVE, BreakEdge(EdgeName(2, location.id, False)))
    assert bench.rejected == ["not-our-master"]
    assert location.holes == 0
