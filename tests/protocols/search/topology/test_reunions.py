"""Asking others than our neighbours, when many are lost or somebody is back."""

from __future__ import annotations

from shoal.base.ids import Contact
from shoal.protocols.search.circle.locations import JOINING, LEAVING
from shoal.protocols.search.circle.partition_healing import DEAD_MANY, LOOKS
from shoal.protocols.search.messages import EdgeName, MergeEdge, SplitEdge
from tests.support.circle import CircleBench, Peer

BOOT, MASTER, SLAVE, NEW = (Peer(number) for number in range(1, 5))
MORE = [Peer(number) for number in range(10, 16)]
SEEN = [Peer(number) for number in range(20, 40)]
LOOKS_S = 45 * (LOOKS + 1)  # all of them, each as late as can be
MISSED_LOOK_S = 180


def full(*seen: Peer) -> CircleBench:
    """Three places, six neighbours, and some acquaintances."""
    bench = CircleBench(BOOT)
    for number in range(3):
        bench.stand(MORE[2 * number], MORE[2 * number + 1])
    for peer in seen:
        bench.circle.acquaintances.saw(peer.contact)
    bench.host.dialled.clear()
    bench._dialled = 0
    return bench


def outside(bench: CircleBench) -> list[SplitEdge]:
    return [request for request in bench.asked if request.edge is None]


def dialled(bench: CircleBench) -> list[Contact]:
    """Whom we called, but for whoever called us."""
    return [one for one in bench.host.dialled if one.node in {peer.node for peer in SEEN}]


def test_one_lost_neighbour_is_no_alarm() -> None:
    bench = full(*SEEN)
    bench.crash(MORE[0])
    bench.wait(25)
    bench.crash(MORE[2])
    bench.wait(25)
    assert outside(bench) == []


def test_two_lost_neighbours_have_us_ask_others_a_few_times() -> None:
    bench = full(*SEEN)
    bench.held[MORE[0].node] = bench.held[MORE[2].node] = None
    bench.crash(MORE[0])
    bench.wait(10)
    bench.crash(MORE[2])
    bench.wait(6)
    (request,) = outside(bench)
    location = bench.ring.locations.get(request.location)
    assert location is not None
    assert (location.phase, location.bridge) == (JOINING, True)
    bench.wait(LOOKS_S)
    assert len(outside(bench)) == LOOKS
    bench.wait(LOOKS_S)
    assert len(outside(bench)) == LOOKS


def test_silent_neighbours_are_lost_as_well() -> None:
    bench = full(*SEEN)
    bench.wait(26, alive=False)
    assert bench.circle.degree == 0
    assert any(location.bridge for location in bench.ring.locations)


def test_neighbours_that_leave_in_order_are_no_loss() -> None:
    bench = full(*SEEN)
    for number, location in enumerate(list(bench.ring.locations)):
        leaver = MORE[2 * number + 1]
        bench.says(leaver, MergeEdge(EdgeName(2, location.id, False), None, 0))
        bench.crash(leaver)
    bench.wait(60)
    assert outside(bench) == []


def test_one_after_the_other_is_asked_until_somebody_answers() -> None:
    bench = full(*SEEN[:3])
    for peer in (BOOT, *SEEN):
        bench.held[peer.node] = None
    bench.host.link_closed(BOOT.node, "gone")
    bench.circle.acquaintances.lost(BOOT.node)
    bench.crash(MORE[0])
    bench.crash(MORE[2])
    bench.wait(6)
    by_id = {peer.node: peer for peer in SEEN}
    for number in (1, 2, 3):
        assert len(dialled(bench)) == number, "one at a time"
        assert outside(bench) == []
        last = by_id[dialled(bench)[-1].node]
        if number < 3:
            bench.fail(last)
    bench.up(last)
    assert len(outside(bench)) == 1
    assert len({one.node for one in dialled(bench)}) == 3


def test_where_most_do_not_answer_everybody_is_asked() -> None:
    bench = full(*SEEN)
    for peer in SEEN:
        bench.held[peer.node] = None
    bench.circle.acquaintances.lost(BOOT.node)
    by_id = {peer.node: peer for peer in SEEN}
    bench.crash(MORE[0])
    bench.crash(MORE[2])
    calls = 0
    for _ in range(400):
        bench.wait(1)
        for contact in dialled(bench)[calls:]:
            calls += 1
            (bench.up if calls % (DEAD_MANY + 1) == 0 else bench.fail)(by_id[contact.node])
    assert {contact.node for contact in dialled(bench)} == by_id.keys()
    assert len(outside(bench)) > LOOKS


def test_the_new_place_is_kept_and_one_with_a_hole_given_up() -> None:
    bench = full(SEEN[0])
    bench.crash(MORE[3])
    broken = list(bench.ring.locations)[1]
    whole = next(iter(bench.ring.locations))
    bench.crash(MORE[5])
    bench.wait(6)
    over_edges = next(request for request in bench.asked if request.edge is not None)
    bench.asked.remove(over_edges)
    bench.asked.insert(0, over_edges)
    bench.stand(MASTER, SLAVE)
    bridge = bench.stand(NEW, None)
    assert bridge.bridge
    bench.wait(6)
    bench.circle.wanted = 2
    bench.wait(6)
    assert broken.phase == LEAVING, "our neighbours do not answer here"
    assert bridge.phase != LEAVING
    assert whole.phase != LEAVING


def test_who_stopped_to_answer_is_called_now_and_then() -> None:
    bench = full(SEEN[0])
    bench.held[SEEN[0].node] = None
    bench.circle.acquaintances.lost(SEEN[0].node)
    bench.wait(MISSED_LOOK_S)
    assert len(dialled(bench)) == 1
    bench.fail(SEEN[0])
    bench.wait(2 * MISSED_LOOK_S)
    assert 2 <= len(dialled(bench)) <= 4
    assert outside(bench) == []
    bench.up(SEEN[0])
    assert len(outside(bench)) == 1
    bench.wait(3 * MISSED_LOOK_S)
    assert len(outside(bench)) == 1, "it is one of those who answer now"


def test_whoever_leaves_asks_nobody() -> None:
    bench = full(SEEN[0])
    bench.held[SEEN[0].node] = None
    bench.circle.acquaintances.lost(BOOT.node)
    bench.crash(MORE[0])
    bench.crash(MORE[2])
    bench.wait(6)
    assert len(dialled(bench)) == 1
    bench.leave()
    bench.asked.clear()
    bench.up(SEEN[0])
    assert bench.asked == []
    assert not any(location.bridge for location in bench.ring.locations)


def test_whoever_walks_past_is_remembered_if_its_address_is_its_own() -> None:
    bench = full()
    edge = next(iter(bench.ring.edges))
    name = EdgeName(edge.theirs, edge.mine, not edge.master)
    bench.says(MORE[0], NEW.split(7, 20, name))
    assert NEW.contact in bench.circle.acquaintances.recent()
    bench.says(MORE[0], SEEN[0].split(7, 20, name), valid=False)
    assert SEEN[0].contact not in bench.circle.acquaintances.recent()
