"""Reads by offset: pages of a log, heads, seqs by ingest time, and a log minus another."""

from __future__ import annotations

import pickle
from pathlib import Path
from uuid import UUID

import pytest

from shoal.base.errors import NotFound, OffsetExpired, UsageError
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store_types import LogHead, LogPage
from tests.storage.stage import (
    OTHER,
    START_NS,
    STREAM,
    log_rows,
    message,
    messages,
    open_store,
    replica_rows,
)

UNKNOWN = UUID(int=7)
PAGES = StoreConfig(page_rows_max=4, scan_rows_max=6)
AGED = StoreConfig(retention=Retention(age_ns=10))


def test_a_log_is_read_page_by_page(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", PAGES) as store:
        store.append(messages(10), START_NS)
        page = store.log_read(store.log, STREAM, 0, 0, 3)
        assert ([row.seq for row in page.rows], page.through) == ([1, 2, 3], 3)
        assert page.head == LogHead(1, 10)
        page = store.log_read(store.log, STREAM, 0, 3, 1000)
        assert ([row.seq for row in page.rows], page.through) == ([4, 5, 6, 7], 7)
        assert [row.id for row in log_rows(store, store.log)] == [m.id for m in messages(10)]


def test_a_page_ends_at_the_bytes_allowed(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", StoreConfig(page_bytes_max=1000)) as store:
        store.append([message(n, content=b"x" * 600) for n in range(3)], START_NS)
        assert [row.seq for row in store.log_read(store.log, STREAM, 0, 0, 9).rows] == [1, 2]


def test_at_and_beyond_the_end_there_is_nothing_yet(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append([message(1), message(1, stream=OTHER)], START_NS)
        for after_seq in (1, 2, 99):
            page = store.log_read(store.log, STREAM, 0, after_seq, 10)
            assert page == LogPage([], after_seq, LogHead(1, 1))
        assert store.log_read(store.log, STREAM, 9, 0, 10) == LogPage([], 0, LogHead(1, 0))


def test_what_is_not_there_has_a_name(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append([message(1)], START_NS)
        with pytest.raises(NotFound, match=f"no row of log {UNKNOWN}.*own one is {store.log}"):
            store.log_read(UNKNOWN, STREAM, 0, 0, 10)
        with pytest.raises(NotFound):
            store.first_seq_at(UNKNOWN, STREAM, 0, 0)
        for after_seq in (-1, 2**63):
            with pytest.raises(UsageError, match="begin at 1"):
                store.log_read(store.log, STREAM, 0, after_seq, 10)
        with pytest.raises(UsageError, match="1 or more"):
            store.log_read(store.log, STREAM, 0, 0, 0)


def test_below_the_floor_the_offset_has_expired(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", AGED) as store:
        for number in range(5):
            store.append([message(number)], START_NS + number)
        store.retain(START_NS + 12)
        assert store.heads(STREAM, 0) == {store.log: LogHead(4, 5)}
        assert [row.seq for row in store.log_read(store.log, STREAM, 0, 3, 9).rows] == [4, 5]
        with pytest.raises(OffsetExpired, match="from seq 4 to 5") as caught:
            store.log_read(store.log, STREAM, 0, 2, 9)
        assert (caught.value.first_seq, caught.value.last_seq) == (4, 5)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.first_seq, copy.last_seq) == (str(caught.value), 4, 5)
        store.retain(START_NS + 99)
        assert store.heads(STREAM, 0) == {store.log: LogHead(6, 5)}
        assert store.log_read(store.log, STREAM, 0, 5, 9).rows == []
        with pytest.raises(OffsetExpired):
            store.log_read(store.log, STREAM, 0, 4, 9)


def test_the_first_seq_at_an_ingest_time(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", AGED) as store:
        assert store.first_seq_at(store.log, STREAM, 0, START_NS) == 1
        for number, time in enumerate([2, 2, 4, 4, 4, 8]):
            store.append([message(number)], START_NS + time)
        found = [store.first_seq_at(store.log, STREAM, 0, START_NS + time) for time in range(10)]
        assert found == [1, 1, 1, 3, 3, 6, 6, 6, 6, 7]
        store.retain(START_NS + 12)
        assert store.first_seq_at(store.log, STREAM, 0, 0) == 3, "the first that is available"


def test_a_log_minus_another(tmp_path: Path) -> None:
    """B's rows that are not in A up to 3: what a reader of A goes on with when A is gone."""
    with open_store(tmp_path / "a", seed="a") as a, open_store(tmp_path / "b", PAGES, "b") as b:
        a.append([message(n) for n in (1, 2, 3, 4)], START_NS)
        b.append([message(n) for n in (9, 3, 1)], START_NS)
        b.append_replica(a.log, STREAM, 0, replica_rows(log_rows(a, a.log)), START_NS)
        assert [row.id for row in log_rows(b, b.log)] == [message(n).id for n in (9, 3, 1, 2, 4)]
        page = b.log_read(b.log, STREAM, 0, 0, 9, {a.log: 3})
        assert [row.id for row in page.rows] == [message(n).id for n in (9, 4)]
        assert ([row.seq for row in page.rows], page.through) == ([1, 5], 5)
        # And the other way around: the replica minus the own log.
        page = b.log_read(a.log, STREAM, 0, 0, 9, {b.log: 2})
        assert [row.id for row in page.rows] == [message(n).id for n in (1, 2, 4)]
        with pytest.raises(NotFound, match="up to 4 only"):
            b.log_read(b.log, STREAM, 0, 0, 9, {a.log: 5})
        with pytest.raises(NotFound):
            b.log_read(b.log, STREAM, 0, 0, 9, {UNKNOWN: 1})
        with pytest.raises(UsageError, match="minus itself"):
            b.log_read(b.log, STREAM, 0, 0, 9, {b.log: 1})


def test_a_page_with_everything_left_out_still_moves_on(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", seed="a") as a, open_store(tmp_path / "b", PAGES, "b") as b:
        a.append(messages(10), START_NS)
        b.append_replica(a.log, STREAM, 0, replica_rows(log_rows(a, a.log)), START_NS)
        b.append([message(99)], START_NS)
        page = b.log_read(b.log, STREAM, 0, 0, 9, {a.log: 10})
        assert (page.rows, page.through) == ([], 6)
        page = b.log_read(b.log, STREAM, 0, 6, 9, {a.log: 10})
        assert ([row.seq for row in page.rows], page.through) == ([11], 11)
