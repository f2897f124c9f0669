"""Gaps that neighbours cannot fill: when storage is asked, and what its answers are worth."""

from __future__ import annotations

from shoal.identity.stream_message import Position
from shoal.kernel.effects import Effect, SetTimer
from shoal.kernel.records import GapAbandoned, GapFound
from shoal.protocols.streams.history.messages import FillFromStorage
from shoal.protocols.streams.messages import Fill
from tests.support.repair_shop import FEW, GAP, Shop, broken_shop
from tests.support.streams import CAROL, ME, NOW_MS, STREAM, sent

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
    assert GapAbandoned(STREAM, CAROL, "c") in effects
