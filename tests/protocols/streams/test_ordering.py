"""Delivery in chain order: what waits, what is given up, and what is late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.identity.message_body import Position
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.chain_table import (
    WAITING_BYTES_MIN,
    ChainOrder,
    ChainTable,
    Delivery,
)
from shoal.protocols.streams.signed_message import Number
from tests.support.streams import message_id, placed

START = 100
BASELINE: Number = (START, 0)


def delivery(timestamp_ms: int, previous_ms: int | None) -> Delivery:
    previous = None if previous_ms is None else Position(previous_ms, 0)
    id = message_id(timestamp_ms=timestamp_ms)
    return Delivery(placed(id, previous), 1, 0)


def chain(count: int) -> list[Delivery]:
    """The first messages of a chain that began after we joined."""
    numbers = [None, *range(START + 1, START + count)]
    return [delivery(START + n + 1, numbers[n]) for n in range(count)]


def times(ready: list[Delivery]) -> list[int]:
    return [d.message.id.timestamp_ms - START for d in ready]


@given(st.permutations(range(8)))
def test_whatever_the_order_of_arrival_delivery_is_in_order(arrivals: list[int]) -> None:
    order, messages = ChainOrder(BASELINE), chain(8)
    got = [t for at in arrivals for t in times(order.arrived(messages[at]))]
    assert got == [1, 2, 3, 4, 5, 6, 7, 8]
    assert order.waiting is None


def test_a_gap_that_is_given_up_is_told_on_the_next_message_only() -> None:
    order, messages = ChainOrder(BASELINE), chain(5)
    order.arrived(messages[0])
    assert order.arrived(messages[2]) == []
    ready = order.given_up((START + 2, 0)) + order.arrived(messages[3])
    assert [(t, d.gap_before) for t, d in zip(times(ready), ready, strict=True)] == [
        (3, True),
        (4, False),
    ]


def test_what_comes_after_it_was_given_up_is_late() -> None:
    order, messages = ChainOrder(BASELINE), chain(4)
    order.arrived(messages[0])
    order.arrived(messages[2])
    order.given_up((START + 2, 0))
    assert order.arrived(messages[1]) == []
    assert times(order.arrived(messages[3])) == [4]


def test_history_from_before_our_time_is_no_gap() -> None:
    order = ChainOrder(BASELINE)
    assert times(order.arrived(delivery(START + 5, START - 3))) == [5]


def test_a_message_under_way_when_we_joined_is_delivered() -> None:
    order = ChainOrder(BASELINE)
    assert times(order.arrived(delivery(START - 2, START - 3))) == [-2]
    assert times(order.arrived(delivery(START + 5, START - 2))) == [5]


def test_the_first_message_after_our_time_began_waits_for_the_one_before() -> None:
    order = ChainOrder(BASELINE)
    assert order.arrived(delivery(START + 5, START + 2)) == []
    assert times(order.arrived(delivery(START + 2, None))) == [2, 5]


@pytest.mark.parametrize("behind_ms", [0, 1, 50_000])
def test_a_message_that_names_itself_or_a_later_one_as_previous_waits_for_neither(
    behind_ms: int,
) -> None:
    table = ChainTable(NodeConfig(), START)
    liar = delivery(START + 5, START + 5 + behind_ms)
    assert table.take(liar.message)
    assert table.ready(liar) == [], "what was before it may be missing"
    (gap,) = table.gaps(liar.message.chain)
    assert gap == (BASELINE, liar.message.before) == (BASELINE, (START + 5, -1))
    assert times(table.give_up(liar.message.chain, gap[1])) == [5]
    assert table.gaps(liar.message.chain) == []


def test_what_waits_is_counted_in_bytes_with_what_is_around_them() -> None:
    order, messages = ChainOrder(BASELINE), chain(6)
    for message in messages[1:4]:
        assert order.arrived(message) == []
    signed_bytes = sum(len(each.message.signed) for each in messages[1:4])
    assert order.waiting_bytes == 3 * WAITING_BYTES_MIN + signed_bytes
    assert order.waited_for() == (START + 1, 0)
    order.arrived(messages[0])
    assert order.waiting_bytes == 0
    assert order.waited_for() is None


def test_one_that_was_under_way_when_we_joined_and_missed_holds_nobody_up() -> None:
    order = ChainOrder(BASELINE)
    assert times(order.arrived(delivery(START - 5, START - 6))) == [-5]
    ready = order.arrived(delivery(START + 3, START - 2))
    assert times(ready) == [3], "-2 is history"
    assert ready[0].gap_before, "but -5 was given, and -2 was not"
    assert order.arrived(delivery(START - 2, START - 5)) == [], "late"


def test_all_that_were_under_way_when_we_joined_are_delivered() -> None:
    order = ChainOrder(BASELINE)
    arrivals = [(-5, -6), (-2, -5), (-1, -2), (3, -1), (4, 3)]
    got = [order.arrived(delivery(START + n, START + before)) for n, before in arrivals]
    assert [times(ready) for ready in got] == [[n] for n, _ in arrivals]
    assert order.arrived(delivery(START - 2, START - 5)) == []
