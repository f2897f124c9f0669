"""Gaps: noticed, asked for, filled by neighbours, and given up in the end."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.records import GapAbandoned, Rejected
from shoal.protocols.streams.chains import ChainTable
from shoal.protocols.streams.config import HEADS_MAX, NodeConfig
from shoal.protocols.streams.duplicates import Number
from shoal.protocols.streams.messages import Fill, FillDone, Flood, Head, Heads, Position
from shoal.protocols.streams.ordering import Delivery
from shoal.protocols.streams.recent import RecentMessages
from shoal.protocols.streams.repair import Repair
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    NOW_MS,
    NOW_NS,
    STREAM,
    message_id,
    sent,
)

CHAIN = (CAROL, 0, "c")


class Shop:
    """Repair of one stream; Alice and Bob are neighbours, Carol publishes."""

    def __init__(self, config: NodeConfig | None = None) -> None:
        self.config = config or NodeConfig()
        self.table = ChainTable(self.config, NOW_MS)
        self.recent = RecentMessages(self.config)
        self.repair = Repair(STREAM, self.table, self.recent, self.config)
        self.now_ns = NOW_NS

    def take(self, number: int, previous: int | None) -> list[Effect]:
        """Carol's message of so many milliseconds from now was taken."""
        id = message_id(timestamp_ms=NOW_MS + number, publisher=CAROL)
        self.table.mark(id, None if previous is None else Position(NOW_MS + previous, 0))
        self.recent.add(id, f"message {number}".encode(), self.now_ns)
        return self.repair.seen(CHAIN, self.now_ns)

    def tick(self, after_ns: int, *active: NodeId) -> tuple[list[Effect], list[Delivery]]:
        self.now_ns += after_ns
        return self.repair.tick(active or (ALICE, BOB), self.now_ns)

    def heads(self, number: int, peer: NodeId = ALICE) -> list[Effect]:
        head = Head(CAROL, 0, "c", Position(NOW_MS + number, 0))
        return self.repair.handle(peer, Heads(STREAM, (head,)), self.now_ns)


def fill(after: Number, upto: Number) -> Fill:
    return Fill(STREAM, CAROL, 0, "c", Position(*after), Position(*upto))


def done(found: int) -> FillDone:
    return FillDone(STREAM, CAROL, 0, "c", found)


def broken_shop(config: NodeConfig | None = None) -> Shop:
    """Messages 1 and 3 are there, 2 is not, and it has been waited for."""
    shop = Shop(config)
    shop.take(1, None)
    assert shop.take(3, 2) == [SetTimer(("repair", STREAM), shop.config.gap_wait_ns)]
    return shop


GAP = fill((NOW_MS + 1, 0), (NOW_MS + 2, 0))


def test_a_chain_without_gaps_needs_nothing() -> None:
    shop = Shop()
    assert shop.take(1, None) == shop.take(2, 1) == shop.take(3, 2) == []


def test_a_gap_waits_a_moment_and_is_then_asked_for() -> None:
    shop = broken_shop()
    early, _ = shop.tick(shop.config.gap_wait_ns - 1)
    assert sent(early) == []
    asked, _ = shop.tick(1)
    assert [message for message, _ in sent(asked)] == [GAP]


def test_a_gap_that_closed_by_itself_is_forgotten() -> None:
    shop = broken_shop()
    shop.take(2, 1)
    assert shop.tick(shop.config.gap_wait_ns) == ([], [])


def test_one_neighbour_after_the_other_is_asked() -> None:
    shop = broken_shop()
    peers = []
    for _ in range(4):
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        peers += [to for _, to in sent(effects, Fill)]
    assert sorted(peers) == [(ALICE,), (ALICE,), (BOB,), (BOB,)]
    assert peers[0] != peers[1]


def test_an_answer_that_did_not_help_lets_the_next_be_asked_at_once() -> None:
    shop = broken_shop()
    asked, _ = shop.tick(shop.config.gap_wait_ns)
    [(_, (peer,))] = sent(asked, Fill)
    shop.repair.handle(peer, done(0), shop.now_ns)
    again, _ = shop.tick(1 * MS_NS)
    [(_, (other,))] = sent(again, Fill)
    assert other != peer


def test_an_answer_that_nobody_asked_for_is_counted() -> None:
    shop = broken_shop()
    assert shop.repair.handle(ALICE, done(1), NOW_NS) == [Rejected(ALICE, "unasked-fill")]


def test_after_so_many_tries_the_gap_is_given_up_and_what_waited_is_delivered() -> None:
    shop = broken_shop(NodeConfig(fill_tries=2))
    for _ in range(2):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        assert sent(asked, Fill)
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]
    assert shop.table.gaps(CHAIN) == []
    assert shop.tick(shop.config.fill_wait_ns) == ([], [])


def test_heads_tell_of_a_last_message_that_was_missed() -> None:
    shop = Shop()
    shop.take(1, None)
    assert shop.heads(1) == []
    assert shop.heads(4)
    effects, _ = shop.tick(shop.config.gap_wait_ns)
    assert sent(effects)[0][0] == fill((NOW_MS + 1, 0), (NOW_MS + 4, 0))


def test_heads_tell_of_a_chain_that_was_missed_altogether() -> None:
    shop = Shop()
    shop.heads(4)
    effects, _ = shop.tick(shop.config.gap_wait_ns)
    assert sent(effects)[0][0].upto == Position(NOW_MS + 4, 0)


def test_heads_from_before_our_time_mean_nothing() -> None:
    assert Shop().heads(-1) == []


def test_a_neighbour_gets_what_we_have_of_a_range_and_a_word_at_the_end() -> None:
    shop = Shop()
    for number in range(1, 6):
        shop.take(number, number - 1 or None)
    effects = shop.repair.handle(BOB, fill((NOW_MS + 1, 0), (NOW_MS + 3, 0)), NOW_NS)
    bodies = [message.signed for message, to in sent(effects, Flood) if to == (BOB,)]
    assert bodies == [b"message 2", b"message 3"]
    assert effects[-1] == Send(done(2), (BOB,))


def test_an_answer_is_bounded_in_bytes() -> None:
    shop = Shop(NodeConfig(fill_bytes_max=20))
    for number in range(1, 6):
        shop.take(number, number - 1 or None)
    effects = shop.repair.handle(BOB, fill((0, 0), (NOW_MS + 9, 0)), NOW_NS)
    assert len(sent(effects, Flood)) == 2


def test_a_neighbour_cannot_ask_without_end() -> None:
    shop = Shop(NodeConfig(fill_burst=3))
    answers = [shop.repair.handle(BOB, GAP, NOW_NS) for _ in range(4)]
    assert answers[-1] == [Rejected(BOB, "too-many-fills")]
    assert answers[0] == [Send(done(0), (BOB,))]


def test_what_is_kept_for_neighbours_is_bounded_in_bytes_and_age() -> None:
    recent = RecentMessages(NodeConfig(recent_bytes_max=100, recent_ns=1000))
    for number in range(10):
        recent.add(message_id(timestamp_ms=number, publisher=CAROL), bytes(30), NOW_NS)
    chain = recent.heads(0, NOW_NS + 1)[0][0]
    assert len(recent.between(chain, (-1, 0), (99, 0))) == 3
    recent.add(message_id(timestamp_ms=50, publisher=CAROL), bytes(30), NOW_NS + 5000)
    assert len(recent.between(chain, (-1, 0), (99, 0))) == 1


def test_heads_name_chains_with_news_and_no_more_than_fit() -> None:
    recent = RecentMessages(NodeConfig())
    for number in range(HEADS_MAX + 10):
        recent.add(message_id(chain=f"c{number}"), b"x", NOW_NS + number)
    after_ns = NOW_NS + 2 * HEADS_MAX
    assert len(recent.heads(0, after_ns)) == HEADS_MAX
    assert len(recent.heads(NOW_NS + HEADS_MAX, after_ns)) == 10
    assert len(recent.heads(NOW_NS + HEADS_MAX, NOW_NS + HEADS_MAX + 4)) == 4


def test_a_chain_that_goes_quiet_is_told_once() -> None:
    shop = Shop()
    heads_ns = shop.config.heads_ns
    shop.take(1, None)
    told = [shop.repair.tell_quiet((ALICE,), NOW_NS + n * heads_ns // 2) for n in range(8)]
    assert [len(sent(effects, Heads)) for effects in told].count(1) == 2  # two timers a period
    assert sent(shop.repair.greet((BOB,), NOW_NS), Heads)
