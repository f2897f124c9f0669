"""Heads: what they make a node ask for, and which chains it names to its neighbours."""

from __future__ import annotations

from shoal.base.units import MIB, MS_NS, S_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect
from shoal.kernel.records import GapAbandoned
from shoal.protocols.streams.config import HEADS_CHAINS_MAX, HEADS_MAX, NodeConfig
from shoal.protocols.streams.messages import Fill, Heads
from shoal.protocols.streams.signed_message import Number
from tests.support.repair_shop import CHAIN, Shop, fill
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    NOW_MS,
    NOW_NS,
    STREAM,
    message_id,
    placed,
    sent,
)


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


def test_heads_of_what_nobody_would_take_yet_mean_nothing() -> None:
    shop = Shop()
    assert shop.heads(shop.config.future_ns // MS_NS + 1) == []


def test_what_only_heads_told_of_is_not_taken_for_seen_when_it_is_given_up() -> None:
    # Else one neighbour that lies would silence a publisher.
    shop = Shop(NodeConfig(fill_tries=2))
    shop.take(1, None)
    shop.heads(50_000)
    effects: list[Effect] = []
    while GapAbandoned(STREAM, CAROL, "c") not in effects:
        effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert shop.table.seen(CHAIN, (NOW_MS + 2, 0)) is False
    shop.take(2, 1)
    assert shop.table.gaps(CHAIN) == []


def test_a_neighbour_that_makes_up_chains_does_not_keep_real_gaps_from_being_noticed() -> None:
    """A message that waits behind a gap of which nobody knows would wait for ever."""
    shop = Shop(NodeConfig(broken_max=10))
    made_up = tuple(((ALICE, 0, f"c{n}"), (NOW_MS + 5, 0)) for n in range(50))
    shop.repair.heads(ALICE, Heads(STREAM, made_up), shop.now_ns)
    shop.take(1, 0)
    shop.take(3, 2)  # and then the chain is quiet
    effects, _ = shop.tick(shop.config.gap_wait_ns)
    asked = [message.chain for message, _ in sent(effects, Fill)]
    assert "c" in asked
    assert len(asked) <= 10


def test_what_heads_tell_of_leaves_room_for_asking_for_real_gaps() -> None:
    """Neighbours answer so many requests and no more."""
    shop = Shop(NodeConfig(fill_burst=8, fill_refill_ns=100 * MS_NS))
    made_up = tuple(((ALICE, 0, f"c{n}"), (NOW_MS + 5, 0)) for n in range(50))
    shop.repair.heads(ALICE, Heads(STREAM, made_up), shop.now_ns)
    shop.take(1, 0)
    shop.take(3, 2)
    effects, _ = shop.tick(shop.config.gap_wait_ns)
    asked = [message.chain for message, _ in sent(effects, Fill)]
    assert asked.count("c") == 1
    assert len(asked) == 1 + 2 * 6, "of each of the two neighbours three quarters of what it gives"
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    again = [message.chain for message, _ in sent(effects, Fill)]
    assert set(again) - set(asked), "the others have their turn"


def many_chains(count: int) -> Shop:
    """Carol has published one message in each of so many chains, a millisecond apart."""
    shop = Shop(NodeConfig(recent_bytes_max=64 * MIB))
    for number in range(count):
        shop.keep(placed(message_id(chain=f"c{number}", timestamp_ms=NOW_MS + number)))
    return shop


def told(effects: list[Effect]) -> list[list[Number]]:
    return [[number for _, number in heads.chains] for heads, _ in sent(effects, Heads)]


def test_heads_name_no_more_chains_than_a_neighbour_takes_and_the_newest_of_them() -> None:
    greeting = told(many_chains(HEADS_CHAINS_MAX + 10).repair.greet((BOB,), NOW_NS))
    assert [len(numbers) for numbers in greeting] == [HEADS_MAX] * (HEADS_CHAINS_MAX // HEADS_MAX)
    assert min(number for numbers in greeting for number in numbers) == (NOW_MS + 10, 0)


def test_more_chains_than_fit_one_message_are_told_in_several() -> None:
    shop = many_chains(2 * HEADS_MAX + 10)
    for effects in (
        shop.repair.greet((BOB,), NOW_NS),
        shop.repair.tell_quiet((BOB,), NOW_NS + 2 * shop.config.heads_ns),
    ):
        numbers = told(effects)
        assert [len(some) for some in numbers] == [HEADS_MAX, HEADS_MAX, 10]
        assert len({number for some in numbers for number in some}) == 2 * HEADS_MAX + 10


def test_quiet_chains_that_are_too_many_at_once_are_told_the_next_time() -> None:
    shop = many_chains(HEADS_CHAINS_MAX + 10)
    quiet_ns = NOW_NS + 2 * shop.config.heads_ns
    first, second, third = (told(shop.repair.tell_quiet((BOB,), quiet_ns)) for _ in range(3))
    assert sum(map(len, first)) == HEADS_CHAINS_MAX
    assert [len(numbers) for numbers in second] == [10]
    assert third == []


def test_heads_name_each_fresh_chain_whole_or_not() -> None:
    shop = Shop()
    shop.table.take(placed(message_id(chain="whole", timestamp_ms=NOW_MS)))
    shop.table.take(
        placed(message_id(chain="broken", timestamp_ms=NOW_MS), Position(NOW_MS - 1, 0))
    )
    assert [chain[2] for chain, _ in shop.table.heads(NOW_NS)] == ["whole", "broken"]
    assert len(shop.table.heads(NOW_NS + shop.config.freshness_ns)) == 2
    assert shop.table.heads(NOW_NS + shop.config.freshness_ns + MS_NS) == []


def test_chains_whose_newest_message_came_a_while_ago_are_quiet() -> None:
    shop = Shop()
    for number in range(6):
        shop.now_ns = NOW_NS + number * S_NS
        shop.keep(placed(message_id(chain=f"c{number % 4}", timestamp_ms=NOW_MS + number + 1)))

    def quiet(now_s: int) -> list[str]:
        told = shop.repair.tell_quiet((BOB,), NOW_NS + now_s * S_NS + shop.config.heads_ns)
        return [chain[2] for heads, _ in sent(told, Heads) for chain, _ in heads.chains]

    assert quiet(3) == ["c2"]  # c0 and c1 went on
    assert quiet(9) == ["c1", "c0", "c3"]
    assert quiet(9) == []


def test_a_quiet_chain_is_told_also_if_it_ended_before_our_time() -> None:
    # By our clock, that is: a publisher's may be behind it.
    shop = Shop()
    for number, previous in ((-5, -6), (-3, -4)):
        shop.take(number, previous)
    told = sent(shop.repair.tell_quiet((ALICE,), NOW_NS + 2 * shop.config.heads_ns), Heads)
    assert [at for heads, _ in told for _, at in heads.chains] == [(NOW_MS - 3, 0)]


def test_a_chain_that_goes_quiet_is_told_once() -> None:
    shop = Shop()
    heads_ns = shop.config.heads_ns
    shop.take(1, None)
    told = [shop.repair.tell_quiet((ALICE,), NOW_NS + n * heads_ns // 2) for n in range(8)]
    assert [len(sent(effects, Heads)) for effects in told].count(1) == 1
    assert sent(shop.repair.greet((BOB,), NOW_NS), Heads)


def test_a_chain_that_goes_quiet_is_told_however_late_the_timer_is() -> None:
    shop = Shop()
    late_ns = shop.config.heads_ns + 100 * MS_NS
    shop.repair.tell_quiet((ALICE,), NOW_NS + shop.config.heads_ns - 50 * MS_NS)
    shop.take(1, None)
    told = [shop.repair.tell_quiet((ALICE,), NOW_NS + n * late_ns) for n in range(1, 8)]
    assert [len(sent(effects, Heads)) for effects in told].count(1) == 1
