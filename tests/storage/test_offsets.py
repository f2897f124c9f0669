"""Offsets: one text for each, clear errors, and an order."""

from __future__ import annotations

import contextlib
import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX
from shoal.base.offsets import (
    MINUS_MAX,
    Offset,
    Order,
    PartitionOffset,
    compare,
    format_offset,
    parse_offset,
)

A, B, C = (UUID(int=number) for number in (0xA, 0xB, 0xC))

logs = st.sampled_from([A, B, C])
seqs = st.integers(0, 5) | st.integers(0, INT63_MAX)


@st.composite
def partition_offsets(draw: st.DrawFn) -> PartitionOffset:
    log = draw(logs)
    others = logs.filter(lambda other: other != log)
    return PartitionOffset(log, draw(seqs), draw(st.dictionaries(others, st.integers(1, 5))))


offsets = st.builds(Offset, st.dictionaries(st.integers(0, 99), partition_offsets(), max_size=4))


def test_the_text_of_an_offset() -> None:
    offset = Offset({10: PartitionOffset(A, 0), 2: PartitionOffset(C, 7, {B: 9, A: 123})})
    assert format_offset(offset) == (
        '{"v":1,"p":{'
        '"2":{"log":"00000000-0000-0000-0000-00000000000c","seq":7,"minus":{'
        '"00000000-0000-0000-0000-00000000000a":123,"00000000-0000-0000-0000-00000000000b":9}},'
        '"10":{"log":"00000000-0000-0000-0000-00000000000a","seq":0}}}'
    )
    assert format_offset(Offset()) == '{"v":1,"p":{}}'


@given(offsets)
def test_what_is_written_is_read(offset: Offset) -> None:
    assert parse_offset(format_offset(offset)) == offset


@given(offsets, st.randoms(use_true_random=False))
def test_any_order_and_spacing_is_read_and_one_is_written(offset: Offset, rng: object) -> None:
    assert hasattr(rng, "shuffle")

    def shuffled(value: object) -> object:
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(inner)) for key, inner in value.items()]
        rng.shuffle(items)
        return dict(items)

    text = format_offset(offset)
    other = json.dumps(shuffled(json.loads(text)), indent=1)
    assert format_offset(parse_offset(other)) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("123", "Expected `object`"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `v`"),
        ('{"v":2,"q":1}', "version 2, this Shoal reads up to 1: upgrade"),
        ('{"v":0,"p":{}}', "Expected `int` >= 1"),
        ('{"v":true,"p":{}}', "got `bool`"),
        ('{"v":1,"p":{},"q":1}', "unknown field `q`"),
        ('{"v":1,"p":{},"p":{}}', "twice"),
        ('{"v":1,"p":{"0":{"log":"a"}}}', "Invalid UUID"),
        ('{"v":1,"p":{"0":{"log":"%A","seq":-1}}}', "Expected `int` >= 0"),
        ('{"v":1,"p":{"0":{"log":"%A","seq":1.5}}}', "got `float`"),
        ('{"v":1,"p":{"0":{"log":"%A","seq":9223372036854775808}}}', "Expected `int` <="),
        ('{"v":1,"p":{"0":{"log":"%A","seq":1,"minus":{"%A":1}}}}', "the one that is read"),
        ('{"v":1,"p":{"0":{"log":"%A","seq":1,"minus":{"%B":0}}}}', "1 or more"),
        ('{"v":1,"p":{"100":{"log":"%A","seq":1}}}', "partition 100"),
        ('{"v":1,"p":{"01":{"log":"%A","seq":1}}}', "'01' is no partition"),
        ('{"v":1,"p":{"-1":{"log":"%A","seq":1}}}', "partition -1"),
        ('{"v":1,"p":{"²":{"log":"%A","seq":1}}}', "'²' is no partition"),
        ('{"v":1,"p":{"":{"log":"%A","seq":1}}}', "'' is no partition"),
        ("[" * 100_000, "is no offset"),
        ("9" * 10_000, "is no offset"),
        (" " * 200_000, "200000 characters"),
    ],
)
def test_what_is_no_offset_says_why(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        parse_offset(text.replace("%A", str(A)).replace("%B", str(B)))
    assert len(str(caught.value)) < 300


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_does_worse_than_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_offset(text)


def test_an_offset_that_cannot_be_cannot_be_made() -> None:
    with pytest.raises(UsageError):
        PartitionOffset(A, -1)
    with pytest.raises(UsageError, match="at most 16"):
        PartitionOffset(A, 1, {UUID(int=n): 1 for n in range(100, 101 + MINUS_MAX)})
    with pytest.raises(UsageError, match="partition 100"):
        Offset({100: PartitionOffset(A, 1)})


def at(log: UUID, seq: int, minus: dict[UUID, int] | None = None) -> Offset:
    return Offset({0: PartitionOffset(log, seq, minus or {})})


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        (Offset(), Offset(), Order.SAME),
        (Offset(), at(A, 0), Order.SAME),
        (Offset(), at(A, 1), Order.BEFORE),
        (at(A, 3), at(A, 3), Order.SAME),
        (at(A, 3), at(A, 4), Order.BEFORE),
        (at(A, 3), at(B, 3), Order.BESIDE),
        # The reader of A went on with B: it has what it had.
        (at(A, 3), at(B, 0, {A: 3}), Order.SAME),
        (at(A, 3), at(B, 1, {A: 3}), Order.BEFORE),
        (at(A, 4), at(B, 1, {A: 3}), Order.BESIDE),
        (at(B, 1, {A: 3}), at(C, 0, {A: 3, B: 1}), Order.SAME),
        (
            Offset({0: PartitionOffset(A, 2), 1: PartitionOffset(A, 1)}),
            Offset({0: PartitionOffset(A, 1), 1: PartitionOffset(A, 2)}),
            Order.BESIDE,
        ),
    ],
)
def test_offsets_have_an_order(one: Offset, other: Offset, order: Order) -> None:
    assert compare(one, other) is order
    back = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    assert compare(other, one) is back.get(order, order)
