"""Replicas: any node that holds one serves the log as its owner would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.base.errors import MalformedMessage, NotFound, OffsetExpired, UsageError
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.errors import LogDiverged
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import (
    Conflict,
    Duplicate,
    LogHead,
    ReplicaAppended,
    ReplicaRow,
    Stored,
)
from tests.storage.stage import (
    OTHER,
    START_NS,
    STREAM,
    kept_rows,
    log_rows,
    message,
    messages,
    open_store,
    replica_rows,
    rows_of,
)

AGED = StoreConfig(retention=Retention(age_ns=10))


@pytest.fixture
def a(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "a", AGED, "a") as store:
        yield store


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "b", AGED, "b") as store:
        yield store


def copy(a: Store, b: Store, now_ns: int = START_NS) -> ReplicaAppended:
    held = b.heads(STREAM, 0).get(a.log, LogHead(1, 0)).last
    return b.append_replica(a.log, STREAM, 0, replica_rows(log_rows(a, a.log, held)), now_ns)


def test_a_replica_is_the_log(a: Store, b: Store) -> None:
    a.append([message(2), message(1)], START_NS + 5)
    a.append([message(3)], START_NS + 6)
    b.append([message(3), message(2)], START_NS)
    assert copy(a, b, START_NS + 9) == ReplicaAppended(appended=3, stored=1, conflicts=())
    assert list(log_rows(b, a.log)) == list(log_rows(a, a.log)), "ingest times and all"
    # What was new got a seq here too, the rest kept theirs.
    own = list(log_rows(b, b.log))
    assert [row.id for row in own] == [message(n).id for n in (3, 2, 1)]
    assert [row.ingest_ns - START_NS for row in own] == [0, 0, 9]
    assert b.heads(STREAM, 0) == {a.log: LogHead(1, 3), b.log: LogHead(1, 3)}
    assert b.append([message(1)], START_NS) == [Duplicate(3)]
    b.check_invariants()


def test_a_range_may_come_again(a: Store, b: Store) -> None:
    a.append(messages(4), START_NS)
    rows = replica_rows(log_rows(a, a.log))
    assert b.append_replica(a.log, STREAM, 0, rows[:2], START_NS).appended == 2
    assert b.append_replica(a.log, STREAM, 0, rows[:2], START_NS).appended == 0
    assert b.append_replica(a.log, STREAM, 0, rows[1:], START_NS) == ReplicaAppended(2, 2, ())
    assert b.append_replica(a.log, STREAM, 0, [], START_NS) == ReplicaAppended(0, 0, ())
    assert list(log_rows(b, a.log)) == list(log_rows(a, a.log))
    b.check_invariants()


def test_messages_that_are_held_need_not_be_sent(a: Store, b: Store) -> None:
    a.append(messages(3), START_NS)
    b.append(messages(2), START_NS)
    rows = replica_rows(log_rows(a, a.log), with_messages=False)
    assert b.append_replica(a.log, STREAM, 0, rows[:2], START_NS) == ReplicaAppended(2, 0, ())
    with pytest.raises(NotFound, match="send it along"):
        b.append_replica(a.log, STREAM, 0, rows, START_NS)
    assert b.heads(STREAM, 0)[a.log] == LogHead(1, 2), "all or nothing"


def test_a_replica_may_begin_anywhere_but_has_no_hole(a: Store, b: Store) -> None:
    a.append(messages(9), START_NS)
    rows = replica_rows(log_rows(a, a.log))
    b.append_replica(a.log, STREAM, 0, rows[2:4], START_NS)
    assert b.heads(STREAM, 0)[a.log] == LogHead(3, 4)
    with pytest.raises(OffsetExpired):
        b.log_read(a.log, STREAM, 0, 0, 9)
    with pytest.raises(UsageError, match="ends at 4, this range begins at 6: begin at 5"):
        b.append_replica(a.log, STREAM, 0, rows[5:], START_NS)
    # Rows below are not put in front: what a reader was told has expired does not come back.
    assert b.append_replica(a.log, STREAM, 0, rows[:5], START_NS).appended == 1
    assert b.heads(STREAM, 0)[a.log] == LogHead(3, 5)
    b.check_invariants()


def test_a_gap_that_the_owner_cannot_fill(a: Store, b: Store) -> None:
    a.append(messages(9), START_NS)
    rows = replica_rows(log_rows(a, a.log))
    b.append_replica(a.log, STREAM, 0, rows[:3], START_NS)
    assert not b.advance_replica(a.log, STREAM, 0, 2), "nothing is missing"
    assert not b.advance_replica(a.log, STREAM, 0, 4)
    assert b.heads(STREAM, 0)[a.log] == LogHead(1, 3)
    assert b.advance_replica(a.log, STREAM, 0, 6)
    assert b.heads(STREAM, 0)[a.log] == LogHead(6, 5)
    b.append_replica(a.log, STREAM, 0, rows[5:], START_NS)
    assert [row.seq for row in log_rows(b, a.log, 5)] == [6, 7, 8, 9]
    with pytest.raises(OffsetExpired):
        b.log_read(a.log, STREAM, 0, 2, 9)
    assert len(rows_of(b.range(STREAM, 0))) == 7, "the messages stay"
    b.retain(START_NS)
    assert kept_rows(b) == 7 + 4, "the rows that were given up are swept"
    b.check_invariants()
    with pytest.raises(UsageError):
        b.advance_replica(b.log, STREAM, 0, 6)


def test_a_log_that_changed_its_past_is_refused(a: Store, b: Store) -> None:
    a.append(messages(3), START_NS)
    copy(a, b)
    other = ReplicaRow(3, START_NS, message(99).id, message(99))
    with pytest.raises(LogDiverged, match="another message at seq 3"):
        b.append_replica(a.log, STREAM, 0, [other], START_NS)
    late = ReplicaRow(3, START_NS + 1, message(2).id, message(2))
    with pytest.raises(LogDiverged):
        b.append_replica(a.log, STREAM, 0, [late], START_NS)
    assert b.info().messages == 3


def test_rows_that_are_no_range_are_refused(a: Store, b: Store) -> None:
    a.append(messages(3), START_NS)
    one, two, three = replica_rows(log_rows(a, a.log))
    back = ReplicaRow(4, START_NS - 1, message(9).id, message(9))
    zero = ReplicaRow(0, START_NS, message(9).id, message(9))
    elsewhere = ReplicaRow(2, START_NS, message(1, stream=OTHER).id)
    mixed_up = ReplicaRow(2, START_NS, message(1).id, message(2))
    endless = ReplicaRow(2**63 - 1, START_NS, message(9).id, message(9))
    timeless = ReplicaRow(1, 2**63, message(9).id, message(9))
    for rows in (
        [one, three],
        [two, one],
        [one, two, three, back],
        [zero],
        [endless],
        [timeless],
        [one, elsewhere],
        [one, mixed_up],
    ):
        with pytest.raises(MalformedMessage):
            b.append_replica(a.log, STREAM, 0, rows, START_NS)
    with pytest.raises(UsageError, match="our own"):
        b.append_replica(b.log, STREAM, 0, [one], START_NS)
    assert (b.info().messages, b.info().streams) == (0, 0)


def test_other_bodies_stay_with_their_log(a: Store, b: Store) -> None:
    """Equivocation: both nodes keep what they got first, and each log reads the same everywhere."""
    at_a, at_b = message(2, content=b"to a"), message(2, content=b"to b")
    a.append([message(1), at_a], START_NS)
    b.append([at_b], START_NS)
    result = copy(a, b)
    assert result == ReplicaAppended(2, 1, (Conflict(1, at_b.signed, at_a.signed),))
    assert [row.signed for row in log_rows(b, a.log)] == [message(1).signed, at_a.signed]
    assert [row.signed for row in log_rows(b, b.log)] == [at_b.signed, message(1).signed]
    copy(b, a)
    assert [row.signed for row in log_rows(a, b.log)] == [at_b.signed, message(1).signed]
    a.check_invariants()
    b.check_invariants()
    for store in (a, b):
        while store.retain(START_NS + 99).more:
            pass
        store.check_invariants()
        assert store.info().messages == 0


def test_retention_takes_a_message_from_every_log(a: Store, b: Store) -> None:
    b.append([message(2)], START_NS)
    a.append([message(1), message(2), message(3)], START_NS)
    copy(a, b, START_NS + 5)
    b.retain(START_NS + 10)  # the own log's first row: message 2, which is row 2 of the replica
    assert b.heads(STREAM, 0) == {a.log: LogHead(3, 3), b.log: LogHead(2, 3)}
    assert [row.id for row in log_rows(b, a.log, 2)] == [message(3).id]
    with pytest.raises(OffsetExpired):
        b.log_read(a.log, STREAM, 0, 0, 9)
    assert [row.id for row in rows_of(b.range(STREAM, 0))] == [message(1).id, message(3).id]
    # Row 1 is not available, but message 1 is still known as one of log A.
    assert [row.seq for row in b.log_read(b.log, STREAM, 0, 1, 9, {a.log: 1}).rows] == [3]
    b.check_invariants()
    a.append([message(4)], START_NS + 6)
    assert copy(a, b, START_NS + 6).appended == 1, "it goes on where it was"
    b.retain(START_NS + 99)
    assert b.heads(STREAM, 0) == {a.log: LogHead(5, 4), b.log: LogHead(5, 4)}
    assert copy(a, b).appended == 0
    b.check_invariants()


def test_a_message_that_was_let_go_is_new_again(a: Store) -> None:
    a.append([message(1)], START_NS)
    a.retain(START_NS + 10)
    assert a.append([message(1)], START_NS + 11) == [Stored(2)]
