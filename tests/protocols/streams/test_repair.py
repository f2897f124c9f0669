"""Gaps: noticed, asked for, filled by neighbours, and given up in the end."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.records import GapAbandoned, Rejected
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.chain_table import WAITING_BYTES_MIN, Delivery
from shoal.protocols.streams.messages import Fill, Flood, Heads
from tests.support.repair_shop import CHAIN, FEW, GAP, Shop, broken_shop, done, fill
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    ME,
    NOW_MS,
    NOW_NS,
    STREAM,
    message_id,
    node,
    placed,
    sent,
)


def test_a_chain_without_gaps_needs_nothing() -> None:
    shop = Shop()
    assert shop.take(1, None) == shop.take(2, 1) == shop.take(3, 2) == []


def test_a_gap_waits_a_moment_and_is_then_asked_for() -> None:
    shop = broken_shop()
    early, _ = shop.tick(shop.config.gap_wait_ns - 1)
    assert sent(early) == []
    asked, _ = shop.tick(1)
    assert [message for message, _ in sent(asked)] == [GAP]


def test_what_passed_before_we_had_a_neighbour_is_asked_for_at_once() -> None:
    now = [SetTimer(("repair", STREAM), 0)]
    shop = Shop()
    assert shop.take(5, 4) == now, "no other path brings what came before"
    asked, _ = shop.tick(0)
    [(message, _)] = sent(asked, Fill)
    assert message.upto == Position(NOW_MS + 4, 0)
    other = Shop()
    assert other.heads(4) == now
    asked, _ = other.tick(0)
    assert sent(asked, Fill)


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


def test_every_neighbour_is_asked_for_every_chain_however_many_are_broken() -> None:
    for chains in range(1, 7):
        shop = Shop()
        heads = tuple(((CAROL, 0, f"c{n}"), (NOW_MS + 9, 0)) for n in range(chains))
        shop.repair.handle(ALICE, Heads(STREAM, heads), shop.now_ns)
        asked: dict[str, set[NodeId]] = {}
        for _ in range(3):
            effects, _ = shop.tick(shop.config.fill_wait_ns, ALICE, BOB, CAROL)
            for message, (peer,) in sent(effects, Fill):
                asked.setdefault(message.chain, set()).add(peer)
        assert [len(peers) for peers in asked.values()] == [3] * chains


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


def test_a_gap_is_not_given_up_while_what_is_missing_is_here_and_unchecked() -> None:
    shop = broken_shop(NodeConfig(fill_tries=2))
    given_up = GapAbandoned(STREAM, CAROL, "c")
    other = [(CHAIN, (NOW_MS + 9, 0)), ((CAROL, 0, "d"), (NOW_MS + 2, 0))]
    waits = [*other, (CHAIN, (NOW_MS + 2, 0))]
    for _ in range(9):
        shop.now_ns += shop.config.fill_wait_ns
        effects, _ = shop.repair.tick((ALICE, BOB), shop.now_ns, lambda: waits)
        assert given_up not in effects
    effects, _ = shop.repair.tick((ALICE, BOB), shop.now_ns, lambda: other)
    assert given_up in effects, "it was forged"


def test_what_is_here_and_never_judged_does_not_hold_up_a_chain_for_ever() -> None:
    shop = broken_shop(NodeConfig(fill_tries=1))
    begin_ns, effects = shop.now_ns, list[Effect]()
    waits = [(CHAIN, (NOW_MS + 2, 0))]
    while GapAbandoned(STREAM, CAROL, "c") not in effects:
        shop.now_ns += 10 * S_NS
        effects, _ = shop.repair.tick((ALICE, BOB), shop.now_ns, lambda: waits)
    assert 0 <= shop.now_ns - begin_ns - shop.config.freshness_ns <= 30 * S_NS


def test_a_neighbour_that_says_to_have_sent_it_and_has_not_is_believed_so_often() -> None:
    shop = broken_shop(NodeConfig(fill_tries=3))
    for _ in range(3):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        [(_, (peer,))] = sent(asked, Fill)
        shop.repair.handle(peer, done(1), shop.now_ns)
    effects, _ = shop.tick(shop.config.repair_tick_ns)
    assert effects[0] == GapAbandoned(STREAM, CAROL, "c")


def test_each_step_forward_begins_anew() -> None:
    shop = Shop(NodeConfig(fill_tries=2))
    shop.take(1, None)
    shop.take(9, 8)
    for number in (2, 3, 4):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        assert sent(asked, Fill)
        shop.take(number, number - 1)
    for _ in range(2):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        [(message, _)] = sent(asked, Fill)
        assert message.after == Position(NOW_MS + 4, 0)
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects[0] == GapAbandoned(STREAM, CAROL, "c")


def test_a_gap_that_too_much_waits_behind_is_given_up_and_said_to_be_one() -> None:
    shop = Shop(NodeConfig(waiting_bytes_per_chain_max=3 * WAITING_BYTES_MIN + 100))
    shop.take(1, None)
    given: list[Delivery] = []
    effects: list[Effect] = []
    for number in (3, 4, 5, 6):
        id = message_id(timestamp_ms=NOW_MS + number, publisher=CAROL)
        message = placed(id, Position(NOW_MS + number - 1, 0), b"message")
        assert not given
        assert not effects
        shop.keep(message)
        assert shop.table.ready(Delivery(message, 1, 0)) == []
        effects, given = shop.repair.relieve(CHAIN)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]
    assert [(d.message.number[0] - NOW_MS, d.gap_before) for d in given] == [
        (3, True),
        (4, False),
        (5, False),
        (6, False),
    ]
    assert shop.table.gaps(CHAIN) == [], "nobody is asked for it any more"


def test_what_waits_behind_an_old_copy_is_let_go_too() -> None:
    """Two copies from long before our time, and then what is new: nothing is held for ever."""
    config = NodeConfig(recent_ns=50 * MS_NS, waiting_bytes_per_chain_max=2 * WAITING_BYTES_MIN)
    shop = Shop(config)
    given: list[int] = []
    for number, previous in ((-90, -91), (-70, -71), (5, 4), (6, 5)):
        id = message_id(timestamp_ms=NOW_MS + number, publisher=CAROL)
        message = placed(id, Position(NOW_MS + previous, 0), b"message")
        shop.keep(message)
        ready = shop.table.ready(Delivery(message, 1, 0)) + shop.repair.relieve(CHAIN)[1]
        given += [each.message.number[0] - NOW_MS for each in ready]
    assert given == [-90, -70, 5, 6]


def waits(shop: Shop, publisher: NodeId, chain: str = "c") -> bool:
    """A message behind a gap, of a chain of its own: whether it may wait."""
    id = message_id(chain=chain, timestamp_ms=NOW_MS + 5, publisher=publisher)
    message = placed(id, Position(NOW_MS + 4, 0), b"message")
    shop.keep(message)
    assert shop.table.ready(Delivery(message, 1, 0)) == []
    return not shop.repair.relieve(message.chain)[1]


def test_what_waits_in_all_chains_of_a_stream_is_bounded_too() -> None:
    shop = Shop(NodeConfig(waiting_bytes_max=3 * WAITING_BYTES_MIN + 100))
    publishers = [node(number) for number in range(50, 56)]
    told = [waits(shop, publisher) for publisher in publishers]
    assert told == [True, True, True, False, False, False]


def test_one_publisher_may_take_half_of_what_may_wait() -> None:
    shop = Shop(NodeConfig(waiting_bytes_max=4 * WAITING_BYTES_MIN + 100))
    told = [waits(shop, CAROL, f"c{number}") for number in range(4)]
    assert told == [True, True, False, False]
    assert waits(shop, DAVE), "others have the other half"


def test_a_new_neighbour_is_asked_for_what_the_others_did_not_have() -> None:
    shop = broken_shop(FEW, ME)
    for _ in range(FEW.fill_tries):
        assert sent(shop.tick(shop.config.fill_wait_ns)[0], Fill)
    assert not sent(shop.tick(shop.config.fill_wait_ns)[0], Fill)
    shop.repair.greet((CAROL,), shop.now_ns)
    asked = [sent(shop.tick(shop.config.fill_wait_ns, CAROL)[0], Fill) for _ in range(3)]
    assert [bool(fills) for fills in asked] == [True, True, False]


def test_neighbours_that_come_and_go_do_not_keep_a_gap_open() -> None:
    shop = broken_shop(FEW, ME)
    waited_ns = 0
    effects: list[Effect] = []
    while GapAbandoned(STREAM, CAROL, "c") not in effects:
        shop.repair.greet((CAROL,), shop.now_ns)
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        waited_ns += shop.config.fill_wait_ns
        assert waited_ns < 2 * shop.config.storage_wait_ns


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
    shop = Shop(NodeConfig(recent_bytes_max=100, recent_ns=S_NS))
    for number in range(10):
        shop.keep(placed(message_id(timestamp_ms=number, publisher=CAROL), signed=bytes(30)))
    assert len(shop.recent.between(CHAIN, (-1, 0), (99, 0))) == 3
    shop.now_ns += 2 * S_NS
    shop.keep(placed(message_id(timestamp_ms=50, publisher=CAROL), signed=bytes(30)))
    assert len(shop.recent.between(CHAIN, (-1, 0), (99, 0))) == 1
