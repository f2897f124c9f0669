"""Answers on their way back: once, within bounds, and never at somebody else's door."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.base.ids import NodeId
from shoal.base.units import KIB, S_NS
from shoal.kernel.effects import Effect, OpenLink, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.bubbles.answer_routes import Routes
from shoal.protocols.search.config import FRAME_BYTES_MAX, MATCH_ITEMS_MAX, SearchConfig
from shoal.protocols.search.links import Visits
from shoal.protocols.search.messages import Match
from shoal.protocols.search.payloads import Hit, encode_item, item_key
from tests.support.circle import Peer

ORIGIN, ABOVE, BELOW = Peer(1), Peer(2), Peer(3)
BUBBLE = bytes(range(16))
LATER_NS = 60 * S_NS


class Bench:
    """Routes whose links a test names."""

    def __init__(self, config: SearchConfig | None = None) -> None:
        self.linked: list[NodeId] = [ABOVE.node, BELOW.node]
        self.told: list[bytes] = []
        self.visits = Visits()
        self.routes = Routes(
            lambda peer: peer in self.linked or peer in self.visits,
            self.visits,
            self._hear,
            config or SearchConfig(),
        )

    def _hear(self, bubble: bytes, items: Sequence[bytes], now_ns: int) -> list[Effect]:
        self.told += items
        return []

    def passes(self, upstream: NodeId | None = ABOVE.node, bubble: bytes = BUBBLE) -> None:
        self.routes.remember(bubble, upstream, ORIGIN.record, LATER_NS)

    def answer(self, *items: bytes, bubble: bytes = BUBBLE) -> list[Effect]:
        return self.routes.received(BELOW.node, Match(bubble, items, True), 0)


def sent(effects: list[Effect]) -> list[tuple[NodeId, tuple[bytes, ...], bool]]:
    return [(e.peers[0], e.message.items, e.message.via) for e in effects if isinstance(e, Send)]


def test_answers_go_where_the_bubble_came_from() -> None:
    bench = Bench()
    bench.passes()
    assert sent(bench.answer(b"a", b"b")) == [(ABOVE.node, (b"a", b"b"), True)]


def test_who_has_a_link_to_the_origin_uses_it() -> None:
    bench = Bench()
    bench.passes()
    bench.linked.append(ORIGIN.node)
    assert sent(bench.answer(b"a")) == [(ORIGIN.node, (b"a",), False)]


def test_answers_to_our_own_bubble_are_for_us() -> None:
    bench = Bench()
    bench.passes(None)
    assert bench.answer(b"a", b"a", b"b") == []
    assert bench.told == [b"a", b"b"]


def test_the_same_answer_passes_once() -> None:
    bench = Bench()
    bench.passes()
    hit = Hit(b"document", 1.0)
    items = [encode_item(hit), encode_item(Hit(b"document", 2.0)), b"not ours", b"not ours either"]
    assert item_key(items[0]) == item_key(items[1])
    assert sent(bench.answer(*items, items[0])) == [
        (ABOVE.node, (items[0], items[2], items[3]), True)
    ]
    assert bench.answer(*items) == []


def test_what_nobody_asked_is_refused() -> None:
    bench = Bench()
    assert bench.answer(b"a") == [Rejected(BELOW.node, "no-such-bubble")]
    bench.passes()
    bench.routes.forget(BUBBLE)
    assert bench.answer(b"a") == [Rejected(BELOW.node, "no-such-bubble")]


def test_answers_after_the_end_go_nowhere() -> None:
    bench = Bench()
    bench.passes()
    assert bench.routes.answer(BUBBLE, [b"a"], LATER_NS + 1) == []
    bench.routes.expire(LATER_NS + 1)
    assert len(bench.routes) == 0


def test_the_first_way_stays_and_lives_as_long_as_the_bubble() -> None:
    bench = Bench()
    bench.passes()
    bench.routes.remember(BUBBLE, BELOW.node, ORIGIN.record, 2 * LATER_NS)
    assert sent(bench.routes.answer(BUBBLE, [b"a"], LATER_NS + 1)) == [(ABOVE.node, (b"a",), True)]


# Gaps


def test_at_a_gap_the_origin_is_dialled_once() -> None:
    bench = Bench()
    bench.passes()
    bench.linked.clear()
    assert bench.answer(b"a") == [OpenLink(ORIGIN.contact, "visit", True)]
    assert bench.answer(b"b") == []  # waits for the same link
    effects = bench.visits.opened(ORIGIN.node, 0)
    assert sent(effects) == [(ORIGIN.node, (b"a",), False), (ORIGIN.node, (b"b",), False)]
    assert sent(bench.answer(b"c")) == [(ORIGIN.node, (b"c",), False)]


def test_who_does_not_answer_is_not_dialled_again() -> None:
    bench = Bench()
    for bubble in (BUBBLE, bytes(15) + b"1", bytes(15) + b"2"):
        bench.passes(bubble=bubble)
    bench.linked.clear()
    bench.answer(b"a")
    assert bench.visits.lost(ORIGIN.node, 0) == []
    assert bench.answer(b"b") == []
    # Nor for another of its bubbles: it may not be its address.
    assert bench.answer(b"a", bubble=bytes(15) + b"1") == []


def test_answers_that_did_not_leave_take_another_way() -> None:
    bench = Bench()
    bench.passes()
    (send,) = bench.answer(b"a")
    assert isinstance(send, Send)
    bench.linked.remove(ABOVE.node)
    effects = bench.routes.unsent(ABOVE.node, send.message, 0)
    assert effects == [OpenLink(ORIGIN.contact, "visit", True)]
    assert sent(bench.visits.opened(ORIGIN.node, 0)) == [(ORIGIN.node, (b"a",), False)]


def test_answers_that_were_on_their_last_way_are_lost() -> None:
    bench = Bench()
    message = Match(BUBBLE, (b"a",), False)
    assert bench.routes.unsent(ORIGIN.node, message, 0) == []
    bench.passes()
    assert bench.routes.unsent(ORIGIN.node, message, 0) == []


# Bounds


def test_messages_are_as_full_as_they_may_be() -> None:
    bench = Bench()
    bench.passes()
    small = [bytes([number]) for number in range(MATCH_ITEMS_MAX + 1)]
    assert [len(items) for _, items, _ in sent(bench.answer(*small))] == [MATCH_ITEMS_MAX, 1]
    large = [bytes([number]) * (60 * KIB) for number in range(1, 10)]
    batches = [items for _, items, _ in sent(bench.answer(*large))]
    assert sum(map(len, batches)) == 9
    assert all(sum(map(len, items)) < FRAME_BYTES_MAX for items in batches)


def test_answers_to_one_bubble_are_bounded() -> None:
    bench = Bench(SearchConfig(answers_max=3))
    bench.passes()
    items = [bytes([number]) for number in range(5)]
    assert sent(bench.answer(*items)) == [(ABOVE.node, tuple(items[:3]), True)]
    assert bench.answer(b"more") == []


def test_and_so_are_their_bytes() -> None:
    bench = Bench(SearchConfig(answer_bytes_max=250))
    bench.passes()
    items = [bytes([number]) * 100 for number in range(1, 5)]
    assert sent(bench.answer(*items)) == [(ABOVE.node, tuple(items[:2]), True)]


def test_ways_are_bounded_the_oldest_is_forgotten() -> None:
    bench = Bench(SearchConfig(routes_max=2))
    for number in range(3):
        bench.passes(bubble=bytes(15) + bytes([number]))
    assert len(bench.routes) == 2
    assert bench.answer(b"a", bubble=bytes(16)) == [Rejected(BELOW.node, "no-such-bubble")]


@pytest.mark.parametrize("forget", [False, True])
def test_what_all_ways_remember_is_bounded(forget: bool) -> None:
    bench = Bench(SearchConfig(answers_remembered_max=5))
    for number in range(4):
        bubble = bytes(15) + bytes([number])
        bench.passes(bubble=bubble)
        bench.answer(b"a", b"b", bubble=bubble)
        if forget:
            bench.routes.forget(bubble)
    assert len(bench.routes) == (0 if forget else 2)
