"""The storage machine: what it keeps, what it answers, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.identity.stream_message import Position, decode_body
from shoal.protocols.streams.history.config import PAGE_BYTES_MAX, StorageConfig
from shoal.protocols.streams.history.messages import (
    Heads,
    Keep,
    Kept,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
)
from shoal.protocols.streams.history.storage_node import KeepMessage, StreamWanted
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.errors import StoreFull
from tests.support.storage_host import StorageHost, message
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    ME,
    NOW_MS,
    OTHER_STREAM,
    STREAM,
    body_of,
    message_id,
    signed_by,
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StorageHost]:
    host = StorageHost(ME, tmp_path / "store")
    for peer in (ALICE, BOB):
        host.link_opened(peer)
    yield host
    host.close()


def keep(host: StorageHost, *messages: VerifiedMessage) -> None:
    for one in messages:
        host.command(host.storage, KeepMessage(one))
    host.finish_all()


def ask(host: StorageHost, question: Any) -> Any:
    """Alice asks, and is answered."""
    host.received(ALICE, question)
    host.finish_all()
    (answer,) = host.said(ALICE)
    return answer


def everything(request: int = 1, rows_max: int = 1000, after: Any = None) -> ReadRange:
    return ReadRange(request, STREAM, 0, None, None, None, None, after, rows_max)


# Keeping


def test_what_the_subscriber_hears_is_kept(host: StorageHost) -> None:
    sent = [message(n) for n in range(5)]
    keep(host, *sent, sent[0])
    assert ask(host, everything()) == Rows(1, tuple(m.signed for m in sent), None)
    assert host.storage.stored == 6
    assert host.storage.waiting == 0


def test_kept_is_said_when_the_message_is_durable_and_not_before(host: StorageHost) -> None:
    sent = message(1)
    host.received(ALICE, Keep(7, sent.signed))
    assert host.said(ALICE) == []
    host.finish_one()  # the signature
    assert host.said(ALICE) == []
    assert list(host.store_below.range(STREAM, 0)) == []
    host.finish_one()  # the disk
    assert host.said(ALICE) == [Kept(7)]
    assert [row.id for page in host.store_below.range(STREAM, 0) for row in page] == [sent.id]


def test_a_publisher_may_ask_again(host: StorageHost) -> None:
    for request in (1, 2):
        assert ask(host, Keep(request, message(1).signed)) == Kept(request)
    assert host.store_below.info().messages == 1


def test_another_message_under_a_kept_id_is_not_kept(host: StorageHost) -> None:
    keep(host, message(1))
    other = signed_by(CAROL, body_of(message(1).id, b"another"))
    assert ask(host, Keep(1, other)) == Refused(1, "conflict")
    assert ask(host, everything(2)) == Rows(2, (message(1).signed,), None)


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        (signed_by(DAVE, body_of(message(1).id)), "bad-signature"),
        (b"s" * 66, "malformed"),
        (message(1, stream=OTHER_STREAM).signed, "not-kept"),
        (
            signed_by(CAROL, body_of(message_id(timestamp_ms=NOW_MS + 60_001))),
            "from-the-future",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_must_not_be_kept_is_refused(host: StorageHost, signed: bytes, reason: str) -> None:
    assert ask(host, Keep(3, signed)) == Refused(3, reason)
    assert host.store_below.info().messages == 0
    assert len(host.reasons()) == 1
    assert host.storage.waiting == 0


def test_a_publisher_makes_a_stream_wanted_once_and_only_with_a_good_signature(
    host: StorageHost,
) -> None:
    ask(host, Keep(1, signed_by(DAVE, body_of(message(1).id))))
    assert host.notified == []
    for number in range(3):
        ask(host, Keep(number, message(number).signed))
    assert host.notified == [StreamWanted(STREAM)]


def test_a_disk_that_is_full_is_said_and_the_node_goes_on(host: StorageHost) -> None:
    with mock.patch.object(host.store_below, "append", side_effect=StoreFull("full")):
        assert ask(host, Keep(1, message(1).signed)) == Refused(1, "failed")
        keep(host, message(2))
        assert host.port.problem == "full"
    assert host.reasons() == ["failed", "disk-failed"]
    assert ask(host, Keep(2, message(1).signed)) == Kept(2)
    assert host.port.problem is None


def test_what_waits_for_a_slow_disk_is_bounded(tmp_path: Path) -> None:
    config = StorageConfig(waiting_messages_max=3, waiting_bytes_max=1_000)
    host = StorageHost(ME, tmp_path / "store", config=config)
    host.link_opened(ALICE)
    for number in range(5):
        host.command(host.storage, KeepMessage(message(number)))
    host.received(ALICE, Keep(1, message(9).signed))
    assert host.reasons() == ["disk-behind", "disk-behind", "busy"]
    assert host.said(ALICE) == [Refused(1, "busy")]
    host.finish_all()
    host.command(host.storage, KeepMessage(message(6, size=2_000)))
    assert host.reasons()[3:] == ["disk-behind"]
    host.command(host.storage, KeepMessage(message(7)))
    host.finish_all()
    assert host.store_below.info().messages == 4
    host.close()


def test_retention_goes_step_by_step_and_then_rests(tmp_path: Path) -> None:
    retention = Retention(age_ns=100 * S_NS, size_bytes_max=None, rows_per_step=4)
    host = StorageHost(ME, tmp_path / "store", store_config=StoreConfig(retention=retention))
    keep(host, *(message(n) for n in range(10)))
    for _ in range(9):
        host.advance(11 * S_NS)
        host.finish_all()
    assert (host.storage.let_go, host.store_below.info().messages) == (0, 10)
    host.advance(12 * S_NS)
    while host.storage.let_go < 10:
        before = host.storage.let_go
        host.advance(host.storage.config.retain_step_ns)
        host.finish_all()
        assert host.storage.let_go - before <= 4
    assert host.store_below.info().messages == 0
    with mock.patch.object(host.store_below, "retain", side_effect=StoreFull("not now")):
        host.advance(host.storage.config.retain_ns)
        host.finish_all()
    assert host.reasons() == ["retention-failed"]
    host.advance(host.storage.config.retain_ns)
    assert len(host.slow_work) == 1
    host.close()


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


def test_a_reader_whose_queue_is_full_is_told_to_wait(host: StorageHost) -> None:
    ask(host, everything())
    host.queue_changed(ALICE, high=True)
    assert ask(host, everything(5)) == Refused(5, "busy")
    host.queue_changed(ALICE, high=False)
    assert isinstance(ask(host, everything(6)), Rows)


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


WHO = st.sampled_from([ALICE, BOB])
STEPS = st.one_of(
    st.tuples(st.just("ask"), WHO, st.integers(0, 3)),
    st.tuples(st.just("keep"), WHO, st.integers(0, 30)),
    st.tuples(st.just("forge"), WHO, st.integers(0, 30)),
    st.tuples(st.just("hear"), WHO, st.integers(0, 30)),
    st.tuples(st.just("work"), WHO, st.integers(1, 5)),
    st.tuples(st.just("break"), WHO, st.integers(0, 1)),
    st.tuples(st.just("wait"), WHO, st.integers(0, 70)),
)


@given(st.lists(STEPS, max_size=60))
def test_whatever_happens_kept_messages_are_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any, int]]
) -> None:
    """Every Kept is true, each question has at most one answer, and nothing is counted wrong."""
    config = StorageConfig(questions_in_flight_max=4, waiting_messages_max=6, peers_max=2)
    host = StorageHost(ME, tmp_path_factory.mktemp("s") / "store", config=config)
    asked: dict[tuple[Any, int], Any] = {}
    answered: dict[tuple[Any, int], Any] = {}
    for request, (what, peer, number) in enumerate(steps):
        if not host.links.is_up(peer):
            host.link_opened(peer)
        if what == "ask":
            asked[peer, request] = everything(request)
        elif what == "keep":
            asked[peer, request] = Keep(request, message(number).signed)
        elif what == "forge":
            asked[peer, request] = Keep(request, signed_by(DAVE, body_of(message(number).id)))
        elif what == "hear":
            host.command(host.storage, KeepMessage(message(number)))
        elif what == "work":
            for _ in range(min(number, len(host.slow_work))):
                host.finish_one()
        elif what == "break":
            host.link_closed(peer, "lost")
        else:
            host.advance(number * S_NS)
        if (peer, request) in asked:
            host.received(peer, asked[peer, request])
        host.storage.check_invariants()
        for to in (ALICE, BOB):
            for answer in host.said(to):
                assert (to, answer.request) in asked
                assert (to, answer.request) not in answered
                answered[to, answer.request] = answer
    host.finish_all()
    for to, answer in host.sent:
        answered[to, answer.request] = answer
    held = {row.signed for page in host.store_below.range(STREAM, 0) for row in page}
    for key, answer in answered.items():
        if isinstance(answer, Kept):
            assert asked[key].signed in held
        elif isinstance(asked[key], Keep):
            assert isinstance(answer, Refused)
    assert host.storage.waiting == 0
    assert all(signed == message_of(signed).signed for signed in held)
    host.close()


def message_of(signed: bytes) -> VerifiedMessage:
    """The honest message that these bytes should be."""
    return message(int.from_bytes(decode_body(signed).content[:4]))


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
