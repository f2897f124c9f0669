"""The slave: goes to the newcomer that its master names, or says that it cannot."""

from __future__ import annotations

from shoal.protocols.search.circle.locations import LEAVING, Location
from shoal.protocols.search.messages import (
    Cancel,
    EdgeClosed,
    EdgeName,
    MergeEdge,
    Redirect,
    SlaveHello,
)
from tests.support.circle import CircleBench, Peer

BOOT, MASTER, SLAVE, NEW, OTHER = (Peer(number) for number in range(1, 6))
THEIRS = 40


def standing() -> tuple[CircleBench, Location, Redirect]:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    return bench, location, Redirect(EdgeName(1, location.id, True), NEW.record, THEIRS)


def test_it_goes_to_the_newcomer_and_closes_to_the_old_master() -> None:
    bench, location, redirect = standing()
    (to_new, hello), (to_old, closed) = bench.says(MASTER, redirect)
    assert to_new == NEW.node
    assert isinstance(hello, SlaveHello)
    assert (hello.sender, hello.receiver) == (location.id, THEIRS)
    assert (to_old, closed) == (MASTER.node, EdgeClosed(EdgeName(location.id, 1, False)))
    assert location.master is not None
    assert location.master.peer == NEW.node
    assert bench.circle.degree == 2
    assert bench.says(MASTER, EdgeClosed(EdgeName(1, location.id, True))) == []
    assert not bench.ring.edges.with_peer(MASTER.node)
    assert MASTER.node not in bench.ring.links


def test_if_it_cannot_reach_the_newcomer_it_stays() -> None:
    bench, location, redirect = standing()
    bench.held[NEW.node] = None
    bench.says(MASTER, redirect)
    assert bench.fail(NEW) == [(MASTER.node, Cancel(EdgeName(location.id, 1, False)))]
    assert location.master is not None
    assert location.master.peer == MASTER.node
    assert not location.busy


def test_an_address_that_is_not_signed_is_counted_and_cancels() -> None:
    bench, location, redirect = standing()
    sent = bench.says(MASTER, redirect, valid=False)
    assert sent == [(MASTER.node, Cancel(EdgeName(location.id, 1, False)))]
    assert bench.rejected == ["bad-address"]


def test_if_the_old_master_dies_meanwhile_the_newcomer_is_the_master() -> None:
    bench, location, redirect = standing()
    bench.held[NEW.node] = None
    bench.says(MASTER, redirect)
    bench.crash(MASTER)
    ((to, hello),) = bench.up(NEW)
    assert to == NEW.node
    assert isinstance(hello, SlaveHello)
    assert location.master is not None
    assert location.master.peer == NEW.node


def test_a_place_that_only_a_redirection_can_save_waits_for_it() -> None:
    bench, location, redirect = standing()
    bench.held[NEW.node] = None
    bench.says(MASTER, redirect)
    bench.crash(MASTER)
    bench.crash(SLAVE)
    assert bench.ring.locations.get(location.id) is location
    bench.fail(NEW)
    assert bench.ring.locations.get(location.id) is None


def test_a_second_redirection_takes_the_place_of_the_first() -> None:
    bench, location, redirect = standing()
    bench.held[NEW.node] = None
    bench.says(MASTER, redirect)
    sent = bench.says(MASTER, Redirect(redirect.edge, OTHER.record, 41))
    assert [type(message) for _, message in sent] == [SlaveHello, EdgeClosed]
    assert bench.up(NEW) == []
    assert location.master is not None
    assert location.master.peer == OTHER.node
    assert NEW.node not in bench.ring.links, "given back"


def test_another_master_that_comes_meanwhile_stays() -> None:
    bench, location, redirect = standing()
    bench.held[NEW.node] = None
    bench.says(MASTER, redirect)
    bench.says(OTHER, OTHER.master_hello(9, location.id, slave=False))
    assert bench.up(NEW) == []
    assert location.master is not None
    assert location.master.peer == OTHER.node
    assert NEW.node not in bench.ring.links


def test_whoever_leaves_asks_the_newcomer_instead() -> None:
    bench, location, redirect = standing()
    bench.leave()
    assert location.phase == LEAVING
    sent = bench.says(MASTER, redirect)
    merge = MergeEdge(EdgeName(location.id, THEIRS, False), SLAVE.record, 2)
    assert [type(message) for _, message in sent] == [SlaveHello, EdgeClosed, MergeEdge]
    assert sent[2] == (NEW.node, merge)


def test_whoever_leaves_and_cannot_reach_it_asks_the_old_master_again() -> None:
    bench, location, redirect = standing()
    bench.leave()
    bench.held[NEW.node] = None
    bench.says(MASTER, redirect)
    merge = MergeEdge(EdgeName(location.id, 1, False), SLAVE.record, 2)
    assert bench.fail(NEW) == [
        (MASTER.node, Cancel(EdgeName(location.id, 1, False))),
        (MASTER.node, merge),
    ]


def test_only_our_master_can_send_us_away() -> None:
    bench, location, redirect = standing()
    name = EdgeName(2, location.id, False)  # of our slave
    assert bench.says(SLAVE, Redirect(name, NEW.record, THEIRS)) == []
    assert bench.rejected == ["not-our-master"]
    stranger = Redirect(redirect.edge, NEW.record, THEIRS)
    assert bench.says(OTHER, stranger) == [
        (OTHER.node, EdgeClosed(EdgeName(location.id, 1, False)))
    ]
    assert not location.busy
