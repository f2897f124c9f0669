"""How far a read may go, from what servers say; no server is asked here."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.gateway_messages import HeldLog, StreamHeads
from shoal.base.offsets import Offset, PartitionOffset
from shoal_spark.source.follower import Heads, Lost, shared, step
from shoal_spark.source.offsets import LogRange, ranges_between, ranges_to, split

A, B, C = UUID(int=10), UUID(int=11), UUID(int=12)
Held = Mapping[UUID, int | tuple[int, int]]


def server(own: UUID, *partitions: Held) -> StreamHeads:
    """What one has, by partition: of each log the last seq, or the first and the last."""
    held = {
        number: [
            HeldLog(log, *(it if isinstance(it, tuple) else (1, it))) for log, it in logs.items()
        ]
        for number, logs in enumerate(partitions)
        if logs
    }
    return StreamHeads("0x", own, True, True, held)


def at(log: UUID, seq: int, **minus: int) -> PartitionOffset:
    return PartitionOffset(log, seq, {{"A": A, "B": B, "C": C}[n]: s for n, s in minus.items()})


def test_newest_is_what_enough_servers_have() -> None:
    answers = [server(A, {A: 100}), server(B, {A: 90, B: 50}), server(C, {A: 95, C: 60})]
    assert [Heads(answers, n).newest(0, A) for n in (1, 2, 3)] == [100, 95, 90]
    assert [Heads(answers, n).newest(0, B) for n in (1, 2)] == [50, 0]


def test_a_partition_is_begun_along_the_longest_log_that_grows() -> None:
    heads = Heads([server(A, {A: (41, 100), C: 90}), server(B, {B: 70})], 1)
    assert heads.best(0) == B, "70 rows; A has 60, and nobody is there to whom C belongs"
    assert heads.best(1) is None
    assert step(Offset(), heads).offset == Offset({0: at(B, 70)})


def test_what_is_new_is_read_along_the_same_log() -> None:
    heads = Heads([server(A, {A: 100}, {A: 30}), server(B, {B: 500}, {B: 30})], 1)
    start = Offset({0: at(A, 80), 1: at(A, 30)})
    planned = step(start, heads)
    assert planned.offset == Offset({0: at(A, 100), 1: at(A, 30)})
    assert (planned.stranded, planned.lost) == ((), ())
    assert step(planned.offset, heads).offset == planned.offset


def test_a_partition_that_was_added_is_read_from_its_beginning() -> None:
    heads = Heads([server(A, {A: 5}, {A: (3, 9)})], 1)
    planned = step(Offset({0: at(A, 5)}), heads)
    assert planned.offset == Offset({0: at(A, 5), 1: at(A, 9)})
    (part,) = ranges_between(Offset({0: at(A, 5)}), planned.offset)
    assert part == LogRange(partition=1, log=A, after=0, upto=9, fresh=True)


def test_a_limit_is_shared_by_how_far_partitions_lag() -> None:
    heads = Heads([server(A, {A: 300}, {A: 100}, {})], 1)
    planned = step(Offset(), heads, limit=40)
    assert planned.offset == Offset({0: at(A, 30), 1: at(A, 10)})
    assert planned.newest == Offset({0: at(A, 300), 1: at(A, 100)})
    assert step(Offset(), heads, limit=1).offset == Offset({0: at(A, 1)}), "not begun, not named"


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50)), st.integers(1, 300))
def test_shares_are_no_more_than_there_is_and_as_much_as_may_be(
    lags: dict[int, int], limit: int
) -> None:
    shares = shared(lags, limit)
    assert shares.keys() == lags.keys()
    assert all(0 <= shares[p] <= lags[p] for p in lags)
    assert sum(shares.values()) == min(limit, sum(lags.values()))


def test_a_log_whose_owner_is_gone_is_read_to_its_end_and_then_stranded() -> None:
    heads = Heads([server(B, {A: 90, B: 95})], 1)
    planned = step(Offset({0: at(A, 80)}), heads)
    assert (planned.offset, planned.stranded) == (Offset({0: at(A, 90)}), ())
    planned = step(planned.offset, heads)
    assert (planned.offset, planned.stranded) == (Offset({0: at(A, 90)}), (0,))
    back = Heads([server(B, {A: 90, B: 95}), server(A, {A: 90})], 1)
    assert step(planned.offset, back).stranded == (), "it only waits for more"


def test_what_one_server_alone_has_is_not_read_if_two_must_have_it() -> None:
    heads = Heads([server(A, {A: 100}), server(B, {A: 90, B: 95})], 2)
    planned = step(Offset({0: at(A, 80)}), heads)
    assert planned.offset == Offset({0: at(A, 90)})
    alone = Heads([server(A, {A: 120})], 2)
    assert step(planned.offset, alone).offset == planned.offset, "and nothing goes back"


def test_a_target_is_not_gone_beyond() -> None:
    then = Heads([server(A, {A: 100, B: 7})], 1)
    now = Heads([server(A, {A: 150, B: 7}, {A: 5})], 1)
    planned = step(Offset({0: at(A, 80)}), now, target=then.newest)
    assert planned.offset == Offset({0: at(A, 100)}), "nor is a partition begun that was not there"
    assert step(planned.offset, now, target=then.newest).offset == planned.offset
    moved = Heads([server(B, {A: 150, B: 30})], 1)
    along_b = Offset({0: at(B, 2, A=100)})
    assert step(along_b, moved, target=then.newest).offset == Offset({0: at(B, 7, A=100)})


def test_rows_that_are_gone_are_told() -> None:
    heads = Heads([server(A, {A: (50, 100)}), server(B, {A: (40, 90)})], 1)
    planned = step(Offset({0: at(A, 20)}), heads, limit=10)
    assert planned.lost == (Lost(0, A, 20, 40),)
    assert planned.offset == Offset({0: at(A, 49)}), "they do not count"


def test_a_log_that_went_back_is_refused() -> None:
    with pytest.raises(UsageError, match=r"read up to 80.*up to 70.*restored from an old copy"):
        step(Offset({0: at(A, 80)}), Heads([server(A, {A: 70}), server(B, {A: 80})], 1))
    step(Offset({0: at(A, 80)}), Heads([server(B, {A: 70})], 1))  # a copy may lag


# Ranges


def test_ranges_are_what_lies_between_two_offsets() -> None:
    start = Offset({0: at(A, 5), 1: at(B, 4, A=9), 2: at(A, 3)})
    end = Offset({0: at(A, 8), 1: at(B, 9, A=9), 2: at(A, 3)})
    assert ranges_between(start, end) == [
        LogRange(partition=0, log=A, after=5, upto=8),
        LogRange(partition=1, log=B, after=4, upto=9, minus={A: 9}),
    ]


def test_there_are_no_rows_in_a_move() -> None:
    start, end = Offset({0: at(A, 5)}), Offset({0: at(B, 7, A=5)})
    assert ranges_between(start, end) == []
    (part,) = ranges_to(start, Offset({0: at(B, 20)}))
    assert part == LogRange(partition=0, log=B, after=0, upto=20, minus={A: 5}, fresh=True)
    (part,) = ranges_to(Offset({0: at(A, 5, B=2)}), Offset({0: at(B, 20)}))
    assert part == LogRange(partition=0, log=B, after=2, upto=20, minus={A: 5})


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 20))
def test_parts_of_a_range_are_the_range(after: int, rows: int, at_once: int) -> None:
    part = LogRange(partition=3, log=A, after=after, upto=after + rows, minus={B: 1})
    parts = split(part, at_once)
    seqs = [seq for one in parts for seq in range(one.after + 1, one.upto + 1)]
    assert seqs == list(range(after + 1, after + rows + 1))
    assert all(one.upto - one.after <= at_once and one.minus == {B: 1} for one in parts)
