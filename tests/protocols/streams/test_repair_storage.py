"""Gaps that neighbours cannot fill: when storage is asked, and what its answers are worth."""

from __future__ import annotations

import msgspec
import pytest

from shoal.base.ids import NodeId
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, SetTimer
from shoal.kernel.records import GapAbandoned, GapFound, Rejected
from shoal.protocols.streams.commands import FillFromStorage
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.chain_table import Delivery
from shoal.protocols.streams.messages import Fill
from tests.support.repair_shop import CHAIN, FEW, GAP, Shop, broken_shop, done
from tests.support.streams import ALICE, CAROL, ME, NOW_MS, STREAM, message_id, placed, sent

STORED = FillFromStorage(STREAM, CAROL, 0, "c", GAP.after, GAP.upto)


def test_storage_is_asked_once_when_neighbours_have_not_helped() -> None:
    shop = broken_shop(FEW, ME)
    kinds = []
    for _ in range(4):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        kinds.append([type(message) for message, _ in sent(asked)])
        assert sent(asked, FillFromStorage) in ([], [(STORED, (ME,))])
    assert kinds == [[Fill], [Fill], [FillFromStorage, Fill], [Fill]]


def test_without_neighbours_storage_is_asked_at_once() -> None:
    shop = broken_shop(FEW, ME)
    shop.now_ns += shop.config.gap_wait_ns
    effects, _ = shop.repair.tick((), shop.now_ns)
    assert sent(effects) == [(STORED, (ME,))]
    assert GapFound(STREAM, CAROL, "c") in effects


def exhausted_shop() -> Shop:
    """All neighbours were asked in vain, and storage was asked meanwhile."""
    shop = broken_shop(FEW, ME)
    for _ in range(4):
        shop.tick(shop.config.fill_wait_ns)
    return shop


def test_a_gap_is_given_up_when_storage_has_nothing_either() -> None:
    shop = exhausted_shop()
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [SetTimer(("repair", STREAM), shop.config.repair_tick_ns)], "it waits"
    assert shop.storage_says() == [SetTimer(("repair", STREAM), shop.config.repair_tick_ns)]
    effects, _ = shop.tick(shop.config.repair_tick_ns)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]
    assert shop.storage_says() == [], "nobody waits for it any more"


def test_a_gap_is_given_up_when_storage_takes_too_long() -> None:
    shop = exhausted_shop()  # storage was asked with the third of four questions
    effects, _ = shop.tick(shop.config.storage_wait_ns - FEW.fill_wait_ns - 1)
    assert GapAbandoned(STREAM, CAROL, "c") not in effects
    effects, _ = shop.tick(1)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]


def test_storage_is_asked_again_while_there_is_time_if_nobody_answered() -> None:
    shop = exhausted_shop()
    begin_ns = shop.now_ns - FEW.fill_wait_ns
    asked = 0
    while True:
        shop.nobody_answers()
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        if GapAbandoned(STREAM, CAROL, "c") in effects:
            break
        asked += len(sent(effects, FillFromStorage))
    assert shop.now_ns - begin_ns == shop.config.storage_wait_ns
    assert asked == shop.config.storage_wait_ns // shop.config.fill_wait_ns - 2


def test_what_storage_found_is_waited_for_until_it_was_checked() -> None:
    shop = exhausted_shop()
    shop.storage_says(b"message 2")
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [SetTimer(("repair", STREAM), shop.config.repair_tick_ns)]
    shop.take(2, 1)
    assert shop.tick(shop.config.repair_tick_ns) == ([], [])


def test_storage_is_asked_again_for_the_rest_of_what_it_had() -> None:
    shop = Shop(FEW, ME)
    shop.take(1, None)
    shop.take(9, 8)
    shop.now_ns += shop.config.gap_wait_ns
    for number in (1, 2, 3):
        effects, _ = shop.repair.tick((), shop.now_ns)
        [(message, _)] = sent(effects, FillFromStorage)
        assert message.after == Position(NOW_MS + number, 0)
        shop.storage_says(b"the next one")
        shop.take(number + 1, number)


def asked_of(effects: list[Effect]) -> list[type]:
    return [type(message) for message, _ in sent(effects)]


def given_shop() -> tuple[Shop, FillFromStorage]:
    """Messages 2 to 8 are missing, neighbours had none of them, and storage was asked."""
    shop = Shop(FEW, ME)
    shop.take(1, None)
    shop.take(9, 8)
    while True:
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        for gap, _ in sent(effects, FillFromStorage):
            return shop, gap


def test_while_storage_gives_what_neighbours_lack_it_alone_is_asked_and_at_once() -> None:
    shop, gap = given_shop()
    for number in (2, 4, 6):
        shop.storage_gave(gap, last=number + 1)
        shop.take(number, number - 1)
        effects, _ = shop.tick(shop.config.repair_tick_ns)
        assert asked_of(effects) == [], "the rest of the page is being checked"
        assert shop.take(number + 1, number) == [SetTimer(("repair", STREAM), 0)]
        effects, _ = shop.tick(0)
        assert asked_of(effects) == [FillFromStorage]
        [(gap, _)] = sent(effects, FillFromStorage)
        assert gap.after == Position(NOW_MS + number + 1, 0)
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        assert asked_of(effects) == [], "its answer is on the way"


def test_if_storage_has_no_more_all_are_asked_for_the_rest_and_it_is_given_up() -> None:
    shop, gap = given_shop()
    shop.storage_gave(gap, last=2)
    shop.take(2, 1)
    effects, _ = shop.tick(0)
    [(gap, _)] = sent(effects, FillFromStorage)
    shop.storage_had_nothing_of(gap)
    kinds = [asked_of(shop.tick(shop.config.fill_wait_ns)[0]) for _ in range(2)]
    assert kinds == [[Fill], [Fill]]
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]


def test_what_storage_gives_and_is_not_taken_does_not_keep_a_gap_open() -> None:
    shop, gap = given_shop()
    shop.storage_gave(gap, last=5)
    begin_ns = shop.now_ns
    effects: list[Effect] = []
    while GapAbandoned(STREAM, CAROL, "c") not in effects:
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        for gap, _ in sent(effects, FillFromStorage):
            shop.storage_gave(gap, last=5)
        assert shop.now_ns - begin_ns < 2 * shop.config.storage_wait_ns


def test_what_storage_says_of_one_gap_is_not_taken_for_the_next() -> None:
    shop = Shop(node=ME)
    shop.take(1, 0)
    shop.take(3, 2)
    shop.now_ns += shop.config.gap_wait_ns
    effects, _ = shop.repair.tick((), shop.now_ns)
    [(first, _)] = sent(effects, FillFromStorage)
    shop.take(2, 1)  # it came over another path, while storage was asked
    shop.take(6, 5)
    shop.now_ns += shop.config.gap_wait_ns
    effects, _ = shop.repair.tick((), shop.now_ns)
    [(second, _)] = sent(effects, FillFromStorage)
    shop.storage_had_nothing_of(first)
    effects, _ = shop.repair.tick((), shop.now_ns + shop.config.repair_tick_ns)
    assert GapAbandoned(STREAM, CAROL, "c") not in effects, "storage was not heard yet"
    shop.storage_had_nothing_of(second)
    effects, _ = shop.repair.tick((), shop.now_ns + shop.config.repair_tick_ns)
    assert GapAbandoned(STREAM, CAROL, "c") not in effects, "a neighbour may come"
    effects, _ = shop.repair.tick((), shop.now_ns + shop.config.storage_wait_ns)
    assert GapAbandoned(STREAM, CAROL, "c") in effects


@pytest.mark.parametrize("node", [ME, None])
def test_who_comes_after_storage_had_nothing_is_asked_all_the_same(node: NodeId | None) -> None:
    shop = broken_shop(FEW, node)
    for _ in range(20):
        shop.now_ns += shop.config.repair_tick_ns
        effects, _ = shop.repair.tick((), shop.now_ns)
        for gap, _ in sent(effects, FillFromStorage):
            shop.storage_had_nothing_of(gap)
        assert not abandoned(effects)
    shop.repair.greet((ALICE,), shop.now_ns)
    effects, _ = shop.tick(shop.config.repair_tick_ns, ALICE)
    assert [type(message) for message, _ in sent(effects)] == [Fill]
    shop.take(2, 1)
    assert shop.table.gaps(CHAIN) == []


# Several gaps that nobody can fill


def torn_shop(gaps: int, config: NodeConfig = FEW) -> Shop:
    """Every second message of a chain is missing."""
    shop = Shop(config, ME)
    shop.take(1, None)
    for number in range(3, 2 * gaps + 2, 2):
        shop.take(number, number - 1)
    return shop


def abandoned(effects: list[Effect]) -> int:
    return effects.count(GapAbandoned(STREAM, CAROL, "c"))


def first_given_up(shop: Shop, *, storage: bool = False) -> int:
    """Nobody has any of it; the number of gaps that are given up first, and together."""
    while True:
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        for gap, _ in sent(effects, FillFromStorage):
            if storage:
                shop.storage_had_nothing_of(gap)
        if abandoned(effects):
            return abandoned(effects)


def test_when_neighbours_lack_the_first_gap_they_are_asked_for_the_next_ones_too() -> None:
    shop = torn_shop(FEW.gaps_at_once + 1)
    asked = [len(sent(shop.tick(shop.config.fill_wait_ns)[0], Fill)) for _ in range(4)]
    assert asked == [1, 1, FEW.gaps_at_once, FEW.gaps_at_once]
    shop.take(4, 3)  # which one of them had
    assert [gap[0][0] - NOW_MS for gap in shop.table.gaps(CHAIN)[:2]] == [1, 5]


def test_a_neighbour_that_was_asked_for_several_has_answered_when_it_has_answered_all() -> None:
    shop = torn_shop(3)
    for _ in range(2):
        shop.tick(shop.config.fill_wait_ns)
    [*_, (_, (peer,))] = sent(shop.tick(shop.config.fill_wait_ns)[0], Fill)
    answers = [shop.repair.handle(peer, done(0), shop.now_ns) for _ in range(4)]
    asks_next = [SetTimer(("repair", STREAM), shop.config.repair_tick_ns)]
    assert answers == [[], [], asks_next, [Rejected(peer, "unasked-fill")]]


def test_what_lies_between_gaps_that_are_given_up_together_is_delivered_in_its_place() -> None:
    shop = Shop(FEW)
    for number, previous in ((1, None), (3, 2), (5, 4), (6, 5), (8, 7)):
        id = message_id(timestamp_ms=NOW_MS + number, publisher=CAROL)
        before = None if previous is None else Position(NOW_MS + previous, 0)
        message = placed(id, before)
        shop.keep(message)
        if not shop.table.is_in_order(CHAIN):
            shop.table.ready(Delivery(message, 1, 0))
            shop.repair.seen(CHAIN, shop.now_ns)
    ready: list[Delivery] = []
    while not ready:
        effects, ready = shop.tick(shop.config.fill_wait_ns)
    assert abandoned(effects) == 3
    given = [(each.message.number[0] - NOW_MS, each.gap_before) for each in ready]
    assert given == [(3, True), (5, True), (6, False), (8, True)]


def test_storage_that_let_its_time_pass_is_not_waited_for_again_for_a_while() -> None:
    shop = torn_shop(2 * FEW.gaps_at_once)
    assert first_given_up(shop) == FEW.gaps_at_once
    begin_ns = shop.now_ns
    assert first_given_up(shop) == FEW.gaps_at_once
    assert shop.now_ns - begin_ns <= (FEW.fill_tries + 1) * FEW.fill_wait_ns
    assert shop.table.gaps(CHAIN) == []


def test_storage_is_asked_for_each_gap_while_it_answers_and_neighbours_not_again() -> None:
    shop = torn_shop(3)
    assert first_given_up(shop, storage=True) == 1
    for left in (1, 0):
        effects, _ = shop.tick(shop.config.repair_tick_ns)
        assert asked_of(effects) == [FillFromStorage]
        [(gap, _)] = sent(effects, FillFromStorage)
        shop.storage_had_nothing_of(gap)
        effects, _ = shop.tick(shop.config.repair_tick_ns)
        assert abandoned(effects) == 1
        assert len(shop.table.gaps(CHAIN)) == left


def test_storage_that_comes_back_is_asked_again_at_once() -> None:
    shop = torn_shop(2, msgspec.structs.replace(FEW, gaps_at_once=1))
    assert first_given_up(shop) == 1
    shop.tick(shop.config.fill_wait_ns)
    shop.storage_had_nothing_of(STORED)  # late, of the gap before
    effects: list[Effect] = []
    while not sent(effects, FillFromStorage):
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        assert not abandoned(effects)


def test_without_neighbours_storage_is_waited_for_each_time() -> None:
    shop = torn_shop(2)
    for _ in range(2):
        begin_ns = shop.now_ns
        effects: list[Effect] = []
        while not abandoned(effects):
            shop.now_ns += shop.config.fill_wait_ns
            effects, _ = shop.repair.tick((), shop.now_ns)
        assert abandoned(effects) == 1
        assert shop.now_ns - begin_ns >= shop.config.storage_wait_ns
