"""Anti-entropy: two storage nodes hand in hand, and one that is told lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from shoal.base.units import S_NS
from shoal.identity import SeededEntropy
from shoal.protocols.streams.history.config import SyncConfig
from shoal.protocols.streams.history.messages import Head
from shoal.protocols.streams.history.storage_node import KeepMessage
from shoal.protocols.streams.history.sync import FollowStream
from shoal.protocols.streams.history.sync_messages import (
    SYNC_QUESTIONS,
    AskHeads,
    AskMessages,
    AskRows,
    PlaceHeads,
    SeqMessage,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
)
from shoal.storage.answers import Answers
from shoal.storage.config import DEFAULTS, Retention, StoreConfig
from shoal.storage.errors import StoreFull
from shoal.storage.rows import Row
from shoal.storage.store import Store
from tests.support.storage_host import StorageHost, message
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    ME,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    body_of,
    signed_by,
)

POLL_NS = SyncConfig().poll_ns
Lies = Callable[[Any, Any], Any]  # question, honest answer -> what is said


class Pair:
    """Storage nodes that hear each other; what one says may be changed on the way."""

    def __init__(self, folder: Path, names: tuple[Any, ...] = (ALICE, BOB), **settings: Any):
        self.hosts = {
            name: StorageHost(name, folder / name.hex(), peers=names, **settings) for name in names
        }
        self.lies: dict[Any, Lies] = {}
        self.asked: list[Any] = []
        self._questions: dict[tuple[Any, Any, int], Any] = {}
        for host in self.hosts.values():
            host.command(host.sync, FollowStream(STREAM))

    def connect(self, a: Any, b: Any) -> None:
        for one, other in ((a, b), (b, a)):
            self.hosts[one].link_opened(other)

    def disconnect(self, a: Any, b: Any) -> None:
        for one, other in ((a, b), (b, a)):
            self.hosts[one].link_closed(other, "lost")

    def run(self, seconds: float = 10) -> None:
        """Let time pass; what is said arrives at once, what is slow is done at once."""
        for _ in range(int(seconds * 4)):
            for host in self.hosts.values():
                host.advance(S_NS // 4)
            while self._exchange():
                pass

    def _exchange(self) -> bool:
        moved = False
        for name, host in self.hosts.items():
            host.finish_all()
            for other, peer in self.hosts.items():
                for said in host.said(other):
                    moved = True
                    if isinstance(said, SYNC_QUESTIONS):
                        self.asked.append(said)
                        self._questions[name, other, said.request] = said
                    elif name in self.lies:
                        question = self._questions.get((other, name, said.request))
                        said = self.lies[name](question, said)
                    if said is not None:
                        peer.received(name, said)
        return moved

    def rows(self, at: Any, owner: Any, partition: int = 0) -> list[Row]:
        """A log as one node holds it."""
        store, log = self.hosts[at].store_below, self.hosts[owner].store_below.log
        head = store.heads(STREAM, partition).get(log)
        if head is None:
            return []
        return store.log_read(log, STREAM, partition, head.first - 1, 1000).rows

    def check(self) -> None:
        for host in self.hosts.values():
            host.store_below.check_invariants()
            host.sync.check_invariants()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = Pair(tmp_path)
        for host in pair.hosts.values():
            stack.callback(host.close)
        yield pair
        pair.check()


def keep(host: StorageHost, *numbers: int, **names: Any) -> None:
    for number in numbers:
        host.command(host.storage, KeepMessage(message(number, **names)))
    host.finish_all()


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


def test_in_quiet_times_only_heads_are_asked_for(pair: Pair) -> None:
    keep(pair.hosts[ALICE], *range(20))
    pair.connect(ALICE, BOB)
    pair.run()
    pair.asked.clear()
    pair.run(20)
    assert {type(question) for question in pair.asked} == {AskHeads}
    assert len(pair.asked) <= 2 * 20 * S_NS // POLL_NS


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


# Lies and failures


def lie_about(kind: type, change: Callable[[Any], Any]) -> Lies:
    return lambda question, said: change(said) if isinstance(said, kind) else said


def forged(told: TellMessages) -> TellMessages:
    rows = [SeqMessage(row.seq, b"x" * 65 + row.signed[65:]) for row in told.rows]
    return replace(told, rows=tuple(rows))


def others(told: TellMessages) -> TellMessages:
    return replace(told, rows=(replace(told.rows[0], signed=message(77).signed), *told.rows[1:]))


def unasked(told: TellMessages) -> TellMessages:
    return replace(told, rows=(replace(told.rows[0], seq=999),))


def garbage(told: TellMessages) -> TellMessages:
    return replace(told, rows=(replace(told.rows[0], signed=b"x" * 70),))


def holed(told: TellRows) -> TellRows:
    return replace(told, rows=told.rows[:1] + told.rows[2:])


def backwards(told: TellRows) -> TellRows:
    return replace(told, rows=(*told.rows[:-1], replace(told.rows[-1], ingest_ns=1)))


def endless(told: TellRows) -> TellRows:
    return replace(told, rows=tuple(replace(told.rows[0], seq=n + 1) for n in range(900)))


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        (TellMessages, forged, "bad-signature"),
        (TellMessages, others, "another-message"),
        (TellMessages, unasked, "unasked-message"),
        (TellMessages, garbage, "malformed-body"),
        (TellRows, holed, "no-log"),
        (TellRows, backwards, "no-log"),
        (TellRows, endless, "unasked-rows"),
        (TellHeads, lambda told: replace(told, places=(), more=True), "no-heads"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_who_lies_is_found_out_and_the_others_are_not_stopped(
    tmp_path: Path, kind: type, change: Callable[[Any], Any], reason: str
) -> None:
    pair = Pair(tmp_path, (ALICE, BOB, DAVE))
    keep(pair.hosts[ALICE], 1, 2, 3)
    keep(pair.hosts[DAVE], 1, 2, 3, 4)
    pair.lies[ALICE] = lie_about(kind, change)
    pair.connect(ALICE, BOB)
    pair.run(6)
    bob = pair.hosts[BOB]
    assert reason in bob.reasons()
    assert pair.rows(BOB, ALICE) == []
    assert bob.store_below.info().messages == 0
    pair.connect(DAVE, BOB)
    pair.run(6)
    assert pair.rows(BOB, DAVE) == pair.rows(DAVE, DAVE)
    # What she says of a log is not asked for again and again.
    if kind is not TellHeads:
        assert bob.reasons().count(reason) == 1
    pair.check()


def test_one_who_does_not_answer_is_asked_again(pair: Pair) -> None:
    keep(pair.hosts[ALICE], 1)
    pair.lies[ALICE] = lambda question, said: None
    pair.connect(ALICE, BOB)
    pair.run(30)
    assert pair.hosts[BOB].reasons().count("no-answer") >= 2
    del pair.lies[ALICE]
    pair.run(20)
    assert pair.rows(BOB, ALICE) == pair.rows(ALICE, ALICE)


def test_one_who_refuses_is_asked_again_later(pair: Pair) -> None:
    keep(pair.hosts[ALICE], 1)
    pair.lies[ALICE] = lambda question, said: SyncRefused(said.request, "busy")
    pair.connect(ALICE, BOB)
    pair.run(4)
    del pair.lies[ALICE]
    pair.run(4)
    assert pair.rows(BOB, ALICE) == pair.rows(ALICE, ALICE)


def test_answers_that_nobody_asked_for_are_counted(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    for stranger in (ALICE, EVE):
        bob.received(stranger, TellRows(1, (), 1, 0))
        bob.received(stranger, SyncRefused(0, "busy"))
    assert bob.reasons() == ["unasked-answer"] * 4


def test_a_log_that_is_not_what_it_was_is_not_followed(pair: Pair, tmp_path: Path) -> None:
    """Alice's node was restored from an old copy: its log goes on with other rows."""
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    keep(alice, 1, 2, 3)
    pair.connect(ALICE, BOB)
    pair.run()
    held = pair.rows(BOB, ALICE)
    alice.store_below.close()
    alice.port.store = alice.store_below = restored = Store(tmp_path / "new", SeededEntropy(ALICE))
    alice.port._answers = Answers(restored)
    assert restored.log in bob.store_below.heads(STREAM, 0)
    keep(alice, 1)
    pair.run(6)
    assert "log-went-back" in bob.reasons()
    keep(alice, 7, 8, 9)
    pair.run(12)
    assert bob.reasons().count("sync-log-diverged") == 1
    assert pair.rows(BOB, ALICE) == held


def test_two_with_one_log_are_not_both_believed(pair: Pair) -> None:
    alice = pair.hosts[ALICE]
    keep(alice, 1)
    pair.connect(ALICE, BOB)
    pair.run()
    bob = pair.hosts[BOB]
    bob.command(bob.sync, FollowStream(OTHER_STREAM))
    peers = bob.sync._followed.peers
    assert peers[ALICE].own == alice.store_below.log.bytes
    liar = replace(peers[ALICE], own=None)
    assert not bob.sync._followed.claims(liar, alice.store_below.log.bytes, NOW_NS)
    assert liar.own is None


def test_a_full_disk_stops_nothing_for_good(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    keep(pair.hosts[ALICE], 1, 2)
    with mock.patch.object(bob.store_below, "append_replica", side_effect=StoreFull("full")):
        pair.connect(ALICE, BOB)
        pair.run(6)
    assert "sync-failed" in bob.reasons()
    assert bob.port.problem == "full"
    pair.run(6)
    assert pair.rows(BOB, ALICE) == pair.rows(ALICE, ALICE)


def test_a_link_that_breaks_in_the_middle_leaves_nothing_half_done(tmp_path: Path) -> None:
    pair = Pair(tmp_path, sync_config=SyncConfig(rows_max=5))
    keep(pair.hosts[ALICE], *range(100))
    for _ in range(6):
        told = [0]

        def cut(question: Any, said: Any, told: list[int] = told) -> Any:
            told[0] += 1
            return said if told[0] < 9 else None

        pair.lies[ALICE] = cut
        pair.connect(ALICE, BOB)
        pair.run(3)
        pair.disconnect(ALICE, BOB)
        pair.check()
        pair.run(12)  # they dial again
    assert 0 < len(pair.rows(BOB, ALICE)) < 100
    pair.lies.clear()
    pair.connect(ALICE, BOB)
    pair.run(3)
    assert pair.rows(BOB, ALICE) == pair.rows(ALICE, ALICE)


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
    with mock.patch("shoal.storage.answers.HEADS_MAX", 2):
        pair.connect(ALICE, BOB)
        pair.run()
    assert pair.hosts[BOB].store_below.info().messages == 21
    pair.check()


assert DEFAULTS.page_rows_max >= 1000  # `Pair.rows` reads one page
