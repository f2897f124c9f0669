"""The search machine as a whole: who is believed, what is left behind, and what is said last."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import Contact
from shoal.base.units import S_NS
from shoal.kernel.effects import Notify, Send, SetTimer
from shoal.kernel.inputs import CommandIssued, LinkFailed, Started, TimerFired
from shoal.protocols.search.commands import Contribute, Joined, Leave, Left, Meet
from shoal.protocols.search.config import EXTRAS_MAX, SearchConfig
from shoal.protocols.search.links import EDGE
from shoal.protocols.search.machine import PINGS_BURST, SearchNode
from shoal.protocols.search.messages import (
    ClientRedirect,
    EdgeClosed,
    EdgeName,
    Match,
    Ping,
    Totals,
)
from tests.support.bubbles import TOTALS, BubbleBench, a_cast
from tests.support.circle import ME, CircleBench, Peer

ORIGIN, STRANGER = Peer(50), Peer(51)
WATER = Totals(2.0, 12.0, 72.0)


def drop(bench: BubbleBench, peer: Peer) -> None:
    """A neighbour says that an edge ends."""
    bench.says(peer, EdgeClosed(bench.name_from(peer)))


def pings(bench: BubbleBench) -> list[tuple[bytes, Ping]]:
    """Last words among what was sent."""
    return [e for e in bench.sent() if type(e[1]) is Ping and e[1].edge is None]


# Joining


def test_joined_is_told_once_with_a_place_and_a_size() -> None:
    bench = CircleBench(Peer(1))
    bench.stand(Peer(2), Peer(3))
    assert Joined() not in bench.host.notified  # nobody knew how large the network is
    hello = msgspec.structs.replace(
        Peer(4).master_hello(1, bench.asked.pop(0).location), bootstrap=TOTALS
    )
    bench.says(Peer(4), hello)
    bench.wait(20)
    assert bench.host.notified.count(Joined()) == 1


def test_strangers_do_not_tell_a_newcomer_how_large_the_network_is() -> None:
    bench = CircleBench(Peer(1))
    for hello in (STRANGER.master_hello(1, 12345), STRANGER.slave_hello(1, 12345)):
        bench.says(STRANGER, msgspec.structs.replace(hello, bootstrap=TOTALS))
    assert bench.machine.parts.measurement.known is None


def test_the_first_node_is_the_network() -> None:
    bench = CircleBench()
    assert bench.host.notified == [Joined()]
    known = bench.machine.parts.measurement.known
    assert known is not None
    assert known.nodes == 1.0


# Measurement


def test_mass_is_taken_from_neighbours_and_from_leavers_once() -> None:
    bench = BubbleBench()
    neighbour = bench.neighbours[0]
    bench.says(neighbour, Ping(bench.name_from(neighbour), 5, 1, WATER, 0.5))
    bench.says(neighbour, Ping(None, 5, 1, WATER, 0.5))
    bench.says(neighbour, Ping(None, 5, 1, WATER, 0.5))
    bench.says(STRANGER, Ping(None, 5, 1, WATER, 0.5))
    assert bench.rejected == ["no-neighbour"] * 2
    assert bench.parts.measurement.hand_over().totals.nodes == 4.0


def test_who_was_a_neighbour_long_ago_is_a_stranger() -> None:
    bench = BubbleBench()
    neighbour = bench.neighbours[0]
    drop(bench, neighbour)
    bench.wait(30)
    bench.says(neighbour, Ping(None, 5, 1, WATER, 0.5))
    assert "no-neighbour" in bench.rejected


def test_what_no_honest_node_sends_is_refused() -> None:
    bench = BubbleBench()
    neighbour = bench.neighbours[0]
    bench.says(neighbour, Ping(bench.name_from(neighbour), 5, 1, Totals(5.0, 1.0, 1.0), 0.5))
    assert bench.rejected == ["implausible-ping"]


def test_a_ping_on_an_edge_that_we_do_not_have_ends_it() -> None:
    bench = BubbleBench()
    said = bench.says(STRANGER, Ping(EdgeName(1, 2, True), 5, 1, WATER, 0.5))
    assert said == [(STRANGER.node, EdgeClosed(EdgeName(2, 1, False)))]


def test_what_a_dead_neighbour_got_is_taken_back() -> None:
    bench = BubbleBench()
    neighbour = bench.neighbours[0]
    bench.says(neighbour, Ping(bench.name_from(neighbour), 5, 1, Totals(7.0, 42.0, 252.0), 0.5))
    bench.host.advance(5 * S_NS)  # one beat: a seventh for each
    assert bench.parts.measurement._lake.all().totals.nodes == pytest.approx(1.0)
    bench.crash(neighbour)
    assert bench.parts.measurement._lake.all().totals.nodes == pytest.approx(2.0)


def test_columns_of_applications_leave_room_for_ours() -> None:
    bench = CircleBench(Peer(1))
    for number in range(EXTRAS_MAX - 2):
        bench.host.command(bench.machine, Contribute(f"s:{number}", 1.0))
    with pytest.raises(UsageError, match="one more than"):
        bench.host.command(bench.machine, Contribute("s:more", 1.0))
    bench.stand(Peer(2), Peer(3))
    bench.wait(20)  # our own do not fail at a beat
    bench.host.command(bench.machine, Contribute("s:0", None))
    bench.host.command(bench.machine, Contribute("s:more", 1.0))


# Leaving


def test_a_leaver_hands_its_part_over_and_is_gone() -> None:
    bench = BubbleBench()
    neighbour = bench.neighbours[0]
    bench.says(neighbour, Ping(bench.name_from(neighbour), 5, 1, WATER, 0.5))
    bench.leave()
    bench.sent()
    for peer in bench.neighbours:
        assert not bench.left
        assert pings(bench) == []
        drop(bench, peer)
    [(heir, ping)] = pings(bench)
    assert heir in [peer.node for peer in bench.neighbours]
    assert (ping.round, ping.totals, ping.fish) == (5, WATER, 0.5)
    assert bench.left
    assert bench.host.notified.count(Left()) == 1
    bench.wait(60)
    assert bench.host.notified.count(Left()) == 1
    assert [e for e in bench.sent() if type(e[1]) is Ping] == []


def test_an_heir_that_is_gone_is_followed_by_another() -> None:
    bench = BubbleBench()
    bench.leave()
    bench.sent()
    for peer in bench.neighbours[1:]:
        bench.held[peer.node] = None  # they cannot be dialled again
        bench.crash(peer)
    drop(bench, bench.neighbours[0])
    for peer in bench.neighbours[1:]:
        bench.fail(peer)
    assert [heir for heir, _ in pings(bench)] == [bench.neighbours[0].node]
    assert bench.left


def test_who_has_nobody_leaves_at_once() -> None:
    bench = CircleBench()
    bench.leave()
    assert bench.left


def test_last_words_are_out_before_the_end_is_told() -> None:
    config = SearchConfig(upload_bytes_s=1000.0, upload_burst_ns=10 * S_NS, standard_bytes_s=1000.0)
    bench = BubbleBench(config)
    bench.brings(bench.neighbours[0], a_cast(ORIGIN, bytes(12_000)))  # the line is busy
    bench.leave()
    for peer in bench.neighbours:
        drop(bench, peer)
    assert not bench.left
    for _ in range(100):
        bench.host.advance(S_NS // 5)
        bench.run()
        if bench.left:
            break
    assert bench.left
    assert len(pings(bench)) == 1


# Links


def test_answers_that_did_not_leave_take_another_way() -> None:
    bench = BubbleBench()
    above, below = bench.neighbours[:2]
    cast = a_cast(ORIGIN, total=9)
    bench.brings(above, cast)
    bench.says(below, Match(cast.id, (b"a",), True))
    assert (above.node, Match(cast.id, (b"a",), True)) in bench.sent()
    bench.host.link_closed(above.node, "broken", [(0, Match(cast.id, (b"a",), True))])
    bench.run()
    assert (ORIGIN.node, Match(cast.id, (b"a",), False)) in bench.sent()


@pytest.mark.parametrize(
    ("own", "known", "dialled"),
    [
        ("ws://10.0.0.1:7700", "ws://192.168.0.1:7700", True),
        ("ws://8.8.8.8:7700", "ws://192.168.0.1:7700", False),
        ("ws://10.0.0.1:7700", "ws://8.8.8.8:7700", False),
    ],
)
def test_private_addresses_are_for_private_networks(own: str, known: str, dialled: bool) -> None:
    machine = SearchNode(ME.key, [Contact(ORIGIN.node, (known,))], Random(1), None, (own,))
    machine.handle(Started(()), 0)
    parts = machine.parts
    for links in (parts.circle.ring.links, parts.visits, parts.host_links):
        assert links.may_dial("ws://10.7.7.7:7700") == dialled
        assert links.may_dial("ws://9.9.9.9:7700")
        assert links.may_dial(known)  # the user has named it


def test_a_neighbour_cannot_end_rounds_by_pinging_all_the_time() -> None:
    bench = BubbleBench()
    neighbour = bench.neighbours[0]
    for _ in range(PINGS_BURST + 10):
        bench.says(neighbour, Ping(bench.name_from(neighbour), 5, 1, WATER, 0.5))
    assert 10 <= bench.rejected.count("rate-limited") <= 20
    bench.wait(5)
    before = len(bench.rejected)
    bench.says(neighbour, Ping(bench.name_from(neighbour), 5, 1, WATER, 0.5))
    assert len(bench.rejected) == before


def test_a_timer_or_command_that_is_not_ours_is_an_error() -> None:
    machine = SearchNode(ME.key, [], Random(1))
    machine.handle(Started(()), 0)
    with pytest.raises(UsageError, match="no timer"):
        machine.handle(TimerFired("lunch"), 0)
    with pytest.raises(UsageError, match="no command"):
        machine.handle(CommandIssued("dance"), 0)


def test_whom_the_application_knows_is_met() -> None:
    bench = CircleBench(Peer(1))
    bench.host.command(bench.machine, Meet((STRANGER.contact,)))
    assert STRANGER.contact in bench.circle.acquaintances.recent()


def test_a_beat_sets_the_next_one() -> None:
    machine = SearchNode(ME.key, [], Random(1))
    machine.handle(Started(()), 0)
    effects = machine.handle(TimerFired("beat"), S_NS)
    assert SetTimer("beat", machine.parts.beat_ns) in effects
    assert any(isinstance(effect, Send) for effect in effects)
    left = machine.handle(CommandIssued(Leave()), 2 * S_NS)
    assert Notify(Left()) in left
    assert machine.handle(TimerFired("beat"), 3 * S_NS) == [SetTimer("beat", machine.parts.beat_ns)]


def test_a_failed_edge_link_is_no_redirect() -> None:
    """Every kind of loss is taken by the part that it is for."""
    bench = BubbleBench()
    for purpose in (EDGE, "client", "guest", "user", "visit"):
        bench.host.feed(0, LinkFailed(STRANGER.node, purpose, "refused"))
    bench.run()
    assert [m for _, m in bench.sent() if type(m) is ClientRedirect] == []


def test_a_young_network_has_at_least_those_whom_we_see() -> None:
    bench = CircleBench()  # the first node of a network: one, measured
    parts = bench.machine.parts
    assert parts.totals() == Totals(1.0, 6.0, 36.0)
    for number in (7, 8, 9):
        bench.says(Peer(number), Peer(number).split(40 + number))
        location = next(edge.mine for edge in bench.ring.edges if edge.peer == Peer(number).node)
        bench.says(Peer(number), Peer(number).slave_hello(40 + number, location))
    totals = parts.totals()
    assert totals is not None
    assert totals.nodes >= 3
    assert totals.degrees == totals.nodes * parts.circle.degree
    assert parts.measurement.known == Totals(1.0, 6.0, 36.0)


@pytest.mark.parametrize(("nodes", "beat_s"), [(1.0, 1), (63.0, 1), (64.0, 5), (10_000.0, 5)])
def test_small_networks_beat_quickly(nodes: float, beat_s: int) -> None:
    machine = SearchNode(ME.key, [], Random(1))
    machine.handle(Started(()), 0)
    machine.parts.measurement.known = Totals(nodes, 6 * nodes, 36 * nodes)
    assert SetTimer("beat", beat_s * S_NS) in machine.handle(TimerFired("beat"), S_NS)
