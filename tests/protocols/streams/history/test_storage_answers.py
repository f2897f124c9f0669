"""The storage machine: what it answers, and how much it answers to one peer."""

from __future__ import annotations

from pathlib import Path
from unittest import mock
from uuid import UUID

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import PAGE_BYTES_MAX, StorageConfig
from shoal.protocols.streams.history.messages import (
    Heads,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
)
from shoal.storage.config import StoreConfig
from shoal.storage.errors import StoreFull
from tests.support.storage_host import StorageHost, ask, everything, keep, message
from tests.support.streams import ALICE, BOB, CAROL, ME, OTHER_STREAM, STREAM

# Answers


def test_pages_follow_each_other_by_cursor(host: StorageHost) -> None:
    sent = [message(n, chain=chain) for n in range(10) for chain in ("a", "b")]
    keep(host, *reversed(sent))
    got: list[bytes] = []
    page, cursor = None, None
    while page is None or cursor is not None:
        page = ask(host, everything(rows_max=3, after=cursor))
        assert len(page.rows) <= 3
        got += page.rows
        cursor = page.next
    assert got == [m.signed for m in sent]


def test_a_page_is_bounded_in_bytes_but_has_a_message(host: StorageHost) -> None:
    sizes = [
        PAGE_BYTES_MAX // 2,
        PAGE_BYTES_MAX // 3,
        PAGE_BYTES_MAX // 3,
        2 * PAGE_BYTES_MAX - 99,
        9,
    ]
    sent = [message(n, size) for n, size in enumerate(sizes)]
    keep(host, *sent)
    counts: list[int] = []
    cursor = None
    while not counts or cursor is not None:
        page = ask(host, everything(after=cursor))
        counts.append(len(page.rows))
        cursor = page.next
    assert counts == [2, 1, 1, 1]


def test_a_range_has_both_its_ends_and_filters(host: StorageHost) -> None:
    sent = [message(n, publisher=(BOB, CAROL)[n % 2]) for n in range(10)]
    keep(host, *sent)
    begin, end = (Position(m.id.timestamp_ms, 0) for m in (sent[2], sent[7]))
    whole = ReadRange(1, STREAM, 0, begin, end, None, None, None, 1000)
    assert ask(host, whole).rows == tuple(m.signed for m in sent[2:8])
    bobs = ReadRange(1, STREAM, 0, begin, end, BOB, None, None, 1000)
    assert ask(host, bobs).rows == tuple(m.signed for m in sent[2:8:2])
    nobodys = ReadRange(1, STREAM, 0, begin, end, BOB, "other", None, 1000)
    assert ask(host, nobodys) == Rows(1, (), None)


def test_the_last_are_the_newest_oldest_first(host: StorageHost) -> None:
    sent = [message(n, publisher=(BOB, CAROL)[n % 2]) for n in range(10)]
    keep(host, *reversed(sent))
    last = ask(host, ReadLast(1, STREAM, 0, 4, None, 1000))
    assert last == Rows(1, tuple(m.signed for m in sent[6:]), None)
    bobs = ask(host, ReadLast(1, STREAM, 0, 2, BOB, 1000))
    assert bobs.rows == (sent[6].signed, sent[8].signed)
    first = ask(host, ReadLast(1, STREAM, 0, 4, None, 3))
    assert first.rows == tuple(m.signed for m in sent[6:9])
    rest = ask(host, everything(after=first.next))
    assert rest == Rows(1, (sent[9].signed,), None)
    assert ask(host, ReadLast(1, STREAM, 5, 4, None, 1000)) == Rows(1, (), None)


def test_logs_are_read_by_offset(host: StorageHost) -> None:
    sent = [message(n) for n in (3, 1, 2)]
    keep(host, *sent)
    log = host.store_below.log.bytes
    heads = ask(host, ReadHeads(1, STREAM, 0))
    assert (heads.own, [(h.log, h.first, h.last) for h in heads.logs]) == (log, [(log, 1, 3)])
    page = ask(host, ReadLog(2, STREAM, 0, log, 1, 1000))
    assert isinstance(page, LogRows)
    assert [(row.seq, row.signed) for row in page.rows] == [
        (2, sent[1].signed),
        (3, sent[2].signed),
    ]
    assert (page.first, page.last) == (1, 3)
    assert ask(host, ReadLog(3, STREAM, 0, bytes(16), 0, 10)) == Refused(3, "no-such-log")


def test_a_log_that_begins_later_has_expired(host: StorageHost) -> None:
    keep(host, message(1))
    other = bytes([7]) * 16
    host.store_below.advance_replica(UUID(bytes=other), STREAM, 0, 10)
    assert ask(host, ReadLog(1, STREAM, 0, other, 3, 10)) == Refused(1, "expired")


def test_a_stream_without_messages_is_empty_and_one_of_others_is_not_kept(
    host: StorageHost,
) -> None:
    assert ask(host, everything()) == Rows(1, (), None)
    assert isinstance(ask(host, ReadHeads(1, STREAM, 3)), Heads)
    assert ask(host, ReadHeads(2, OTHER_STREAM, 0)) == Refused(2, "not-kept")


def test_a_disk_that_cannot_be_read_is_said(host: StorageHost) -> None:
    with mock.patch.object(host.store_below, "page", side_effect=StoreFull("rotten")):
        assert ask(host, everything(4)) == Refused(4, "failed")


# Limits


def test_questions_in_flight_are_bounded_for_each_peer(host: StorageHost) -> None:
    most = host.storage.config.questions_in_flight_max
    for request in range(most + 1):
        host.received(ALICE, everything(request))
    host.received(BOB, everything(1))
    assert host.said(ALICE) == [Refused(most, "busy")]
    host.finish_all()
    assert len(host.said(ALICE)) == most
    assert len(host.said(BOB)) == 1
    assert isinstance(ask(host, everything(99)), Rows)


def test_questions_per_second_are_bounded_for_each_peer(tmp_path: Path) -> None:
    config = StorageConfig(questions_burst=2, questions_refill_ns=S_NS)
    host = StorageHost(ME, tmp_path / "store", config=config)
    host.link_opened(ALICE)
    answers = [type(ask(host, everything())) for _ in range(3)]
    assert answers == [Rows, Rows, Refused]
    host.advance(S_NS)
    assert isinstance(ask(host, everything()), Rows)
    host.close()


def test_questions_of_a_reader_whose_queue_is_full_wait_and_go_on_one_by_one(
    host: StorageHost,
) -> None:
    ask(host, everything())
    host.queue_changed(ALICE, high=True)
    for request in (5, 6, 7):
        host.received(ALICE, everything(request))
    host.finish_all()
    assert host.said(ALICE) == []
    host.queue_changed(ALICE, high=False)
    assert len(host.slow_work) == 1
    host.finish_one()
    assert [answer.request for answer in host.said(ALICE)] == [5]
    host.queue_changed(ALICE, high=True)  # it was large; the next one is being read from the disk
    host.finish_all()
    assert [answer.request for answer in host.said(ALICE)] == [6]
    host.queue_changed(ALICE, high=False)
    host.finish_all()
    (last,) = host.said(ALICE)
    assert isinstance(last, Rows)
    assert last.request == 7


def test_questions_that_wait_are_bounded_and_go_with_their_link(host: StorageHost) -> None:
    ask(host, everything())
    host.queue_changed(ALICE, high=True)
    most = host.storage.config.questions_in_flight_max
    for request in range(2, most + 3):
        host.received(ALICE, everything(request))
    host.finish_all()
    assert host.said(ALICE) == [Refused(most + 2, "busy")]
    host.link_closed(ALICE, "lost")
    host.link_opened(ALICE)
    host.finish_all()
    assert host.said(ALICE) == []
    assert isinstance(ask(host, everything()), Rows)


def test_the_link_of_whoever_asks_is_held_and_given_back(host: StorageHost) -> None:
    ask(host, everything())
    host.advance(host.limits.parked_ns * 2)
    assert host.links.is_up(ALICE)
    assert not host.links.is_up(BOB)  # it asked nothing
    host.advance(3 * host.storage.config.idle_ns)
    assert not host.links.is_up(ALICE)


def test_an_answer_for_a_link_that_is_gone_goes_nowhere(host: StorageHost) -> None:
    host.received(ALICE, everything())
    host.link_closed(ALICE, "lost")
    host.link_opened(ALICE)
    host.finish_all()
    assert host.said(ALICE) == []
    assert isinstance(ask(host, everything()), Rows)


def test_a_command_of_somebody_else_is_refused(host: StorageHost) -> None:
    with pytest.raises(UsageError, match="no command"):
        host.command(host.storage, "keep")


def test_a_long_search_does_not_keep_others_waiting(tmp_path: Path) -> None:
    host = StorageHost(ME, tmp_path / "store", store_config=StoreConfig(scan_rows_max=10))
    for peer in (ALICE, BOB):
        host.link_opened(peer)
    rare = message(0, publisher=BOB)
    keep(host, rare, *(message(n) for n in range(1, 101)))
    host.received(ALICE, ReadLast(1, STREAM, 0, 1, BOB, 10))
    for request in range(3):
        host.received(BOB, everything(request, rows_max=5))
        for _ in range(2):
            host.finish_one()
        assert len(host.said(BOB)) == 1
        assert host.said(ALICE) == []
    host.finish_all()
    (found,) = host.said(ALICE)
    assert found.rows == (rare.signed,)
    host.close()


def test_a_search_ends_with_the_link_of_whoever_asked(tmp_path: Path) -> None:
    host = StorageHost(ME, tmp_path / "store", store_config=StoreConfig(scan_rows_max=10))
    host.link_opened(ALICE)
    keep(host, message(0, publisher=BOB), *(message(n) for n in range(1, 101)))
    host.received(ALICE, ReadLast(1, STREAM, 0, 1, BOB, 10))
    host.finish_one()
    host.link_closed(ALICE, "lost")
    host.finish_one()
    assert not host.slow_work
    host.close()
