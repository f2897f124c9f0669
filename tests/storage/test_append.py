"""Appending: what is new gets a seq, what is known keeps it, and nothing is half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX, MessageId, StreamId
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import StoreConfig
from shoal.storage.message_store.store_types import Conflict, Duplicate, LogHead, Stored
from tests.storage.stage import (
    ALICE,
    BOB,
    OTHER,
    START_NS,
    STREAM,
    ids_of,
    log_rows,
    message,
    messages,
    open_store,
    rows_of,
)
from tests.support.machines import peer_id


def test_seqs_are_given_in_order_and_messages_come_back_as_they_came(tmp_path: Path) -> None:
    batch = [message(5), message(3), message(9)]
    with open_store(tmp_path / "a") as store:
        assert store.append(batch, START_NS) == [Stored(1), Stored(2), Stored(3)]
        assert store.append([message(4)], START_NS + 7) == [Stored(4)]
        rows = list(log_rows(store, store.log))
        assert [row.signed for row in rows] == [m.signed for m in [*batch, message(4)]]
        assert [row.ingest_ns - START_NS for row in rows] == [0, 0, 0, 7]
        by_position = rows_of(store.range(STREAM, 0))
        assert [row.id for row in by_position] == [message(n).id for n in (3, 4, 5, 9)]
        assert [row.seq for row in by_position] == [2, 4, 1, 3]
        store.check_invariants()


def test_every_place_has_its_own_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        batch = [message(1), message(1, stream=OTHER), message(1, partition=7), message(2)]
        assert store.append(batch, START_NS) == [Stored(1), Stored(1), Stored(1), Stored(2)]
        assert store.places() == [(STREAM, 0), (STREAM, 7), (OTHER, 0)]
        assert store.heads(STREAM, 0) == {store.log: LogHead(1, 2)}
        assert store.heads(STREAM, 7) == {store.log: LogHead(1, 1)}
        assert store.heads(STREAM, 8) == {store.log: LogHead(1, 0)}
        assert store.heads(StreamId("never seen"), 0) == {store.log: LogHead(1, 0)}


def test_a_duplicate_keeps_its_seq(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        results = store.append([message(1), message(2), message(1)], START_NS)
        assert results == [Stored(1), Stored(2), Duplicate(1)]
        assert store.append([message(2), message(3)], START_NS + 1) == [Duplicate(2), Stored(3)]
        assert [row.ingest_ns for row in log_rows(store, store.log, 1)] == [START_NS, START_NS + 1]


def test_one_body_signed_twice_is_a_duplicate(tmp_path: Path) -> None:
    first, second = message(1), message(1, signature=b"t")
    with open_store(tmp_path / "a") as store:
        assert store.append([first, second], START_NS) == [Stored(1), Duplicate(1)]
        assert rows_of(store.get([first.id]))[0].signed == first.signed


def test_another_body_under_the_same_id_is_a_conflict(tmp_path: Path) -> None:
    first, second = message(1), message(1, content=b"something else")
    with open_store(tmp_path / "a") as store:
        store.append([first], START_NS)
        results = store.append([second, message(2)], START_NS)
        assert results == [Conflict(1, first.signed, second.signed), Stored(2)]
        assert rows_of(store.get([first.id]))[0].signed == first.signed
        store.check_invariants()


def test_ids_differ_in_every_part(tmp_path: Path) -> None:
    batch = [
        message(1),
        message(1, 1),
        message(1, publisher=BOB),
        message(1, chain="c"),
        message(1, chain="c11"),
        message(2),
    ]
    with open_store(tmp_path / "a") as store:
        assert store.append(batch, START_NS) == [Stored(seq) for seq in range(1, 7)]
        order = [message(1, chain="c"), *batch[:1], batch[4], batch[2], batch[1], batch[5]]
        assert ids_of(store.range(STREAM, 0)) == [m.id for m in order]


def test_the_longest_names_and_numbers_fit(tmp_path: Path) -> None:
    long = StreamId("\N{GRINNING FACE}" * 256)
    almost = StreamId("\N{GRINNING FACE}" * 255 + "x")
    batch = [
        VerifiedMessage(
            MessageId(stream, 99, INT63_MAX, INT63_MAX, peer_id(2**160 - 1), "\U0010ffff" * 32),
            None,
            0,
            b"",
            b"s" * 65 + b"body",
        )
        for stream in (long, almost)
    ]
    with open_store(tmp_path / "a") as store:
        assert store.append(batch, 0) == [Stored(1), Stored(1)]
        for sent in batch:
            assert ids_of(store.range(sent.id.stream, 99)) == [sent.id]
        store.check_invariants()


def test_a_clock_that_goes_back_does_not_take_the_log_along(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append([message(1)], START_NS + 100)
        store.append([message(2)], START_NS)
        store.append([message(3)], START_NS + 200)
        times = [row.ingest_ns - START_NS for row in log_rows(store, store.log)]
        assert times == [100, 100, 200]


def test_the_log_goes_on_after_a_restart(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        log = store.log
        store.append(messages(3), START_NS)
    with open_store(tmp_path / "a", seed="other entropy") as store:
        assert store.log == log
        assert store.append(messages(2, 2), START_NS) == [Duplicate(3), Stored(4)]
    assert open_store(tmp_path / "b", seed="another store").log != log


def test_a_batch_that_cannot_be_leaves_nothing(tmp_path: Path) -> None:
    config = StoreConfig(streams_max=1, batch_rows_max=3, batch_bytes_max=1000)
    with open_store(tmp_path / "a", config) as store:
        with pytest.raises(UsageError, match="one more than the 1"):
            store.append([message(1), message(1, stream=OTHER)], START_NS)
        assert (store.places(), store.info().messages, store.info().streams) == ([], 0, 0)
        with pytest.raises(UsageError, match="at most 3"):
            store.append(messages(4), START_NS)
        with pytest.raises(UsageError, match="at most 1000"):
            store.append([message(1, content=b"x" * 1000)], START_NS)
        for now_ns in (-1, 2**63):
            with pytest.raises(UsageError, match="Unix time"):
                store.append([message(1)], now_ns)
        assert store.append([], START_NS) == []
        assert store.append([message(1)], START_NS) == [Stored(1)]
        store.check_invariants()


@pytest.mark.parametrize(
    "id",
    [
        MessageId(StreamId(""), 0, 0, 0, ALICE, "c"),
        MessageId(StreamId("x" * 257), 0, 0, 0, ALICE, "c"),
        MessageId(StreamId("\ud800"), 0, 0, 0, ALICE, "c"),
        MessageId(STREAM, 101, 0, 0, ALICE, "c"),
        MessageId(STREAM, -1, 0, 0, ALICE, "c"),
        MessageId(STREAM, 0, -1, 0, ALICE, "c"),
        MessageId(STREAM, 0, 0, 2**64, ALICE, "c"),
        MessageId(STREAM, 0, 0, 0, peer_id(1)[:19], "c"),  # type: ignore[arg-type]
        MessageId(STREAM, 0, 0, 0, ALICE, "c" * 129),
    ],
)
def test_an_id_that_no_wire_brings_is_refused(id: MessageId, tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        with pytest.raises(UsageError):
            store.append([VerifiedMessage(id, None, 0, b"", b"s" * 66)], START_NS)
        assert store.info().messages == 0


def test_large_messages_are_kept_whole(tmp_path: Path) -> None:
    batch = [message(n, content=bytes([n]) * 512 * 1024) for n in range(3)]
    with open_store(tmp_path / "a") as store:
        store.append(batch, START_NS)
        pages = list(store.range(STREAM, 0))
        assert [len(page) for page in pages] == [2, 1], "a page is about a mebibyte"
        assert [row.signed for row in rows_of(pages)] == [m.signed for m in batch]
