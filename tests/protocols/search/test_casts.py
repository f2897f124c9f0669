"""Bubbles that pass a node: what is refused, divided, sent on as it is, and sent again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from shoal.base.units import KIB, S_NS
from shoal.kernel.effects import Send
from shoal.kernel.inputs import SendQueueHigh, SendQueueLow
from shoal.protocols.search.bubbles.bubble_size import size_limit
from shoal.protocols.search.bubbles.seen_bubbles import COLLISIONS_MAX
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import BubbleCast, ClientHello, EdgeClosed, EdgeName
from shoal.protocols.search.payloads import Search
from shoal.protocols.search.spaces import DocumentSpace
from tests.support.bubbles import TOTALS, BubbleBench, a_cast
from tests.support.circle import Peer

ORIGIN, STRANGER = Peer(50), Peer(51)


def parts_of(sent: list[Any]) -> list[tuple[int, int, int]]:
    return [(m.size, m.start, m.end) for _, m in sent if type(m) is BubbleCast]


def test_a_part_is_handled_and_divided() -> None:
    bench = BubbleBench()
    bringer = bench.neighbours[0]
    sent = bench.brings(bringer, a_cast(ORIGIN, total=9))
    assert parts_of(sent) == [(4, 0, 4), (4, 0, 4)]
    assert bench.steps == ["handled"]
    peers = [peer for peer, _ in sent]
    assert bringer.node not in peers
    assert len(set(peers)) == 2


def test_the_slice_of_the_worked_example() -> None:
    bench = BubbleBench()
    sent = bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9, start=3, end=6))
    assert sorted(parts_of(sent)) == [(4, 0, 1), (4, 2, 4)]
    assert bench.steps == []  # position 0 was handled with the slice before


def test_the_next_slice_takes_the_same_ways() -> None:
    bench = BubbleBench()
    cast = a_cast(ORIGIN, total=31, end=15)
    first = bench.brings(bench.neighbours[0], cast)
    again = BubbleCast(None, 31, 31, 15, 31, cast.kind, cast.header, cast.payload)
    second = bench.brings(bench.neighbours[0], again)
    assert len({peer for peer, _ in first + second}) == 2
    assert sum(end - start for _, start, end in parts_of(first + second)) == 30
    assert bench.steps == ["handled"]


def test_a_collision_goes_on_as_it_is_to_somebody_else() -> None:
    bench = BubbleBench()
    cast = a_cast(ORIGIN, total=9)
    had = [bench.neighbours[0].node, *(peer for peer, _ in bench.brings(bench.neighbours[0], cast))]
    second = next(peer for peer in bench.neighbours if peer.node not in had)
    sent = bench.brings(second, cast)
    assert parts_of(sent) == [(9, 0, 9)]
    assert sent[0][0] not in (second.node, *had[1:])
    assert bench.steps == ["handled", "collision"]


def test_collisions_end() -> None:
    bench = BubbleBench()
    cast = a_cast(ORIGIN, total=9)
    for turn in range(COLLISIONS_MAX + 3):
        bench.brings(bench.neighbours[turn % 2], cast)
    assert Counter(bench.steps) == {"handled": 1, "collision": COLLISIONS_MAX, "dropped": 2}


def test_bubbles_about_the_same_thing_take_the_same_ways() -> None:
    """So a new version of a document finds those who have the old one."""
    bench = BubbleBench()
    bubbles = bench.parts.bubbles

    def ways(about: bytes, text: str) -> list[Any]:
        bubble = bubbles.make(DocumentSpace(), Search(text, 1), 9, S_NS, 0, about)
        return [effect.peers for effect in bubbles.cast(bubble, 9, 0) if type(effect) is Send]

    assert all(ways(b"same", str(turn)) == ways(b"same", "first") for turn in range(20))
    assert len({str(ways(b"", "same")) for _ in range(20)}) > 1


# Refused


@pytest.mark.parametrize(
    ("cast", "reason"),
    [
        (a_cast(ORIGIN, expires_ns=0), "expired"),
        (a_cast(ORIGIN, expires_ns=11 * 60 * S_NS), "lives-too-long"),
        (a_cast(ORIGIN, total=size_limit(TOTALS) + 1), "bubble-too-large"),
    ],
)
def test_bubbles_that_nobody_should_send_are_refused(cast: BubbleCast, reason: str) -> None:
    bench = BubbleBench()
    assert bench.brings(bench.neighbours[0], cast) == []
    assert bench.rejected == [reason]


def test_a_bad_signature_is_refused_and_costs_the_named_origin_nothing() -> None:
    """Whoever writes somebody's name into headers must not silence that one."""
    bench = BubbleBench(SearchConfig(origin_burst=2, origin_refill_ns=S_NS))
    for _ in range(5):
        assert bench.brings(bench.neighbours[0], a_cast(ORIGIN), valid=False) == []
    assert bench.rejected == ["bad-signature"] * 5
    assert bench.brings(bench.neighbours[0], a_cast(ORIGIN)) != []


def test_an_origin_has_a_budget() -> None:
    bench = BubbleBench(SearchConfig(origin_burst=2, origin_refill_ns=S_NS))
    for _ in range(3):
        bench.brings(bench.neighbours[0], a_cast(ORIGIN))
    assert bench.rejected == ["over-budget"]
    assert bench.brings(bench.neighbours[0], a_cast(STRANGER)) != []
    bench.wait(1)
    bench.sent()
    assert bench.brings(bench.neighbours[0], a_cast(ORIGIN)) != []


def test_collisions_and_slices_cost_no_budget() -> None:
    bench = BubbleBench(SearchConfig(origin_burst=1, origin_refill_ns=S_NS))
    cast = a_cast(ORIGIN, total=9)
    for peer in bench.neighbours:
        bench.brings(peer, cast)
    assert bench.rejected == []


def test_a_large_bubble_costs_more() -> None:
    bench = BubbleBench(SearchConfig(origin_burst=20, origin_refill_ns=S_NS))
    for _ in range(2):
        bench.brings(bench.neighbours[0], a_cast(ORIGIN, bytes(60 * KIB)))
    assert bench.rejected == ["over-budget"]


def test_a_peer_can_bring_so_much() -> None:
    bench = BubbleBench(SearchConfig(bringer_burst=2, bringer_refill_ns=S_NS))
    bringer = bench.neighbours[0]
    for _ in range(3):
        bench.brings(bringer, a_cast(ORIGIN))
    assert bench.rejected == ["rate-limited"]
    assert bench.brings(bench.neighbours[1], a_cast(ORIGIN)) != []


def test_no_more_checks_than_can_be_done() -> None:
    bench = BubbleBench(SearchConfig(checks_max=1))
    bringer = bench.neighbours[0]
    for cast in (a_cast(ORIGIN), a_cast(ORIGIN)):
        part = msgspec.structs.replace(cast, edge=bench.name_from(bringer))
        bench.host.received(bringer.node, part)
    assert bench.rejected == ["busy"]


def test_a_bubble_on_an_edge_that_we_do_not_have_ends_it() -> None:
    bench = BubbleBench()
    name = EdgeName(123, 456, True)
    said = bench.says(STRANGER, msgspec.structs.replace(a_cast(ORIGIN), edge=name))
    assert said == [(STRANGER.node, EdgeClosed(EdgeName(456, 123, False)))]


def test_who_is_no_client_casts_nothing() -> None:
    bench = BubbleBench()
    bench.says(STRANGER, a_cast(STRANGER))
    assert bench.rejected == ["no-client"]
    assert bench.casts() == []


def test_a_client_casts_its_own_bubbles_only() -> None:
    bench = BubbleBench()
    bench.says(STRANGER, ClientHello(STRANGER.record))
    bench.says(STRANGER, a_cast(ORIGIN))
    assert bench.rejected == ["not-its-bubble"]
    assert bench.casts() == []
    bench.says(STRANGER, a_cast(STRANGER))
    assert len(bench.casts()) == 2


# Neighbours that are gone, or cannot keep up


def test_what_a_dead_neighbour_was_sent_goes_to_another() -> None:
    bench = BubbleBench()
    sent = bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9))
    dead = next(peer for peer in bench.neighbours if peer.node == sent[0][0])
    bench.crash(dead)
    again = bench.casts()
    assert parts_of(again) == parts_of(sent[:1])
    assert again[0][0] not in (dead.node, sent[1][0])
    assert again[0][1].edge != sent[0][1].edge


def test_what_was_rerouted_is_rerouted_again() -> None:
    bench = BubbleBench()
    sent = bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9))
    holder = sent[0][0]
    gone = []
    for _ in range(3):
        gone.append(holder)
        bench.crash(next(peer for peer in bench.neighbours if peer.node == holder))
        [(holder, _part)] = [e for e in bench.casts() if (e[1].size, e[1].end) == (4, 4)][:1]
        assert holder not in gone


def test_what_has_arrived_is_not_sent_again() -> None:
    bench = BubbleBench()
    sent = bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9))
    bench.wait(26)
    bench.sent()
    bench.crash(next(peer for peer in bench.neighbours if peer.node == sent[0][0]))
    assert bench.casts() == []


def test_a_bubble_that_is_over_is_not_sent_again() -> None:
    bench = BubbleBench()
    sent = bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9, expires_ns=3 * S_NS))
    bench.wait(4)
    bench.sent()
    bench.crash(next(peer for peer in bench.neighbours if peer.node == sent[0][0]))
    assert bench.casts() == []


def test_a_silent_neighbour_loses_what_it_had() -> None:
    bench = BubbleBench()
    bench.wait(15, alive=False)
    sent = bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9))
    bench.wait(12, alive=False)
    assert len(bench.casts()) >= len(parts_of(sent))


def test_who_cannot_keep_up_gets_nothing() -> None:
    bench = BubbleBench()
    stuck = bench.neighbours[1:5]
    for peer in stuck:
        bench.host.feed(0, SendQueueHigh(peer.node))
    sent = bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9))
    assert {peer for peer, _ in sent} == {bench.neighbours[5].node}
    for peer in stuck:
        bench.host.feed(0, SendQueueLow(peer.node))
    assert len({peer for peer, _ in bench.brings(bench.neighbours[0], a_cast(ORIGIN))}) == 2


def test_if_nobody_can_keep_up_it_is_a_congestion() -> None:
    bench = BubbleBench()
    for peer in bench.neighbours:
        bench.host.feed(0, SendQueueHigh(peer.node))
    assert bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=9)) == []
    assert bench.steps == ["handled", "congested", "congested"]


def test_small_parts_are_given_up_in_a_congestion() -> None:
    config = SearchConfig(upload_bytes_s=10_000.0, standard_bytes_s=10_000.0)
    bench = BubbleBench(config)
    bench.host.advance(10 * S_NS)
    bench.hear()
    bench.brings(bench.neighbours[0], a_cast(ORIGIN, bytes(15_000), total=1000))
    bench.brings(bench.neighbours[0], a_cast(ORIGIN, total=3, size=3))
    assert bench.steps[-2:] == ["congested", "congested"]


def test_time_and_memory_are_bounded() -> None:
    bench = BubbleBench(SearchConfig(bubbles_max=10, routes_max=5))
    for _ in range(30):
        bench.brings(bench.neighbours[0], a_cast(ORIGIN, expires_ns=5 * S_NS))
    assert len(bench.parts.casts._seen) == 10
    assert len(bench.parts.routes) == 5
    bench.wait(12 * 60)
    assert len(bench.parts.casts._seen) == len(bench.parts.routes) == 0
    assert len(bench.parts.casts._sent) == 0


def test_who_casts_is_somebody_to_ask_when_all_neighbours_are_dead() -> None:
    bench = BubbleBench()
    known = bench.circle.acquaintances
    bench.brings(bench.neighbours[0], a_cast(ORIGIN), valid=False)
    assert ORIGIN.record.contact not in known.recent()
    bench.brings(bench.neighbours[0], a_cast(ORIGIN))
    assert known.recent()[0] == ORIGIN.record.contact
