"""The master: where walks end, and how a newcomer is let in between us and our slave."""

from __future__ import annotations

from math import ceil, log
from typing import Any

import pytest

from shoal.base.ids import NodeId
from shoal.protocols.search.circle.join import HOPS_TAKEN, HOPS_UNKNOWN, WAITING_MAX, walk_hops
from shoal.protocols.search.circle.locations import Location, Split
from shoal.protocols.search.messages import (
    Cancel,
    EdgeClosed,
    EdgeName,
    MasterHello,
    MergeEdge,
    Redirect,
    SplitEdge,
)
from tests.support.circle import CircleBench, Peer

BOOT, MASTER, SLAVE, NEW, OTHER = (Peer(number) for number in range(1, 6))
THEIRS = 40  # the newcomer's place
SPLIT_S = 15


def standing(slave: Peer | None = SLAVE) -> tuple[CircleBench, Location]:
    bench = CircleBench(BOOT)
    return bench, bench.stand(MASTER, slave)


def split(bench: CircleBench, location: Location) -> list[tuple[NodeId, Any]]:
    """A newcomer comes, and takes the place."""
    bench.says(OTHER, NEW.split(THEIRS))
    return bench.says(NEW, NEW.slave_hello(THEIRS, location.id))


def test_a_newcomer_is_greeted_and_our_slave_told_to_go_there() -> None:
    bench, location = standing()
    ((to_new, hello),) = bench.says(OTHER, NEW.split(THEIRS))
    assert to_new == NEW.node
    assert isinstance(hello, MasterHello)
    assert (hello.sender, hello.receiver, hello.expect_slave) == (location.id, THEIRS, True)
    assert hello.record == bench.ring.record
    ((to_slave, redirect),) = bench.says(NEW, NEW.slave_hello(THEIRS, location.id))
    assert to_slave == SLAVE.node
    assert redirect == Redirect(EdgeName(location.id, 2, True), NEW.record, THEIRS)
    assert location.slave is not None
    assert location.slave.peer == SLAVE.node, "until it has gone"
    sent = bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False)))
    assert sent == [(SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True)))]
    assert location.slave is not None
    assert location.slave.peer == NEW.node
    assert location.below is None
    assert not bench.ring.edges.with_peer(SLAVE.node)


def test_without_a_slave_the_newcomer_is_told_not_to_wait_for_one() -> None:
    bench, location = standing(None)
    ((to, hello),) = bench.says(OTHER, NEW.split(THEIRS))
    assert to == NEW.node
    assert isinstance(hello, MasterHello)
    assert not hello.expect_slave
    assert location.slave is not None
    assert location.slave.peer == NEW.node
    assert location.holes == 0


def test_if_the_slave_cannot_reach_it_all_is_as_before() -> None:
    bench, location = standing()
    slave = location.slave
    split(bench, location)
    sent = bench.says(SLAVE, Cancel(EdgeName(2, location.id, False)))
    assert sent == [(NEW.node, EdgeClosed(EdgeName(location.id, THEIRS, True)))]
    assert location.slave is slave
    assert location.below is None
    bench.says(NEW, EdgeClosed(EdgeName(THEIRS, location.id, False)))
    assert not bench.ring.edges.with_peer(NEW.node)
    assert NEW.node not in bench.ring.links


def test_if_the_slave_says_nothing_all_is_as_before() -> None:
    bench, location = standing()
    slave = location.slave
    split(bench, location)
    sent = bench.wait(SPLIT_S + 6)
    assert (NEW.node, EdgeClosed(EdgeName(location.id, THEIRS, True))) in sent
    assert location.slave is slave
    assert location.can_split
    assert bench.says(SLAVE, Cancel(EdgeName(2, location.id, False))) == [], "too late, no harm"


def test_if_the_slave_dies_the_newcomer_is_our_slave() -> None:
    bench, location = standing()
    split(bench, location)
    bench.crash(SLAVE)
    assert location.slave is not None
    assert location.slave.peer == NEW.node
    assert location.below is None


def test_if_the_slave_dies_before_the_newcomer_is_reached_it_is_greeted_without() -> None:
    bench, location = standing()
    bench.held[NEW.node] = None
    assert bench.says(OTHER, NEW.split(THEIRS)) == []
    bench.crash(SLAVE)
    ((_, hello),) = bench.up(NEW)
    assert isinstance(hello, MasterHello)
    assert not hello.expect_slave
    assert location.slave is not None
    assert location.slave.peer == NEW.node


def test_a_newcomer_that_cannot_be_reached_changes_nothing() -> None:
    bench, location = standing()
    slave = location.slave
    bench.held[NEW.node] = None
    bench.says(OTHER, NEW.split(THEIRS))
    assert not location.can_split, "one at a time"
    assert bench.fail(NEW) == []
    assert location.slave is slave
    assert location.can_split


def test_a_newcomer_that_dies_before_the_slave_came_to_it_changes_nothing() -> None:
    bench, location = standing()
    slave = location.slave
    split(bench, location)
    bench.crash(NEW)
    bench.says(SLAVE, Cancel(EdgeName(2, location.id, False)))
    assert location.slave is slave
    assert location.can_split


def test_a_newcomer_that_dies_with_the_slave_gone_to_it_leaves_a_hole() -> None:
    bench, location = standing()
    split(bench, location)
    bench.crash(NEW)
    bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False)))
    assert location.slave is None
    assert location.can_split


def test_a_newcomer_that_refuses_changes_nothing() -> None:
    """It has left, or has started again, while its request walked."""
    bench, location = standing()
    slave = location.slave
    bench.says(OTHER, NEW.split(THEIRS))
    sent = bench.says(NEW, EdgeClosed(EdgeName(THEIRS, location.id, False)))
    assert sent == [(NEW.node, EdgeClosed(EdgeName(location.id, THEIRS, True)))]
    assert location.slave is slave, "it was not told to go"
    assert location.can_split
    assert NEW.node not in bench.ring.links


def test_a_newcomer_that_says_nothing_changes_nothing() -> None:
    bench, location = standing()
    slave = location.slave
    bench.says(OTHER, NEW.split(THEIRS))
    sent = bench.wait(SPLIT_S + 6)
    assert sent == [(NEW.node, EdgeClosed(EdgeName(location.id, THEIRS, True)))]
    assert location.slave is slave
    assert location.can_split


def test_a_newcomer_that_says_it_twice_changes_nothing_more() -> None:
    bench, location = standing()
    split(bench, location)
    assert bench.says(NEW, NEW.slave_hello(THEIRS, location.id)) == []


def test_if_the_slave_dies_before_the_newcomer_has_answered_that_is_our_slave() -> None:
    bench, location = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    bench.crash(SLAVE)
    assert location.slave is not None
    assert location.slave.peer == NEW.node
    assert bench.says(NEW, NEW.slave_hello(THEIRS, location.id)) == []
    assert location.below is None


def test_an_address_that_is_not_signed_is_counted_and_changes_nothing() -> None:
    bench, location = standing()
    slave, dials = location.slave, len(bench.host.dialled)
    assert bench.says(OTHER, NEW.split(THEIRS), valid=False) == []
    assert bench.rejected == ["bad-address"]
    assert location.slave is slave
    assert location.can_split
    assert len(bench.host.dialled) == dials, "nobody is dialled on a stranger's word"


def test_two_newcomers_do_not_get_the_same_edge() -> None:
    bench, _ = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    assert bench.says(OTHER, OTHER.split(41)) == [], "its walk ends here, unanswered"


def test_a_leaver_among_the_slaves_is_taken_out_once_the_split_has_failed() -> None:
    bench, location = standing()
    bench.held[NEW.node] = None
    bench.says(OTHER, NEW.split(THEIRS))
    merge = MergeEdge(EdgeName(2, location.id, False), OTHER.record, 5)
    assert bench.says(SLAVE, merge) == []
    (to, hello), (leaver, closed) = bench.fail(NEW)
    assert to == OTHER.node
    assert isinstance(hello, MasterHello)
    assert (leaver, closed) == (SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True)))
    assert not bench.ring.races


def test_a_slave_that_was_told_to_go_is_not_taken_out_when_time_is_up() -> None:
    """It may be with the newcomer already, and asks that one."""
    bench, location = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    bench.says(SLAVE, MergeEdge(EdgeName(2, location.id, False), OTHER.record, 5))
    bench.says(NEW, NEW.slave_hello(THEIRS, location.id))
    assert bench.ring.races["leave-during-split"] == 1
    sent = bench.wait(SPLIT_S + 6)
    assert sent == [(NEW.node, EdgeClosed(EdgeName(location.id, THEIRS, True)))]
    assert location.slave is not None
    assert location.slave.peer == SLAVE.node


def test_the_slave_has_its_time_from_when_it_was_told() -> None:
    bench, location = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    bench.wait(10)
    bench.says(NEW, NEW.slave_hello(THEIRS, location.id))
    assert bench.wait(10) == []
    bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False)))
    assert location.slave is not None
    assert location.slave.peer == NEW.node


@pytest.mark.parametrize("hops", [HOPS_TAKEN + 2, 20])
def test_a_walk_goes_on_over_one_of_our_edges(hops: int) -> None:
    bench, location = standing()
    ((to, walk),) = bench.says(OTHER, NEW.split(THEIRS, hops))
    assert to in (MASTER.node, SLAVE.node)
    name = EdgeName(location.id, 1, False) if to == MASTER.node else EdgeName(location.id, 2, True)
    assert walk == SplitEdge(name, NEW.record, THEIRS, hops - 1)


def test_a_walk_ends_at_the_first_who_can_split_when_few_hops_are_left() -> None:
    bench, location = standing()
    bench.says(OTHER, NEW.split(THEIRS, HOPS_TAKEN + 1))
    assert isinstance(location.below, Split)


def test_whoever_cannot_split_sends_it_on_while_hops_are_left() -> None:
    bench, _ = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    ((_, walk),) = bench.says(OTHER, OTHER.split(41, 3))
    assert isinstance(walk, SplitEdge)
    assert walk.hops == 2


def test_hops_that_are_too_many_are_corrected() -> None:
    bench, _ = standing()
    ((_, walk),) = bench.says(OTHER, NEW.split(THEIRS, HOPS_UNKNOWN))
    assert isinstance(walk, SplitEdge)
    assert walk.hops == walk_hops(None) - 1


def test_how_far_a_walk_goes() -> None:
    assert walk_hops(1_000_000) == 50
    assert walk_hops(0.2) == walk_hops(None), "what is measured too early is not believed"
    assert walk_hops(None) == ceil(8 + 3 * log(10_000))


def test_too_many_walks_of_one_peer_are_refused() -> None:
    bench, _ = standing()
    burst = bench.machine.config.walk_burst
    bench.says(OTHER, *[NEW.split(THEIRS, 20)] * (burst + 3))
    assert bench.rejected == ["rate-limited"] * 3


def test_a_place_to_be_left_takes_no_newcomer() -> None:
    bench, location = standing()
    location.unwanted = True
    assert bench.says(OTHER, NEW.split(THEIRS)) == []


def test_who_finds_all_edges_busy_at_the_end_of_its_walk_waits_for_one() -> None:
    bench, location = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    late = Peer(9)
    assert bench.says(OTHER, late.split(50, hops=1)) == [], "our one edge is being split"
    bench.says(NEW, NEW.slave_hello(THEIRS, location.id))
    sent = bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False)))
    hellos = [message for to, message in sent if to == late.node]
    assert [type(message) for message in hellos] == [MasterHello]
    assert hellos[0].receiver == 50


def test_who_has_waited_too_long_has_asked_somebody_else() -> None:
    bench, location = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    late = Peer(9)
    bench.says(OTHER, late.split(50, hops=1))
    bench.wait(12)  # the split itself is given up after 15 s
    bench.says(NEW, NEW.slave_hello(THEIRS, location.id))
    sent = bench.says(SLAVE, EdgeClosed(EdgeName(2, location.id, False)))
    assert not [message for to, message in sent if to == late.node]
    assert not bench.circle._splits.waiting


def test_only_so_many_wait() -> None:
    bench, _ = standing()
    bench.says(OTHER, NEW.split(THEIRS))
    for number in range(WAITING_MAX + 5):
        bench.says(OTHER, Peer(100 + number).split(50, hops=1))
    assert len(bench.circle._splits._waiting) == WAITING_MAX
