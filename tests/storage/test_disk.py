"""A store behind the disk port: batches, what fails alone, and single pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.identity.message_body import Position
from shoal.kernel.disk import Disk, DiskResult
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed
from shoal.protocols.streams.history.disk_requests import (
    DISK_FAILED,
    STORE_GONE,
    FindLast,
    KeptRow,
    MessageKey,
    ReplicaChange,
    ReplicaKey,
    Retain,
    decode_answer,
    encode,
)
from shoal.protocols.streams.history.messages import (
    AskHeads,
    ReadLast,
    ReadRange,
    Refused,
    TellHeads,
)
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.protocols.streams.wire import HistoryCodec
from shoal.storage.config import StoreConfig
from shoal.storage.errors import StoreFull, StoreGone
from shoal.storage.message_store import ingest
from shoal.storage.message_store.layout import Rotten
from shoal.storage.message_store.position_reader import LastScan, Page, PageLimits
from shoal.storage.message_store.store_disk import LAST_STEPS_MAX, Answers, StoreDisk
from tests.storage.stage import (
    ALICE,
    BOB,
    OTHER,
    START_MS,
    START_NS,
    STREAM,
    message,
    messages,
    open_store,
)

LOG = UUID(int=7)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[StoreDisk]:
    with open_store(tmp_path / "s", StoreConfig(streams_max=1)) as store:
        yield StoreDisk(store)


def keep(one: VerifiedMessage, token: Any = None) -> Store:
    return Store(encode(MessageKey(one.id)), one.signed, token)


def replica(token: Any, *sent: VerifiedMessage, first: int = 1, advance: bool = False) -> Store:
    rows = tuple(
        KeptRow(
            first + number,
            START_NS,
            one.id.timestamp_ms,
            one.id.sequence,
            one.id.publisher,
            one.id.chain,
            one.signed,
        )
        for number, one in enumerate(sent)
    )
    key = ReplicaKey(STREAM, 0, LOG.bytes)
    return Store(encode(key), encode(ReplicaChange(rows, advance)), token)


def work(disk: Disk, *effects: Store | Load) -> list[DiskResult]:
    return disk.work([(number % 3, effect) for number, effect in enumerate(effects)], START_NS)


def test_all_messages_of_a_batch_share_a_transaction(disk: StoreDisk) -> None:
    sent = messages(5)
    everything = ReadRange(9, STREAM, 0, None, None, None, None, None, 1000)
    with mock.patch.object(disk.store, "append", wraps=disk.store.append) as append:
        results = work(
            disk,
            keep(sent[0], 0),
            Load(encode(everything), "all"),
            keep(sent[1], 1),
            replica("replica", sent[3]),
            keep(sent[2], 2),
        )
    assert append.call_count == 1
    loaded = results.pop(1)
    assert results == [Stored(0), Stored(1), Stored("replica"), Stored(2)]
    assert isinstance(loaded, Loaded)
    assert loaded.value is not None
    answer: Any = decode_answer(loaded.value)
    assert answer.rows == tuple(one.signed for one in sent[:4])


def test_a_copy_of_a_rotten_row_fails_alone(disk: StoreDisk) -> None:
    sent = messages(5)
    assert work(disk, keep(sent[0], 0)) == [Stored(0)]
    known = ingest.Ingest._known

    def rots(self: Any, key: bytes, signed: bytes) -> Any:
        if signed == sent[0].signed:
            raise Rotten(key)
        return known(self, key, signed)

    with mock.patch.object(ingest.Ingest, "_known", rots):
        results = work(disk, *(keep(one, at) for at, one in enumerate(sent)))
    assert results[0] == StoreFailed(0, DISK_FAILED)
    assert results[1:] == [Stored(1), Stored(2), Stored(3), Stored(4)]


def test_what_cannot_be_stored_fails_alone(disk: StoreDisk) -> None:
    one, other = message(1), message(1, content=b"other")
    results = work(
        disk,
        keep(one, "first"),
        keep(other, "conflict"),
        keep(message(2, stream=OTHER), "one stream too many"),
        Store(encode(MessageKey(one.id)), b"garbage", "garbage"),
        Store(b"garbage", b"", "no key"),
        keep(message(3), "last"),
    )
    assert results == [
        Stored("first"),
        StoreFailed("conflict", "conflict"),
        StoreFailed("one stream too many", "failed"),
        StoreFailed("garbage", "malformed"),
        StoreFailed("no key", "malformed"),
        Stored("last"),
    ]
    assert disk.store.info().messages == 2


def test_a_replica_is_appended_advanced_and_refused(disk: StoreDisk) -> None:
    sent = messages(10)
    assert work(disk, replica(1, *sent[:2])) == [Stored(1)]
    assert work(disk, replica(2, *sent[:3])) == [Stored(2)]  # again, and one more
    assert work(disk, replica(3, sent[5], first=9)) == [StoreFailed(3, "malformed")]
    assert work(disk, replica(4, sent[5], first=9, advance=True)) == [Stored(4)]
    assert work(disk, replica(5, sent[6], first=9)) == [StoreFailed(5, "log-diverged")]
    assert disk.store.heads(STREAM, 0)[LOG].first == 9
    bare = ReplicaChange((KeptRow(10, START_NS, 1, 1, ALICE, "c", None),), False)
    key = encode(ReplicaKey(STREAM, 0, LOG.bytes))
    assert work(disk, Store(key, encode(bare), 6)) == [StoreFailed(6, "not-held")]
    assert work(disk, Store(key, b"\xc1", 7)) == [StoreFailed(7, "malformed")]
    disk.store.check_invariants()


def test_a_problem_is_told_once_and_forgotten_when_it_is_over(
    disk: StoreDisk, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch.object(disk.store, "append", side_effect=StoreFull("no room")):
        for token in range(3):
            assert work(disk, keep(message(1), token)) == [StoreFailed(token, "failed")]
    assert disk.problem == "no room"
    assert caplog.text.count("no room") == 1
    work(disk, keep(message(1)))
    assert disk.problem is None


def test_a_question_that_is_none_has_no_answer(disk: StoreDisk) -> None:
    assert work(disk, Load(b"\xc1", 1), Load(b"", 2)) == [Loaded(1, None), Loaded(2, None)]


def test_a_store_is_not_cleared(disk: StoreDisk) -> None:
    with pytest.raises(UsageError, match="remove its folder"):
        disk.clear()


# Pages by themselves

NUMBERS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2)), unique=True, max_size=40)


@given(NUMBERS, st.integers(1, 7), st.integers(1, 400), st.integers(1, 12), st.booleans())
def test_pages_put_together_are_what_an_iterator_gives(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: list[tuple[int, int]],
    rows_max: int,
    bytes_max: int,
    scan_rows_max: int,
    filtered: bool,
) -> None:
    config = StoreConfig(scan_rows_max=scan_rows_max)
    with open_store(tmp_path_factory.mktemp("s") / "s", config) as store:
        sent = [message(n, k, publisher=(ALICE, BOB)[n % 2]) for n, k in numbers]
        store.append(sent, START_NS)
        begin, end = Position(START_MS + 3, 1), Position(START_MS + 17, 1)
        publisher = BOB if filtered else None
        limits = PageLimits(rows_max, bytes_max)
        found: list[Any] = []
        after = None
        while True:
            rows, after, _ = store.page(
                STREAM,
                0,
                limits,
                from_position=begin,
                to_position=end,
                publisher=publisher,
                after=after,
            )
            assert len(rows) <= rows_max
            assert len(rows) <= 1 or sum(len(row.signed) for row in rows) <= bytes_max
            found += rows
            if after is None:
                break
        pages = store.range(STREAM, 0, begin, end, publisher)
        assert found == [row for page in pages for row in page]


def test_the_last_of_a_rare_publisher_are_looked_for_step_by_step(tmp_path: Path) -> None:
    config = StoreConfig(scan_rows_max=10)
    with open_store(tmp_path / "s", config) as store:
        store.append([message(0, publisher=BOB), *messages(100, begin=1)], START_NS)
        store.append([message(55, publisher=BOB, sequence=9)], START_NS)
        limits = PageLimits(10, 1_000_000)
        steps = 0
        found = store.last_page(STREAM, 0, 2, limits, publisher=BOB)
        while isinstance(found, LastScan):
            steps += 1
            found = store.last_page(
                STREAM, 0, found.left, limits, publisher=BOB, before=found.before
            )
        assert steps == 10, "ten keys each"
        rows = found.rows
        while found.next is not None:
            found = store.page(STREAM, 0, limits, publisher=BOB, after=found.next)
            rows += found.rows
        assert [row.id.timestamp_ms - START_MS for row in rows] == [0, 55]
        newest = store.last_page(STREAM, 0, 3, limits)
        assert isinstance(newest, Page)
        assert [row.id.timestamp_ms - START_MS for row in newest.rows] == [98, 99, 100]


def test_they_are_not_looked_for_without_end(tmp_path: Path) -> None:
    config = StoreConfig(scan_rows_max=10)
    with open_store(tmp_path / "s", config) as store:
        store.append([message(0, publisher=BOB), *messages(1000, begin=1)], START_NS)
        disk, steps = StoreDisk(store), 0
        key = encode(ReadLast(7, STREAM, 0, 1, BOB, 10))
        while True:
            (loaded,) = work(disk, Load(key, None))
            assert isinstance(loaded, Loaded)
            assert loaded.value is not None
            answer = decode_answer(loaded.value)
            if not isinstance(answer, FindLast):
                break
            key = loaded.value
            steps += 1
        assert answer == Refused(7, "too-far")
        assert steps == LAST_STEPS_MAX - 1


def test_a_question_that_fails_again_and_again_is_told_in_full_once(
    disk: StoreDisk, caplog: pytest.LogCaptureFixture
) -> None:
    key = encode(ReadRange(1, STREAM, 0, None, None, None, None, None, 10))
    with mock.patch.object(disk.store, "page", side_effect=StoreFull("no room")):
        for _ in range(1234):
            assert work(disk, Load(key, None)) == [Loaded(None, None)]
    assert work(disk, Load(b"no question", None)) == [Loaded(None, None)]
    assert disk.unanswered["StoreFull"] == 1234
    assert len(disk.unanswered) == 2
    full = [record for record in caplog.records if record.exc_info]
    assert len(full) == 2, "once for each kind"
    counted = [record.getMessage() for record in caplog.records if not record.exc_info]
    assert [text.split()[0] for text in counted] == ["10", "100", "1000"]


def test_heads_of_all_partitions_of_a_stream(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        store.append([message(1), message(2), message(1, partition=99)], START_NS)
        store.append([message(1, stream=OTHER)], START_NS)
        store.advance_replica(LOG, STREAM, 99, 5)
        heads = store.stream_heads(STREAM)
        for partition in (0, 99):
            assert heads[partition].logs == store.heads(STREAM, partition)
        assert list(heads) == [0, 99]
        assert store.stream_heads(type(STREAM)("unknown")) == {}


def test_heads_fit_a_frame_however_long_the_names_are(tmp_path: Path) -> None:
    """Or whoever asks for them gets nothing that it can read, and follows nothing any more."""
    names = [StreamId("0x" + "é" * 250 + f"{number:02}") for number in range(30)]
    sent = [message(1, stream=name, partition=part) for name in names for part in range(100)]
    with open_store(tmp_path / "s") as store:
        store.append(sent, START_NS)
        answers, told = Answers(store), []
        streams, begin = tuple(names), 0
        while streams:
            answer = answers.answer(AskHeads(1, streams, begin))
            assert isinstance(answer, TellHeads)
            codec = HistoryCodec()
            assert codec.decode(codec.encode(answer)) == answer
            told += [(place.stream, place.partition) for place in answer.places]
            last, begin = told[-1][0], told[-1][1] + 1
            streams = streams[streams.index(last) :] if answer.more else ()
        assert told == [(one.id.stream, one.id.partition) for one in sent]


def test_one_that_cannot_be_stored_does_not_cost_the_others_a_sync_each(disk: StoreDisk) -> None:
    sent = [*messages(500), message(0, stream=OTHER), *messages(500, begin=500)]
    with mock.patch.object(disk.store, "append", wraps=disk.store.append) as append:
        results = work(disk, *map(keep, sent))
    assert [type(result) for result in results].count(StoreFailed) == 1
    assert isinstance(results[500], StoreFailed)
    assert append.call_count <= 2 * len(sent).bit_length()


def test_a_disk_that_refuses_stores_nothing_and_still_answers(
    disk: StoreDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Another node writes under this log's name: a row here would have a number of a row there."""
    before, later, copied = messages(3)
    assert isinstance(work(disk, keep(before))[0], Stored)
    disk.refuse("a newer session runs elsewhere")
    for effect in (keep(later, "mine"), replica("theirs", copied)):
        assert work(disk, effect) == [StoreFailed(effect.token, DISK_FAILED)]
    assert disk.problem == disk.refused == "a newer session runs elsewhere"
    assert "nothing can be stored" in caplog.text
    (loaded,) = work(disk, Load(encode(Retain()), "retain"))
    assert isinstance(loaded, Loaded)
    assert loaded.value is not None
    assert [head.last for head in disk.store.stream_heads(STREAM)[0].logs.values()] == [1]


# A store that is not there any more


@pytest.fixture(params=["folder deleted", "file deleted", "another file", "folder moved"])
def lost(request: pytest.FixtureRequest, disk: StoreDisk, tmp_path: Path) -> StoreDisk:
    """A store with a message whose folder somebody touched."""
    assert work(disk, keep(message(0), 0)) == [Stored(0)]
    folder = tmp_path / "s"
    if request.param == "folder deleted":
        shutil.rmtree(folder)
    elif request.param == "folder moved":
        folder.rename(tmp_path / "elsewhere")
    else:
        (folder / "data.mdb").unlink()
        if request.param == "another file":
            (folder / "data.mdb").write_bytes(b"")
    return disk


def test_nothing_is_stored_in_a_file_that_nobody_will_find(lost: StoreDisk) -> None:
    """It was acknowledged, and gone after the next start."""
    assert lost.problem is not None
    assert "data.mdb is not there any more" in lost.problem, "before anything is asked"
    results = work(lost, keep(message(1), 1), replica("replica", message(2)))
    assert results == [StoreFailed(1, STORE_GONE), StoreFailed("replica", STORE_GONE)]


def test_nor_is_it_read(lost: StoreDisk) -> None:
    """What it answers would lack all that it cannot take."""
    everything = ReadRange(9, STREAM, 0, None, None, None, None, None, 1000)
    assert work(lost, Load(encode(everything), 0), Load(encode(Retain()), 1)) == [
        Loaded(0, None),
        Loaded(1, None),
    ]
    with pytest.raises(StoreGone):
        lost.store.info()


def test_a_store_that_is_put_back_goes_on(disk: StoreDisk, tmp_path: Path) -> None:
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    assert work(disk, keep(message(0), 0)) == [StoreFailed(0, STORE_GONE)]
    (tmp_path / "elsewhere").rename(tmp_path / "s")
    assert work(disk, keep(message(0), 0)) == [Stored(0)]
    assert disk.problem is None
