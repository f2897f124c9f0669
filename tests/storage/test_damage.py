"""One damaged row: it is passed over, told, and put right from a copy; all others are as good."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.base.ids import MessageId
from shoal.protocols.streams.history.log_follower import LOST
from shoal.protocols.streams.history.messages import (
    BEHIND,
    AskMessages,
    AskRows,
    LogRows,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
    TellMessages,
    TellRows,
)
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.layout import OWN, entry_key, place_of, tail_of
from shoal.storage.message_store.position_reader import Page, PageLimits
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import Answers
from shoal.storage.message_store.store_types import Duplicate, ReplicaRow, Stored
from tests.storage.stage import (
    START_NS,
    STREAM,
    claim,
    ids_of,
    log_rows,
    message,
    messages,
    open_store,
    replica_rows,
)

SENT = messages(9)
BAD = SENT[4]  # seq 5
PLACE = place_of(0, 0)
KEY = PLACE + tail_of(BAD.id)
ROW = entry_key(OWN, PLACE, 5)


def flipped(value: bytes, at: int) -> bytes:
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


def body(store: Store) -> None:
    change(store, "messages", KEY, lambda value: flipped(value, len(value) - 1))


def header(store: Store) -> None:
    change(store, "messages", KEY, lambda value: flipped(value, 7))


def checksum(store: Store) -> None:
    change(store, "messages", KEY, lambda value: flipped(value, 17))


def row(store: Store) -> None:
    """The tail of the row: it names another message than it did."""
    change(store, "entries", ROW, lambda value: flipped(value, 20))


def row_key(store: Store) -> None:
    move(store, "entries", ROW, entry_key(OWN, PLACE, 2**40 + 5))


def message_key(store: Store) -> None:
    move(store, "messages", KEY, flipped(KEY, 30))


def change(store: Store, table: str, key: bytes, by: Callable[[bytes], bytes]) -> None:
    """As a disk changes a byte, but in a way that lmdb can find its pages after it."""
    kept = getattr(store._database.tables, table)
    store._database.write(lambda txn: txn.put(key, by(txn.get(key, b"", db=kept)), db=kept))


def move(store: Store, table: str, key: bytes, to: bytes) -> None:
    kept = getattr(store._database.tables, table)
    store._database.write(lambda txn: txn.put(to, txn.pop(key, db=kept) or b"", db=kept))


DAMAGES = [body, header, checksum, row, row_key, message_key]
Hurt = Callable[[Store], None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "a") as opened:
        opened.append(SENT, START_NS)
        yield opened


def others() -> list[MessageId]:
    return [one.id for one in SENT if one is not BAD]


@pytest.mark.parametrize("hurt", DAMAGES)
def test_what_comes_after_a_damaged_row_is_read(store: Store, hurt: Hurt) -> None:
    hurt(store)
    in_log = [row.id for row in log_rows(store, store.log)]
    assert in_log == others()
    page = store.log_read(store.log, STREAM, 0, 0, 100)
    assert [lost.seq for lost in page.damaged] == [5]
    by_position = ids_of(store.range(STREAM, 0))
    message_is_whole = hurt in (row, row_key)
    assert by_position == ([one.id for one in SENT] if message_is_whole else others())
    assert store.damage.met > 0
    assert store.damage.problem is not None
    assert "1 damaged row " in store.damage.problem or hurt is message_key
    assert ids_of(store.last(STREAM, 0, 4)) == [one.id for one in SENT[-4:]]


@pytest.mark.parametrize("hurt", DAMAGES)
def test_pages_of_one_row_come_past_it(store: Store, hurt: Hurt) -> None:
    hurt(store)
    found, through, damaged = [], 0, 0
    while through < 9:
        page = store.log_read(store.log, STREAM, 0, through, 1)
        assert page.through > through
        assert len(page.rows) + len(page.damaged) == 1
        found += [row.id for row in page.rows]
        through, damaged = page.through, damaged + len(page.damaged)
    assert (found, damaged) == (others(), 1)
    ids, after, pages = list[MessageId](), None, 0
    while pages == 0 or after is not None:
        by_position = store.page(STREAM, 0, PageLimits(1, 1_000), after=after)
        ids += [row.id for row in by_position.rows]
        after, pages = by_position.next, pages + 1
    assert set(others()) <= set(ids)


def test_a_reader_of_the_whole_is_sent_to_another_storage_node(store: Store) -> None:
    body(store)
    answers = Answers(store)
    whole = ReadRange(1, STREAM, 0, None, None, None, None, None, 100, whole=True)
    assert answers.answer(whole) == Refused(1, BEHIND)
    newest = ReadLast(2, STREAM, 0, 6, None, 100, whole=True)
    assert answers.answer(newest) == Refused(2, BEHIND)
    behind = ReadRange(3, STREAM, 0, None, None, None, None, None, 100)
    rows = answers.answer(behind)
    assert isinstance(rows, Rows)
    assert len(rows.rows) == 8, "if nobody else has it, all others"
    log = answers.answer(ReadLog(4, STREAM, 0, store.log.bytes, 0, 100))
    assert isinstance(log, LogRows)
    assert (len(log.rows), log.damaged) == (8, (5,))


@pytest.mark.parametrize("hurt", [body])
def test_a_copy_that_comes_again_mends_it(store: Store, hurt: Hurt) -> None:
    hurt(store)
    # Not with another message under the same id: what readers were given must not change.
    other = message(4, content=b"another")
    with pytest.raises(Exception, match="not as it was written"):
        store.append([other], START_NS)
    assert store.append([BAD, message(99)], START_NS) == [Duplicate(5), Stored(10)]
    assert [row.signed for row in log_rows(store, store.log)][:9] == [one.signed for one in SENT]
    assert (store.damage.problem, store.damage.mended) == (None, 1)
    store.check_invariants()


@pytest.mark.parametrize("hurt", DAMAGES)
def test_a_copy_of_our_log_mends_it(store: Store, hurt: Hurt) -> None:
    hurt(store)
    list(log_rows(store, store.log))
    list(store.range(STREAM, 0))
    assert store.mend(STREAM, 0, 5, BAD)
    assert [row.signed for row in log_rows(store, store.log)] == [one.signed for one in SENT]
    assert not store.mend(STREAM, 0, 5, SENT[5]), "this is another row"
    if hurt not in (row_key, message_key):  # what lies under a wrong key is for `repair`
        assert store.damage.problem is None
        store.check_invariants()


@pytest.mark.parametrize("hurt", [body, header, checksum])
def test_a_follower_passes_over_it_and_takes_it_when_it_comes(
    store: Store, tmp_path: Path, hurt: Hurt
) -> None:
    hurt(store)
    answers = Answers(store)
    told = answers.answer(AskRows(1, STREAM, 0, store.log.bytes, 0, 0, 100))
    assert isinstance(told, TellRows)
    assert [name.seq for name in told.rows] == list(range(1, 10)), "a log has no hole"
    assert [name.seq for name in told.rows if name.digest == LOST] == [5]
    bodies = answers.answer(AskMessages(2, STREAM, 0, store.log.bytes, tuple(range(1, 10))))
    assert isinstance(bodies, TellMessages)
    assert [found.seq for found in bodies.rows] == [1, 2, 3, 4, 6, 7, 8, 9]
    with open_store(tmp_path / "b", seed="b") as follower:
        rows = replica_rows(log_rows(store, store.log))
        lost = ReplicaRow(5, START_NS, BAD.id, None, lost=True)
        rows = sorted([*rows, lost], key=lambda row: row.seq)
        assert follower.append_replica(store.log, STREAM, 0, rows, START_NS).stored == 8
        page = follower.log_read(store.log, STREAM, 0, 0, 100)
        assert [found.id for found in page.rows] == others()
        assert [found.seq for found in page.damaged] == [5]
        assert follower.damage.problem is None, "nothing is damaged here"
        follower.check_invariants()
        follower.append([BAD], START_NS)
        page = follower.log_read(store.log, STREAM, 0, 0, 100)
        assert ([found.seq for found in page.rows], page.damaged) == (list(range(1, 10)), ())
        follower.check_invariants()


def test_a_damaged_row_here_does_not_stop_what_is_followed(store: Store, tmp_path: Path) -> None:
    header(store)  # so that its CRC cannot vouch for a copy
    with open_store(tmp_path / "b", seed="b") as other:
        other.append(SENT, START_NS)
        lacking = store.lacking([claim(one) for one in SENT])
        assert lacking == [BAD.id]
        rows = replica_rows(log_rows(other, other.log))
        assert store.append_replica(other.log, STREAM, 0, rows, START_NS).appended == 9
        assert list(log_rows(store, other.log)) == list(log_rows(other, other.log))


def test_retention_comes_past_it(tmp_path: Path) -> None:
    for number, hurt in enumerate(DAMAGES):
        config = StoreConfig(retention=Retention(age_ns=10))
        with open_store(tmp_path / str(number), config) as store:
            store.append(SENT, START_NS)
            store.append([message(99)], START_NS + 100)
            hurt(store)
            while store.retain(START_NS + 50).more:
                pass
            assert ids_of(store.range(STREAM, 0))[-1:] == [message(99).id]
            assert store.heads(STREAM, 0)[store.log].first == 10


def test_times_are_found_beside_a_row_that_is_not_there(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        for number, one in enumerate(SENT):
            store.append([one], START_NS + number)
        row_key(store)
        found = [store.first_seq_at(store.log, STREAM, 0, START_NS + n) for n in range(10)]
        assert found == [1, 2, 3, 4, 5, 5, 7, 8, 9, 10], "too early rather than too late"


def test_a_damaged_row_of_a_replica_is_told_as_such(store: Store, tmp_path: Path) -> None:
    with open_store(tmp_path / "b", seed="b") as owner:
        owner.append([message(4, content=b"another"), message(50)], START_NS)
        rows = replica_rows(log_rows(owner, owner.log))
        store.append_replica(owner.log, STREAM, 0, rows, START_NS)
        number = store._database.read(store._names.log, owner.log)
        assert number is not None
        variant = entry_key(number, PLACE, 1)
        change(store, "variants", variant, lambda value: flipped(value, len(value) - 1))
        page = store.log_read(owner.log, STREAM, 0, 0, 10)
        assert ([found.seq for found in page.rows], [lost.seq for lost in page.damaged]) == (
            [2],
            [1],
        )


def test_a_page_says_how_many_are_missing(store: Store) -> None:
    body(store)
    limits = PageLimits(100, 100_000)
    assert store.page(STREAM, 0, limits).damaged == 1
    newest = store.last_page(STREAM, 0, 9, limits)
    assert isinstance(newest, Page)
    assert (len(newest.rows), newest.damaged) == (8, 1)


def test_a_copy_that_lies_does_not_become_the_row(store: Store) -> None:
    body(store)
    assert not store.mend(STREAM, 0, 5, BAD), "nothing has met it yet"
    list(log_rows(store, store.log))
    for lie in (SENT[3], message(77), message(4, chain="c2")):
        assert not store.mend(STREAM, 0, 5, lie)
    assert not store.mend(STREAM, 0, 6, SENT[4])
    assert store.mend(STREAM, 0, 5, BAD)
    store.check_invariants()
