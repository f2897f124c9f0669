"""Names of streams in a store: those of which nothing is held make room for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import NotFound, OffsetExpired, UsageError
from shoal.base.ids import StreamId
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import Lease, LogHead, ReplicaRow
from tests.storage.stage import HOUR_NS, START_NS, message, open_store

FEW = StoreConfig(streams_max=3, retention=Retention(age_ns=HOUR_NS))
NAMES = [StreamId(f"0xowner/{number}") for number in range(8)]
LATER_NS = START_NS + 2 * HOUR_NS


def fill(store: Store, *numbers: int, rows: int = 1, now_ns: int = START_NS) -> None:
    for number in numbers:
        made = [message(row, stream=NAMES[number], chain=f"{now_ns}") for row in range(rows)]
        store.append(made, now_ns)


def expire(store: Store, now_ns: int = LATER_NS) -> None:
    while store.retain(now_ns).more:
        pass


def test_streams_without_rows_make_room_and_others_stay(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", FEW) as store:
        fill(store, 0, 1)
        fill(store, 2, now_ns=LATER_NS)
        with pytest.raises(UsageError, match="one more than"):
            fill(store, 3)
        assert store.forget_empty(10) == []  # they have rows
        expire(store)
        assert store.forget_empty(10) == NAMES[:2]
        store.check_invariants()
        fill(store, 3, 4, now_ns=LATER_NS)
        store.check_invariants()
        assert {stream for stream, _ in store.places()} == {*NAMES[2:5]}
        assert len(next(store.range(NAMES[2], 0))) == 1


def test_what_others_were_told_last_is_told_no_twice_and_nothing_is_left_out(
    tmp_path: Path,
) -> None:
    """Other storage nodes ask for the streams after a number."""
    with open_store(tmp_path / "store", FEW) as store:
        fill(store, 0, 1, 2)
        last = store.streams_after(-1, 10)[-1][0]
        expire(store)
        assert store.forget_empty(10) == NAMES[:3]
        fill(store, 3, 1, now_ns=LATER_NS)
        assert [stream for _, stream in store.streams_after(last, 10)] == [NAMES[3], NAMES[1]]


def test_an_offset_never_names_two_messages(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", FEW) as store:
        fill(store, 0, rows=5)
        fill(store, 1, rows=2)
        expire(store)
        store.forget_empty(10)
        fill(store, 0, rows=3, now_ns=LATER_NS)
        fill(store, 1, rows=3, now_ns=LATER_NS)
        store.check_invariants()
        for number in (0, 1):
            head = store.heads(NAMES[number], 0)[store.log]
            assert (head.first, head.last) == (6, 8)
        with pytest.raises(OffsetExpired):
            store.log_read(store.log, NAMES[1], 0, 2, 10)
        log = store.log
    with open_store(tmp_path / "store", FEW) as store:  # it is on disk
        expire(store, LATER_NS + 2 * HOUR_NS)
        store.forget_empty(10)
        fill(store, 2, now_ns=LATER_NS + 2 * HOUR_NS)
        assert store.heads(NAMES[2], 0)[log].first == 9


@pytest.mark.parametrize("keep_old", [True, False])
def test_a_new_log_takes_no_name_for_ever(tmp_path: Path, keep_old: bool) -> None:
    """As after a restore, or when the clock was set right: what was closed goes with its rows."""
    with open_store(tmp_path / "store", FEW) as store:
        fill(store, 0, rows=5)
        fill(store, 1, 2)
        old, new = store.log, store.new_log(START_NS, keep_old=keep_old)
        assert store.forget_empty(10) == [], "they have rows, of both logs"
        expire(store)
        assert store.forget_empty(10) == NAMES[:3]
        store.check_invariants()
        fill(store, 0, rows=2, now_ns=LATER_NS)
        store.check_invariants()
        assert store.heads(NAMES[0], 0) == {new: LogHead(6, 7)}
        with pytest.raises(NotFound):
            store.log_read(old, NAMES[0], 0, 0, 10)
        # What others have of the old log comes back as a copy like any other.
        row = message(9, stream=NAMES[0])
        store.append_replica(old, NAMES[0], 0, [ReplicaRow(7, LATER_NS, row.id, row)], LATER_NS)
        assert store.heads(NAMES[0], 0) == {old: LogHead(7, 7), new: LogHead(6, 8)}
        store.check_invariants()


def test_what_a_reader_has_leased_is_not_forgotten(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", FEW) as store:
        fill(store, 0)
        lease = Lease("reader", store.log, NAMES[0], 0, 1, LATER_NS + HOUR_NS // 2)
        store.lease(lease, LATER_NS)  # it has read the row, and waits for the next
        expire(store)
        assert next(store.range(NAMES[0], 0), []) == []
        assert store.forget_empty(10) == []


def test_a_look_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", StoreConfig(retention=Retention(age_ns=HOUR_NS))) as store:
        fill(store, *range(8))
        expire(store)
        found = [store.forget_empty(3) for _ in range(3)]
        assert [len(names) for names in found] == [3, 3, 2]
        assert store.info().streams == 0
