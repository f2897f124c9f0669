"""Leases: what a reader still needs stays, for as long as the lease lasts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from shoal.base.errors import NotFound, OffsetExpired, UsageError
from shoal.base.units import MIB, S_NS
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store_types import Lease, LogHead, LogId
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

CONFIG = StoreConfig(retention=Retention(age_ns=10, size_bytes_max=None))


def lease(log: LogId, after_seq: int, until: int = 1000, holder: str = "query") -> Lease:
    return Lease(holder, log, STREAM, 0, after_seq, START_NS + until)


def test_leased_rows_stay(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", CONFIG) as store:
        store.append([*messages(5), message(1, stream=OTHER)], START_NS)
        store.lease(lease(store.log, 2), START_NS)
        step = store.retain(START_NS + 100)
        assert (step.removed, step.more, step.blocked) == (3, False, True)
        assert store.heads(STREAM, 0) == {store.log: LogHead(3, 5)}
        assert store.heads(OTHER, 0) == {store.log: LogHead(2, 1)}, "others are not held up"
        store.lease(lease(store.log, 4), START_NS)  # the reader has come farther
        assert store.retain(START_NS + 100).removed == 2
        assert store.retain(START_NS + 999).blocked
        assert store.retain(START_NS + 1000).removed == 1, "expired"
        assert store.leases() == []


def test_the_slowest_reader_counts(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", CONFIG) as store:
        store.append(messages(5), START_NS)
        store.lease(lease(store.log, 3, holder="b: fast"), START_NS)
        store.lease(lease(store.log, 1, holder="a: slow"), START_NS)
        assert store.retain(START_NS + 100).removed == 1
        assert store.release("a: slow", store.log, STREAM, 0)
        assert not store.release("a: slow", store.log, STREAM, 0)
        assert not store.release("b: fast", store.log, STREAM, 1)
        assert store.retain(START_NS + 100).removed == 2
        assert store.leases() == [lease(store.log, 3, holder="b: fast")]


def test_a_lease_survives_a_restart(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", CONFIG) as store:
        store.append(messages(5), START_NS)
        store.lease(lease(store.log, 0), START_NS)
    with open_store(tmp_path / "a", CONFIG) as store:
        assert store.leases() == [lease(store.log, 0)]
        step = store.retain(START_NS + 100)
        assert (step.removed, step.blocked) == (0, True)
        assert store.log_read(store.log, STREAM, 0, 0, 9).through == 5


def test_rows_of_a_replica_can_be_leased(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", seed="a") as a, open_store(tmp_path / "b", CONFIG, "b") as b:
        a.append([message(n) for n in (1, 2, 3)], START_NS)
        b.append([message(n) for n in (9, 1, 3)], START_NS)
        b.append_replica(a.log, STREAM, 0, replica_rows(log_rows(a, a.log)), START_NS)
        b.lease(lease(a.log, 1), START_NS)
        step = b.retain(START_NS + 100)
        assert (step.removed, step.blocked) == (2, True)  # 9, and 1, which is row 1 of A
        assert b.heads(STREAM, 0) == {a.log: LogHead(2, 3), b.log: LogHead(3, 4)}
        assert [row.id for row in log_rows(b, a.log, 1)] == [message(2).id, message(3).id]
        b.check_invariants()
        assert b.retain(START_NS + 1000).removed == 2


def test_a_lease_on_rows_to_come(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", CONFIG) as store:
        store.lease(lease(store.log, 0), START_NS)
        store.append(messages(1), START_NS)
        assert store.retain(START_NS + 100).blocked


def test_what_cannot_be_leased(tmp_path: Path) -> None:
    config = StoreConfig(retention=CONFIG.retention, leases_max=1, lease_ns_max=S_NS)
    with open_store(tmp_path / "a", config) as store:
        store.append(messages(2), START_NS)
        store.retain(START_NS + 10)
        with pytest.raises(OffsetExpired):
            store.lease(lease(store.log, 1), START_NS)
        with pytest.raises(NotFound):
            store.lease(lease(UUID(int=7), 1), START_NS)
        for until in (S_NS + 1, 0, -1):
            with pytest.raises(UsageError, match="renew"):
                store.lease(lease(store.log, 2, until), START_NS)
        for holder in ("", "x" * 65):
            with pytest.raises(UsageError, match="1 to 64"):
                store.lease(lease(store.log, 2, holder=holder), START_NS)
        store.lease(lease(store.log, 2, 50, "\N{GRINNING FACE}" * 64), START_NS)
        with pytest.raises(UsageError, match="all 1 leases"):
            store.lease(lease(store.log, 2, holder="another"), START_NS)
        # Expired ones make room.
        store.lease(lease(store.log, 2, holder="another"), START_NS + 50)
        assert [held.holder for held in store.leases()] == ["another"]


def test_a_lease_costs_other_streams_nothing(tmp_path: Path) -> None:
    """Without leases and with them, the same rows of others are left."""
    config = StoreConfig(retention=Retention(age_ns=None, size_bytes_max=MIB))
    left, sizes = [], []
    for name, leases in (("a", False), ("b", True)):
        with open_store(tmp_path / name, config) as store:
            for number in range(40):
                stream = STREAM if number % 4 else OTHER
                batch = [message(number, n, stream=stream, content=b"x" * 900) for n in range(50)]
                store.append(batch, START_NS + number)
                if leases and number > 1:  # as often as it likes, from the first row on
                    with suppress(OffsetExpired):
                        store.lease(lease(store.log, 0, S_NS), START_NS)
                while store.retain(START_NS + number).more:
                    pass
            store.check_invariants()
            left.append([store.heads(stream, 0) for stream in (OTHER, STREAM)])
            sizes.append(store.info().size_bytes)
    (without, own_without), (beside, own) = [[list(held.values()) for held in one] for one in left]
    assert without[0].first < without[0].last, "some rows of others are left"
    assert beside == without
    assert own == own_without
    assert max(sizes) <= MIB


def test_a_lease_costs_others_nothing_in_a_store_that_grows_meanwhile(tmp_path: Path) -> None:
    """A pass has come to what is leased, and goes on when the store is too large."""
    config = StoreConfig(
        retention=Retention(age_ns=10, size_bytes_max=MIB, rows_per_step=8),
    )
    left = []
    for name, leases in (("a", False), ("b", True)):
        with open_store(tmp_path / name, config) as store:
            old = [message(n, content=b"x" * 900) for n in range(100)]
            store.append(old, START_NS)
            store.append([message(n, stream=OTHER) for n in range(40)], START_NS + 1)
            if leases:
                store.lease(lease(store.log, 0, S_NS), START_NS)
                step = store.retain(START_NS + 11)
                assert (step.removed, step.more, step.blocked) == (8, True, True)
            young = [message(n, stream=OTHER, content=b"x" * 900) for n in range(100, 1_200)]
            for at in range(0, len(young), 100):
                store.append(young[at : at + 100], START_NS + 11)
            while store.retain(START_NS + 11).more:
                pass
            store.check_invariants()
            left.append(store.heads(OTHER, 0)[store.log])
            own = store.heads(STREAM, 0)[store.log]
            assert own.first > own.last, "all that is old went, leased or not"
    assert left[1].first == left[0].first
    assert 100 < left[0].first < left[0].last
