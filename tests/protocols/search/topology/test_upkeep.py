"""What time brings: neighbours that are missing, too many, silent, or gone."""

from __future__ import annotations

from shoal.base.units import S_NS
from shoal.protocols.search.circle.locations import JOINING, LEAVING, STANDING
from shoal.protocols.search.messages import (
    EdgeClosed,
    EdgeName,
    MasterHello,
    MergeEdge,
    Redirect,
    SlaveHello,
    SplitEdge,
)
from tests.support.circle import CircleBench, Peer

BOOT, MASTER, SLAVE, NEW, OTHER = (Peer(number) for number in range(1, 6))
MORE = [Peer(number) for number in range(10, 20)]
SILENT_S = 20


def full() -> CircleBench:
    """Three places, six neighbours."""
    bench = CircleBench(BOOT)
    for number in range(3):
        bench.stand(MORE[2 * number], MORE[2 * number + 1])
    assert bench.circle.degree == 6
    assert bench.asked == []
    return bench


def inside(bench: CircleBench) -> list[SplitEdge]:
    """Requests over our own edges; test_reunions.py has the others."""
    return [request for request in bench.asked if request.edge is not None]


def test_enough_neighbours_are_left_alone() -> None:
    bench = full()
    assert bench.wait(60) == []
    assert bench.asked == []


def test_one_missing_neighbour_is_borne() -> None:
    bench = full()
    bench.crash(MORE[0])
    bench.wait(30)
    assert bench.asked == []
    assert bench.circle.degree == 5


def test_two_missing_neighbours_are_asked_for_at_a_new_place() -> None:
    bench = full()
    bench.crash(MORE[0])
    bench.crash(MORE[2])
    bench.wait(6)
    (request,) = inside(bench)
    location = bench.ring.locations.get(request.location)
    assert location is not None
    assert location.phase == JOINING
    bench.wait(10)
    assert len(inside(bench)) == 1, "while it is on its way"


def test_a_place_without_neighbours_is_dismissed() -> None:
    bench = full()
    first = next(iter(bench.ring.locations))
    bench.crash(MORE[0])
    bench.crash(MORE[1])
    assert bench.ring.locations.get(first.id) is None
    bench.wait(6)
    assert len(inside(bench)) == 1


def test_of_too_many_the_place_with_a_hole_is_given_up() -> None:
    bench = full()
    broken = list(bench.ring.locations)[1]
    bench.crash(MORE[3])  # its slave
    bench.circle.wanted = 4
    bench.wait(6)
    bench.stand(MASTER, SLAVE)
    bench.circle.wanted = 2
    sent = bench.wait(6)
    assert sent[0] == (MORE[2].node, MergeEdge(EdgeName(broken.id, 1, False), None, 0))
    assert broken.phase == LEAVING
    phases = [location.phase for location in bench.ring.locations]
    assert phases.count(LEAVING) >= 1


def test_one_neighbour_too_many_is_borne() -> None:
    bench = full()
    bench.crash(MORE[0])
    bench.circle.wanted = 4
    bench.wait(6)
    bench.stand(MASTER, SLAVE)
    bench.circle.wanted = 3
    assert bench.circle.degree == 7
    assert bench.wait(30) == []


def test_the_last_place_is_not_given_up() -> None:
    bench = CircleBench(BOOT)
    bench.stand(MASTER, SLAVE)
    for location in bench.ring.locations:
        if location.phase == JOINING:
            bench.ring.locations.remove(location)
    bench.circle.wanted = 0
    assert bench.wait(30) == []


def test_a_silent_neighbour_is_gone() -> None:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    sent = bench.wait(SILENT_S - 1, alive=False)
    assert (MASTER.node, EdgeClosed(EdgeName(location.id, 1, False))) not in sent
    sent = bench.wait(7, alive=False)
    assert (MASTER.node, EdgeClosed(EdgeName(location.id, 1, False))) in sent
    assert (SLAVE.node, EdgeClosed(EdgeName(location.id, 2, True))) in sent
    assert bench.ring.locations.get(location.id) is None
    assert len(bench.ring.edges) == len(bench.ring.links) == 0


def test_whoever_is_heard_of_is_not_silent() -> None:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    bench.wait(3 * SILENT_S)
    assert location.holes == 0


def test_an_edge_that_the_other_end_does_not_close_is_forgotten() -> None:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    bench.says(OTHER, OTHER.master_hello(9, location.id, slave=False))
    (old,) = bench.ring.edges.with_peer(MASTER.node)
    assert old.closing
    assert old not in bench.circle.edges
    for _ in range(6):
        bench.says(OTHER, NEW.split(7, 20, EdgeName(9, location.id, True)))
        bench.says(SLAVE, NEW.split(7, 20, EdgeName(2, location.id, False)))
        bench.wait(5, alive=False)
    assert not bench.ring.edges.with_peer(MASTER.node)
    assert location.holes == 0


def test_a_hello_that_went_down_with_its_link_is_said_again() -> None:
    """The other end may let go of an idle link just as we take it up."""
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    bench.says(SLAVE, MergeEdge(EdgeName(2, location.id, False), NEW.record, 3))
    bench.held[NEW.node] = None
    assert bench.crash(NEW) == []
    assert location.slave is not None
    ((to, hello),) = bench.up(NEW)
    assert (to, type(hello).__name__, hello.receiver) == (NEW.node, "MasterHello", 3)
    assert bench.crash(NEW) == [], "but once"
    assert location.slave is None


def test_a_hello_is_not_said_again_to_whoever_cannot_be_reached() -> None:
    bench = CircleBench(BOOT)
    location = bench.stand(MASTER, SLAVE)
    bench.says(MASTER, Redirect(EdgeName(1, location.id, True), NEW.record, 3))
    bench.held[NEW.node] = None
    bench.crash(NEW)
    assert bench.fail(NEW) == []
    assert location.master is None
    assert len(bench.ring.edges.with_peer(NEW.node)) == 0


def test_whoever_has_lost_all_asks_whom_it_has_seen_lately() -> None:
    bench = CircleBench(BOOT)
    bench.stand(MASTER, SLAVE)
    bench.wait(25)
    bench.crash(MASTER)
    bench.asked.clear()
    bench.host.dialled.clear()
    bench._dialled = 0
    bench.crash(SLAVE)
    bench.host.link_closed(BOOT.node, "gone")
    bench.wait(30)
    dialled = {contact.node for contact in bench.host.dialled}
    assert BOOT.node in dialled
    assert bench.asked


def test_a_bootstrap_that_cannot_be_reached_is_tried_again_and_others_too() -> None:
    bench = CircleBench(BOOT, OTHER)
    bench.host.link_closed(BOOT.node, "gone")
    bench.host.link_closed(OTHER.node, "gone")
    bench.held[BOOT.node] = bench.held[OTHER.node] = None
    bench.host.dialled.clear()
    bench._dialled = 0
    bench.wait(25)
    assert {contact.node for contact in bench.host.dialled} == {BOOT.node, OTHER.node}
    bench.fail(BOOT)
    bench.asked.clear()
    bench.up(OTHER)
    assert bench.asked
    assert all(isinstance(request, SplitEdge) for request in bench.asked)


# Circles of one


def test_the_first_node_makes_a_circle_of_its_own_places() -> None:
    bench = CircleBench()
    assert bench.circle.joined
    assert bench.circle.degree == 6, "a loop counts at both ends"
    assert [location.phase for location in bench.ring.locations] == [STANDING] * 3
    at = start = next(iter(bench.ring.locations))
    for _ in range(3):
        assert at.slave is not None
        below = bench.ring.locations.get(at.slave.theirs)
        assert below is not None
        assert below.master is not None
        assert below.master.theirs == at.id
        at = below
    assert at is start
    bench.wait(60, alive=False)
    assert bench.circle.degree == 6, "it hears itself"
    assert bench.asked == []


def test_a_newcomer_is_let_into_a_circle_of_one() -> None:
    bench = CircleBench()
    ((to, hello),) = bench.says(NEW, NEW.split(40))
    assert (to, type(hello)) == (NEW.node, MasterHello)
    sent = bench.says(NEW, NEW.slave_hello(40, hello.sender))
    assert [(to, type(message)) for to, message in sent] == [(NEW.node, SlaveHello)]
    assert sent[0][1].receiver == 40, "from our place below"
    assert [edge.master for edge in bench.ring.edges.with_peer(NEW.node)] == [True, False]
    assert bench.circle.degree == 6
    assert all(location.holes == 0 for location in bench.ring.locations)


def test_a_circle_of_one_ends_at_once() -> None:
    bench = CircleBench()
    assert bench.leave() == []
    assert bench.left
    assert len(bench.ring.edges) == 0


def test_places_of_a_circle_of_one_can_be_given_up_and_added() -> None:
    bench = CircleBench()
    bench.circle.wanted = 2
    bench.wait(6, alive=False)
    assert bench.circle.degree == 4
    bench.circle.wanted = 5
    bench.wait(40, alive=False)
    assert bench.circle.degree == 10
    assert all(location.holes == 0 for location in bench.ring.locations)


def test_the_last_place_of_a_circle_is_its_own_neighbour() -> None:
    bench = CircleBench()
    bench.circle.wanted = 1
    bench.wait(12, alive=False)
    (last,) = bench.ring.locations
    assert last.master is not None
    assert (last.master.theirs, last.holes) == (last.id, 0)
    bench.host.time_ns += S_NS
    bench.leave()
    assert bench.left


def test_whoever_is_left_on_a_circle_of_its_own_goes_back_to_those_it_knew() -> None:
    bench = CircleBench()
    ((_, hello),) = bench.says(NEW, NEW.split(40))
    ((_, slave),) = bench.says(NEW, NEW.slave_hello(40, hello.sender))
    bench.says(NEW, NEW.master_hello(40, slave.sender, slave=False))  # so its address is known
    bench.says(NEW, EdgeClosed(EdgeName(40, hello.sender, False)))
    bench.says(NEW, EdgeClosed(EdgeName(40, slave.sender, True)))
    assert all(edge.peer != NEW.node for edge in bench.circle.edges)
    bench.wait(6, alive=False)
    assert len(bench.asked) == 3
    assert all(request.edge is None for request in bench.asked), "not around its own circle"


def test_whoever_has_lost_all_and_is_let_in_by_nobody_begins_again() -> None:
    bench = CircleBench(BOOT)
    bench.stand(MASTER, SLAVE)
    bench.wait(6)
    bench.crash(MASTER)
    bench.crash(SLAVE)
    bench.wait(15)
    assert bench.circle.degree == 0
    bench.wait(15, alive=False)
    assert bench.circle.degree == 6
    assert all(edge.peer == bench.machine.node for edge in bench.circle.edges)
    bench.asked.clear()
    bench.wait(25, alive=False)
    assert any(request.edge is None for request in bench.asked), "and goes on asking outside"
    ((to, hello),) = bench.says(NEW, NEW.split(40))
    assert (to, type(hello)) == (NEW.node, MasterHello), "and lets others in"


def test_a_newcomer_that_nobody_lets_in_makes_no_circle() -> None:
    bench = CircleBench(BOOT)
    bench.wait(120)
    assert bench.circle.degree == 0


def test_the_last_place_of_an_old_circle_is_given_up_at_once() -> None:
    bench = CircleBench()
    bench.circle.wanted = 1
    bench.wait(12, alive=False)
    (old,) = bench.ring.locations
    bench.circle.acquaintances.saw(NEW.contact)
    bench.wait(6, alive=False)
    new = bench.stand(MASTER, SLAVE)
    bench.wait(6)
    assert bench.ring.locations.get(old.id) is None
    assert bench.ring.locations.get(new.id) is new
    assert bench.circle.degree == 2
