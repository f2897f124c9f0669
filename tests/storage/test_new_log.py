"""A store goes on under a new log id: no seq of a log id ever names a second row, and readers of
the old log miss nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.base.errors import NotFound, UsageError
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store_types import Lease, LogHead, Stored
from tests.storage.stage import (
    HOUR_NS,
    START_NS,
    STREAM,
    ids_of,
    log_rows,
    message,
    messages,
    open_store,
    replica_rows,
)


def restored(folder: Path) -> tuple[Path, Path]:
    """A store that went on after its copy was made."""
    with open_store(folder / "a") as store:
        store.append(messages(3), START_NS)
    shutil.copytree(folder / "a", folder / "copy")
    with open_store(folder / "a") as store:
        store.append(messages(3, begin=3), START_NS + 1)
    return folder / "a", folder / "copy"


def test_a_restored_store_gives_no_seq_of_the_old_log_again(tmp_path: Path) -> None:
    original, copy = restored(tmp_path)
    with open_store(original) as before, open_store(copy) as after:
        old = before.log
        new = after.new_log(START_NS + 2)
        assert new == after.log != old
        assert after.append(messages(4, begin=6), START_NS + 3) == [Stored(n) for n in (4, 5, 6, 7)]
        assert after.heads(STREAM, 0) == {old: LogHead(1, 3), new: LogHead(1, 7)}
        # A reader of the old log that came as far as the copy goes on without a row lost or double.
        page = after.log_read(new, STREAM, 0, 0, 100, {old: 3})
        assert [row.id for row in page.rows] == [m.id for m in messages(4, begin=6)]
        # One that came further is told that this store cannot know what it has.
        with pytest.raises(NotFound, match="is held here up to 3 only"):
            after.log_read(new, STREAM, 0, 0, 100, {old: 6})
        # What others have of the old log is copied back, and then it can.
        tail = replica_rows(log_rows(before, old, after_seq=2))
        assert after.append_replica(old, STREAM, 0, tail, START_NS + 4).stored == 3
        assert list(log_rows(after, old)) == list(log_rows(before, old))
        page = after.log_read(new, STREAM, 0, 0, 100, {old: 6})
        assert [row.id for row in page.rows] == [m.id for m in messages(4, begin=6)]
        after.check_invariants()


def test_the_new_log_and_the_old_one_last(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append(messages(3), START_NS)
        first = store.log
        second = store.new_log(START_NS + 1)
        store.append([message(3)], START_NS + 1)
        third = store.new_log(START_NS + 2)
    with open_store(tmp_path / "a") as store:
        assert store.log == third
        heads = {first: LogHead(1, 3), second: LogHead(1, 4), third: LogHead(1, 4)}
        assert store.heads(STREAM, 0) == heads
        assert len({first, second, third}) == 3
        assert [len(list(log_rows(store, log))) for log in heads] == [3, 4, 4]
        page = store.log_read(third, STREAM, 0, 0, 100, {first: 2})
        assert [row.seq for row in page.rows] == [3, 4]
        store.check_invariants()


def test_the_own_log_is_not_appended_to_under_its_old_id(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append(messages(1), START_NS)
        new = store.new_log(START_NS)
        with pytest.raises(UsageError, match="is our own"):
            store.append_replica(new, STREAM, 0, replica_rows(log_rows(store, new)), START_NS)


def test_an_old_log_that_gave_its_seqs_twice_is_forgotten(tmp_path: Path) -> None:
    """Copied back by hand, and run: what it says of the old log is not what readers know."""
    original, copy = restored(tmp_path)
    with open_store(original) as before, open_store(copy) as after:
        old = before.log
        after.append([message(99)], START_NS)  # seq 4 of the old log, as message(3) is
        new = after.new_log(START_NS + 1, keep_old=False)
        assert after.heads(STREAM, 0) == {new: LogHead(1, 4)}
        with pytest.raises(NotFound):
            after.log_read(old, STREAM, 0, 0, 10)
        with pytest.raises(NotFound):
            after.log_read(new, STREAM, 0, 0, 10, {old: 3})
        whole = replica_rows(log_rows(before, old))
        after.append_replica(old, STREAM, 0, whole, START_NS + 2)
        page = after.log_read(new, STREAM, 0, 0, 10, {old: 6})
        assert [row.id for row in page.rows] == [message(99).id]
        after.check_invariants()


def test_ingest_times_ahead_of_the_clock_end_with_the_old_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append(messages(2), START_NS)
        store.append(messages(2, begin=2), START_NS + HOUR_NS)  # the clock was wrong
        old, new = store.log, store.new_log(START_NS + 10)
        store.append([message(4)], START_NS + 20)
        came = [START_NS, START_NS, START_NS + 10, START_NS + 10, START_NS + 20]
        assert [row.ingest_ns for row in log_rows(store, new)] == came
        wrong = [START_NS, START_NS, START_NS + HOUR_NS, START_NS + HOUR_NS]
        assert [row.ingest_ns for row in log_rows(store, old)] == wrong, "it is what others copied"
        assert store.first_seq_at(new, STREAM, 0, START_NS + 11) == 5
        assert store.first_seq_at(old, STREAM, 0, START_NS + 11) == 3
        store.check_invariants()


def test_leases_hold_rows_that_both_logs_have(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", StoreConfig(retention=Retention(age_ns=10))) as store:
        store.append(messages(4), START_NS)
        old = store.log
        lease = Lease("query", old, STREAM, 0, 2, START_NS + 100)
        store.lease(lease, START_NS)
        new = store.new_log(START_NS)
        assert store.leases() == [lease]
        assert store.retain(START_NS + 50).removed == 2
        assert store.heads(STREAM, 0) == {old: LogHead(3, 4), new: LogHead(3, 4)}
        store.release("query", old, STREAM, 0)
        while store.retain(START_NS + 60).more:
            pass
        assert store.heads(STREAM, 0) == {old: LogHead(5, 4), new: LogHead(5, 4)}
        assert ids_of(store.range(STREAM, 0)) == []
        assert store.append([message(9)], START_NS + 70) == [Stored(5)]
        store.check_invariants()
