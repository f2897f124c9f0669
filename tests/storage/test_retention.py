"""Retention: by age and by size, in bounded steps, never a seq twice."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import MIB
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import LogHead, RetentionStep, Stored
from tests.storage.stage import (
    OTHER,
    START_MS,
    START_NS,
    STREAM,
    horizon_ms,
    kept_rows,
    log_rows,
    message,
    messages,
    open_store,
    replica_rows,
    rows_of,
)

OTHER_LOG = UUID(int=0xC)


def aged(age_ns: int = 10, rows_per_step: int = 512) -> StoreConfig:
    return StoreConfig(retention=Retention(age_ns, None, rows_per_step))


def sized(size_bytes_max: int, rows_per_step: int = 512) -> StoreConfig:
    return StoreConfig(retention=Retention(None, size_bytes_max, rows_per_step))


def settle(store: Store, now_ns: int) -> list[RetentionStep]:
    steps = []
    while True:
        steps.append(store.retain(now_ns))
        if not steps[-1].more:
            return steps


def test_by_age_the_old_end_goes(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", aged()) as store:
        for number in range(6):
            store.append([message(number), message(number, stream=OTHER)], START_NS + number)
        step = store.retain(START_NS + 12)
        assert (step.removed, step.more, step.blocked) == (6, False, False)
        assert store.heads(STREAM, 0) == store.heads(OTHER, 0) == {store.log: LogHead(4, 6)}
        assert [row.id for row in rows_of(store.range(STREAM, 0))] == [
            message(n).id for n in (3, 4, 5)
        ]
        assert store.append([message(9)], START_NS + 12) == [Stored(7)]
        store.check_invariants()


def test_age_counts_from_when_a_message_came_in(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", aged()) as store:
        store.append([message(500)], START_NS)
        store.append([message(-500)], START_NS + 5)  # late: old by its own clock, new here
        assert store.retain(START_NS + 10).removed == 1
        assert [row.id for row in log_rows(store, store.log, 1)] == [message(-500).id]


def test_work_comes_in_steps(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", aged(rows_per_step=4)) as store:
        store.append([m for n in range(5) for m in (message(n), message(n, stream=OTHER))], 0)
        steps = settle(store, START_NS)
        assert [step.removed for step in steps] == [4, 4, 2]
        assert [step.more for step in steps] == [True, True, False]
        assert store.info().messages == 0
        store.check_invariants()
        assert settle(store, START_NS) == [RetentionStep(0, False, False, steps[-1].size_bytes)]


def test_an_empty_log_goes_on_where_it_was(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", aged()) as store:
        store.append(messages(3), START_NS)
        settle(store, START_NS + 99)
    with open_store(tmp_path / "a", aged()) as store:
        assert store.heads(STREAM, 0) == {store.log: LogHead(4, 3)}
        assert store.append(messages(1), START_NS + 99) == [Stored(4)]
        # The clock of a log does not go back, also when no row is left to tell.
        store.append([message(8)], START_NS)
        assert [row.ingest_ns for row in log_rows(store, store.log, 3)] == [START_NS + 99] * 2


def test_what_comes_due_later_is_found(tmp_path: Path) -> None:
    """Between passes a step looks at one number; it must not look at the wrong one."""
    with open_store(tmp_path / "a", aged()) as store:
        assert store.retain(START_NS).removed == 0
        store.append([message(1)], START_NS + 1)
        assert store.retain(START_NS + 10).removed == 0
        store.append([message(2, stream=OTHER)], START_NS + 2)
        assert store.retain(START_NS + 11).removed == 1
        assert store.retain(START_NS + 11).removed == 0
        assert store.retain(START_NS + 12).removed == 1


def test_by_size_the_oldest_go_wherever_they_are(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", sized(MIB)) as store:
        for number in range(40):
            stream = STREAM if number % 4 else OTHER
            batch = [message(number, n, stream=stream, content=b"x" * 900) for n in range(50)]
            store.append(batch, START_NS + number)
            steps = settle(store, START_NS + number)
            assert steps[-1].size_bytes <= MIB
        store.check_invariants()
        assert 0.8 * MIB < store.info().size_bytes <= MIB
        oldest = {
            stream: rows_of(store.range(stream, 0))[0].ingest_ns - START_NS
            for stream in (STREAM, OTHER)
        }
        assert abs(oldest[STREAM] - oldest[OTHER]) <= 4, "both streams end at about the same time"
        assert store.info().file_bytes < 2 * MIB, "pages are used again"


def test_size_counts_large_messages(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", sized(2 * MIB)) as store:
        for number in range(8):
            store.append([message(number, content=bytes(400_000))], START_NS + number)
        settle(store, START_NS)
        assert len(rows_of(store.range(STREAM, 0))) < 6
        assert store.info().size_bytes <= 2 * MIB
        store.check_invariants()


def test_without_limits_everything_stays(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", StoreConfig(retention=Retention(None, None))) as store:
        store.append(messages(10), 0)
        assert settle(store, 2**62)[-1].removed == 0
        assert store.info().messages == 10


def test_the_horizon_is_above_all_that_went(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", aged()) as store:
        assert horizon_ms(store, STREAM, 0) == 0
        store.append([message(7), message(3)], START_NS)
        store.append([message(5), message(9)], START_NS + 1)
        store.retain(START_NS + 10)
        assert horizon_ms(store, STREAM, 0) == START_MS + 8
        assert horizon_ms(store, OTHER, 0) == 0


def test_replica_rows_are_swept_in_steps_too(tmp_path: Path) -> None:
    config = aged(rows_per_step=2)
    with open_store(tmp_path / "a", seed="a") as a, open_store(tmp_path / "b", config, "b") as b:
        a.append(messages(40), START_NS)
        # The last row of each replica is the first here: with it, all become unavailable.
        b.append([message(39), message(3)], START_NS)
        rows = replica_rows(log_rows(a, a.log))
        b.append_replica(OTHER_LOG, STREAM, 0, rows[:4], START_NS + 5)
        b.append_replica(a.log, STREAM, 0, rows, START_NS + 5)
        steps = settle(b, START_NS + 10)
        assert [step.removed for step in steps] == [2, 0, 0, 0, 0, 0]
        assert b.heads(STREAM, 0)[OTHER_LOG] == LogHead(5, 4)
        assert b.heads(STREAM, 0)[a.log] == LogHead(41, 40)
        assert kept_rows(b) == 38, "those of the own log"
        b.check_invariants()
        # A restart in the middle of a sweep forgets nothing.
        b.append([message(99)], START_NS + 6)
    with open_store(tmp_path / "b", config, "b") as b:
        settle(b, START_NS + 99)
        assert b.info().messages == 0
        b.check_invariants()


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a map of a third more"):
        StoreConfig(retention=Retention(size_bytes_max=2 * MIB), map_bytes_max=2 * MIB)
    with pytest.raises(UsageError, match="at least 1"):
        StoreConfig(retention=Retention(rows_per_step=0))
