"""Digests: two stores find what each lacks by comparing a few numbers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, StreamId
from shoal.protocols.streams.messages import Position, VerifiedMessage
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.digests import differing
from shoal.storage.layout import BUCKET_MS
from shoal.storage.rows import BucketDigest
from shoal.storage.store import Store
from tests.storage.stage import (
    START_MS,
    START_NS,
    STREAM,
    log_rows,
    message,
    open_store,
    replica_rows,
    rows_of,
    verified,
)

HOUR_MS = 60 * BUCKET_MS
DAY_MS = 24 * HOUR_MS
FIRST_DAY_MS = START_MS // DAY_MS * DAY_MS
DAYS_MS = (FIRST_DAY_MS, FIRST_DAY_MS + 2 * DAY_MS)


def test_coarse_digests_are_sums_of_fine_ones(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append([message(n * 10_000) for n in range(200)], START_NS)
        minutes = store.digests(STREAM, 0, *DAYS_MS, BUCKET_MS)
        assert [(d.begin_ms - START_MS) // BUCKET_MS for d in minutes] == list(range(34))
        assert [d.count for d in minutes] == [6] * 33 + [2]
        (day,) = store.digests(STREAM, 0, *DAYS_MS, DAY_MS)
        total = sum(int.from_bytes(d.sum) for d in minutes) % 2**128
        assert day == BucketDigest(FIRST_DAY_MS, 200, total.to_bytes(16))
        half = store.digests(STREAM, 0, START_MS, START_MS + 3 * BUCKET_MS, BUCKET_MS)
        assert half == minutes[:3]
        assert store.digests(STREAM, 1, *DAYS_MS, DAY_MS) == []
        assert store.digests(StreamId("unknown"), 0, *DAYS_MS, DAY_MS) == []


def test_digests_do_not_depend_on_order_or_on_the_store(tmp_path: Path) -> None:
    batch = [message(n * 1000, n % 3) for n in range(100)]
    with open_store(tmp_path / "a") as a, open_store(tmp_path / "b") as b:
        b.append([message(1, stream=StreamId("first seen here"))], START_NS)  # other numbers
        a.append(batch, START_NS)
        random.Random(1).shuffle(batch)
        for begin in range(0, 100, 7):
            b.append(batch[begin : begin + 7], START_NS)
        assert a.digests(STREAM, 0, *DAYS_MS, BUCKET_MS) == b.digests(
            STREAM, 0, *DAYS_MS, BUCKET_MS
        )


def test_what_retention_removes_leaves_the_digests(tmp_path: Path) -> None:
    config = StoreConfig(retention=Retention(age_ns=10))
    with open_store(tmp_path / "a", config) as a, open_store(tmp_path / "b") as b:
        a.append([message(1), message(BUCKET_MS)], START_NS)
        a.append([message(2)], START_NS + 5)
        a.retain(START_NS + 10)
        b.append([message(2)], START_NS)
        assert a.digests(STREAM, 0, *DAYS_MS, DAY_MS) == b.digests(STREAM, 0, *DAYS_MS, DAY_MS)


@pytest.mark.parametrize(
    ("begin", "end", "width"),
    [
        (0, DAY_MS, BUCKET_MS + 1),
        (0, DAY_MS, 0),
        (BUCKET_MS, DAY_MS, HOUR_MS),
        (0, DAY_MS + BUCKET_MS, HOUR_MS),
        (-DAY_MS, DAY_MS, DAY_MS),
        (0, 2**70 // BUCKET_MS * BUCKET_MS, BUCKET_MS),
    ],
)
def test_widths_that_do_not_fit_are_refused(
    tmp_path: Path, begin: int, end: int, width: int
) -> None:
    with open_store(tmp_path / "a") as store:
        store.append([message(0)], START_NS)
        with pytest.raises(UsageError, match="multiple"):
            store.digests(STREAM, 0, begin, end, width)


def test_too_many_digests_are_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", StoreConfig(digests_max=3)) as store:
        store.append([message(n * BUCKET_MS) for n in range(4)], START_NS)
        with pytest.raises(UsageError, match="wider"):
            store.digests(STREAM, 0, *DAYS_MS, BUCKET_MS)
        assert len(store.digests(STREAM, 0, *DAYS_MS, HOUR_MS)) == 1


def test_two_stores_find_what_each_lacks(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sent = [message(rng.randrange(DAY_MS), n) for n in range(3_000)]
    with open_store(tmp_path / "a", seed="a") as a, open_store(tmp_path / "b", seed="b") as b:
        lost_by_a, lost_by_b = set(rng.sample(range(3_000), 3)), set(rng.sample(range(3_000), 2))
        a.append([m for n, m in enumerate(sent) if n not in lost_by_a], START_NS)
        b.append([m for n, m in enumerate(sent) if n not in lost_by_b], START_NS)
        numbers, ids = repair(a, b)
        assert numbers + ids < 750, "hours, then the minutes of at most five of them"
        assert {row.id for row in rows_of(a.range(STREAM, 0))} == {m.id for m in sent}
        assert {row.id for row in rows_of(b.range(STREAM, 0))} == {m.id for m in sent}
        assert repair(a, b) == (2, 0), "then two numbers say that nothing differs"
        for store, other in ((a, b), (b, a)):
            rows = replica_rows(log_rows(other, other.log), with_messages=False)
            store.append_replica(other.log, STREAM, 0, rows, START_NS)
            store.check_invariants()
            assert list(log_rows(store, other.log)) == list(log_rows(other, other.log))


def repair(a: Store, b: Store) -> tuple[int, int]:
    """Anti-entropy as two nodes would do it; gives how many digests and ids went over the wire."""
    numbers = ids = 0
    begins = [FIRST_DAY_MS]
    for width, inside in ((DAY_MS, DAY_MS), (HOUR_MS, DAY_MS), (BUCKET_MS, HOUR_MS)):
        found: list[int] = []
        for begin in begins:
            ours, theirs = (s.digests(STREAM, 0, begin, begin + inside, width) for s in (a, b))
            numbers += len(ours) + len(theirs)
            found += differing(ours, theirs)
        begins = found
    for begin in begins:
        sides = [ids_between(store, begin, begin + BUCKET_MS) for store in (a, b)]
        ids += sum(map(len, sides))
        a.append(fetch(b, a.wanted(STREAM, 0, sides[1])), START_NS)
        b.append(fetch(a, b.wanted(STREAM, 0, sides[0])), START_NS)
    return numbers, ids


def ids_between(store: Store, begin_ms: int, end_ms: int) -> list[MessageId]:
    pages = store.ids(STREAM, 0, Position(begin_ms, 0), Position(end_ms - 1, 2**63 - 1))
    return [id for page in pages for id in page]


def fetch(store: Store, ids: list[MessageId]) -> list[VerifiedMessage]:
    return [verified(row) for row in rows_of(store.get(ids))]
