"""Anti-entropy: two storage nodes hand in hand, and strangers that ask."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from msgspec.structs import replace

from shoal.base.units import S_NS
from shoal.protocols.streams.config import SyncConfig
from shoal.protocols.streams.history.anti_entropy import FollowStream
from shoal.protocols.streams.history.messages import (
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    Head,
    PlaceHeads,
    SeqMessage,
    SyncRefused,
    TellHeads,
    TellMessages,
)
from shoal.protocols.streams.history.storage_node import KeepMessage
from shoal.storage.config import Retention, StoreConfig
from tests.support.storage_host import StorageHost, message
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    ME,
    OTHER_STREAM,
    STREAM,
    body_of,
    signed_by,
)
from tests.support.sync_pair import Pair, keep

POLL_NS = SyncConfig().poll_ns


def test_each_gets_what_the_other_has_and_its_log_too(pair: Pair) -> None:
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    keep(alice, 1, 2, 3, 4)
    keep(bob, 9, 3)
    keep(bob, 5, partition=7)
    pair.connect(ALICE, BOB)
    pair.run()
    for partition in (0, 7):
        for one, other in ((ALICE, BOB), (BOB, ALICE)):
            assert pair.rows(one, other, partition) == pair.rows(other, other, partition)
    assert alice.store_below.info().messages == bob.store_below.info().messages == 6
    # What was held already is not sent again, and got no second seq.
    assert [row.seq for row in pair.rows(ALICE, ALICE)] == [1, 2, 3, 4, 5]
    messages = sum(
        len(question.seqs) for question in pair.asked if isinstance(question, AskMessages)
    )
    assert messages == 5


def test_in_quiet_times_only_heads_and_new_streams_are_asked_for(pair: Pair) -> None:
    keep(pair.hosts[ALICE], *range(20))
    pair.connect(ALICE, BOB)
    pair.run()
    pair.asked.clear()
    pair.run(20)
    assert {type(question) for question in pair.asked} == {AskHeads, AskStreams}
    assert len(pair.asked) <= 2 * 2 * 20 * S_NS // POLL_NS


def test_a_message_that_both_heard_costs_only_its_name(pair: Pair) -> None:
    for host in pair.hosts.values():
        keep(host, *range(50))
    pair.connect(ALICE, BOB)
    pair.run()
    assert pair.rows(ALICE, BOB) == pair.rows(BOB, BOB)
    assert not [question for question in pair.asked if isinstance(question, AskMessages)]


def test_many_pages_and_large_messages_come_over(tmp_path: Path) -> None:
    pair = Pair(tmp_path, sync_config=SyncConfig(rows_max=7))
    keep(pair.hosts[ALICE], *range(40))
    for number in (40, 41, 42):
        keep(pair.hosts[ALICE], number, size=400_000)
    pair.connect(ALICE, BOB)
    pair.run()
    assert pair.rows(BOB, ALICE) == pair.rows(ALICE, ALICE)
    assert len(pair.rows(BOB, BOB)) == 43
    pair.check()


def test_an_equivocation_keeps_each_owner_s_log_as_it_is(pair: Pair) -> None:
    keep(pair.hosts[ALICE], 1)
    other = signed_by(CAROL, body_of(message(1).id, b"another"))
    bob = pair.hosts[BOB]
    bob.command(bob.storage, KeepMessage(replace(message(1), signed=other)))
    bob.finish_all()
    pair.connect(ALICE, BOB)
    pair.run()
    for one, both in ((ALICE, BOB), (BOB, ALICE)):
        assert pair.rows(one, both) == pair.rows(both, both)
    assert pair.rows(ALICE, BOB)[0].signed == other


def test_what_the_owner_has_let_go_of_is_skipped(tmp_path: Path) -> None:
    config = StoreConfig(retention=Retention(age_ns=100 * S_NS, size_bytes_max=None))
    pair = Pair(tmp_path, store_config=config)
    alice = pair.hosts[ALICE]
    keep(alice, 1, 2, 3)
    pair.connect(ALICE, BOB)
    pair.run(4)
    pair.disconnect(ALICE, BOB)
    keep(alice, 4, 5)
    pair.run(60)
    keep(alice, 6, 7)
    alice.store_below.retain(alice.time_ns + 60 * S_NS)  # 1 to 5 go
    assert alice.store_below.heads(STREAM, 0)[alice.store_below.log].first == 6
    pair.connect(ALICE, BOB)
    pair.run(4)
    assert [row.seq for row in pair.rows(BOB, ALICE)] == [6, 7]
    assert len(pair.rows(BOB, BOB)) == 5
    pair.check()


def test_a_store_does_not_bring_back_what_it_has_let_go_of(tmp_path: Path) -> None:
    """A new replica begins where this store's own history does."""
    config = StoreConfig(retention=Retention(age_ns=1_000 * S_NS, size_bytes_max=None))
    pair = Pair(tmp_path, store_config=config)
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    keep(bob, *range(10))
    bob.store_below.retain(bob.time_ns + 2_000 * S_NS)
    assert bob.store_below.info().messages == 0
    # At Alice they came in when they were made.
    for number in range(15):
        ingest_ns = message(number).id.timestamp_ms * 1_000_000
        alice.store_below.append([message(number)], ingest_ns)
    pair.connect(ALICE, BOB)
    pair.run(4)
    found = {row.id for page in bob.store_below.range(STREAM, 0) for row in page}
    assert found == {message(number).id for number in range(10, 15)}


def test_a_message_of_a_clock_that_is_ahead_is_not_taken_for_one_that_was_let_go(
    tmp_path: Path,
) -> None:
    """It came in before the time that it bears; logs are searched by when rows came in."""
    config = StoreConfig(retention=Retention(age_ns=1_000 * S_NS, size_bytes_max=None))
    settings = SyncConfig(rows_max=3)
    pair = Pair(tmp_path, store_config=config, sync_config=settings)
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    keep(bob, 30_000)
    bob.store_below.retain(bob.time_ns + 2_000 * S_NS)
    assert bob.store_below.info().messages == 0
    # Ten that Bob would have let go of, one from a clock that is 40 s ahead, and two more.
    sent = [*range(10), 40_500, 10, 31_000]
    for number, ingest in zip(sent, [*range(10), 500, 600, 31_000], strict=True):
        ingest_ns = message(ingest).id.timestamp_ms * 1_000_000
        alice.store_below.append([message(number)], ingest_ns)
    pair.connect(ALICE, BOB)
    pair.run(4)
    found = {row.id for page in bob.store_below.range(STREAM, 0) for row in page}
    assert found == {message(number).id for number in (40_500, 10, 31_000)}
    assert [row.seq for row in pair.rows(BOB, ALICE)] == [11, 12, 13]
    pair.check()


def test_a_third_has_the_log_of_one_who_is_away(tmp_path: Path) -> None:
    pair = Pair(tmp_path, (ALICE, BOB, DAVE))
    keep(pair.hosts[ALICE], *range(5))
    pair.connect(ALICE, BOB)
    pair.run()
    pair.disconnect(ALICE, BOB)
    pair.connect(BOB, DAVE)
    pair.run(30)
    # The messages come with Bob's own log at once; Alice's log only when she is given up.
    assert len(pair.rows(DAVE, BOB)) == 5
    assert pair.rows(DAVE, ALICE) == []
    pair.run(40)
    assert pair.rows(DAVE, ALICE) == pair.rows(ALICE, ALICE)
    pair.check()


# Questions of others


def test_strangers_are_answered_within_bounds(tmp_path: Path) -> None:
    host = StorageHost(ME, tmp_path / "store")
    host.command(host.sync, FollowStream(STREAM))
    host.link_opened(EVE)
    keep(host, 1)
    log = host.store_below.log.bytes
    host.received(EVE, AskHeads(1, (OTHER_STREAM, STREAM), 5))
    host.received(EVE, AskHeads(2, (OTHER_STREAM,), 0))
    host.received(EVE, AskRows(3, STREAM, 0, bytes(16), 0, 0, 10))
    host.received(EVE, AskMessages(4, STREAM, 0, log, (1, 2, 99)))
    host.finish_all()
    answers = {answer.request: answer for answer in host.said(EVE)}
    place = PlaceHeads(STREAM, 0, 0, (Head(log, 1, 1),))
    assert answers[1] == TellHeads(1, log, (place,), False)
    assert answers[2] == SyncRefused(2, "not-kept")
    assert answers[3] == SyncRefused(3, "no-such-log")
    assert answers[4] == TellMessages(4, (SeqMessage(1, message(1).signed),))
    for request in range(20):
        host.received(EVE, AskHeads(request, (STREAM,), 0))
    most = host.sync.config.answers_in_flight_max
    assert host.said(EVE) == [SyncRefused(n, "busy") for n in range(most, 20)]
    host.finish_all()
    host.close()


def test_heads_of_many_streams_come_in_parts(tmp_path: Path) -> None:
    streams = [type(STREAM)(f"stream {n}") for n in range(7)]
    config = SyncConfig(polled_streams_max=2)
    pair = Pair(tmp_path, streams=streams, sync_config=config)
    for host in pair.hosts.values():
        for stream in streams:
            host.command(host.sync, FollowStream(stream))
    for number, stream in enumerate(streams):
        for partition in (0, 50, 99):
            keep(pair.hosts[ALICE], number, stream=stream, partition=partition)
    with mock.patch("shoal.storage.message_store.store_disk.HEADS_MAX", 2):
        pair.connect(ALICE, BOB)
        pair.run()
    assert pair.hosts[BOB].store_below.info().messages == 21
    pair.check()
