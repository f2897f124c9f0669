"""The storage machine: what it keeps, and what it refuses to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import S_NS
from shoal.identity.message_body import decode_body
from shoal.protocols.streams.config import StorageConfig
from shoal.protocols.streams.history.messages import Keep, Kept, Refused, Rows
from shoal.protocols.streams.history.storage_node import KeepMessage, StreamWanted
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.errors import StoreFull
from tests.support.storage_host import StorageHost, ask, everything, keep, message
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


def test_a_publisher_makes_a_stream_wanted_and_only_with_a_good_signature(
    host: StorageHost,
) -> None:
    ask(host, Keep(1, signed_by(DAVE, body_of(message(1).id))))
    assert host.notified == []
    ask(host, Keep(2, message(1).signed))
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
    with mock.patch.object(host.store_below, "retain_carefully", side_effect=StoreFull("not now")):
        host.advance(host.storage.config.retain_ns)
        host.finish_all()
    assert host.reasons() == ["retention-failed"]
    host.advance(host.storage.config.retain_ns)
    assert len(host.slow_work) == 1
    host.close()


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
