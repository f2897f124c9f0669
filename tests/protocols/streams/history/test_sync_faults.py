"""Anti-entropy with storage nodes that lie, fail or are silent, and links that break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from shoal.identity import SeededEntropy
from shoal.protocols.streams.config import SyncConfig
from shoal.protocols.streams.history.anti_entropy import FollowStream
from shoal.protocols.streams.history.messages import (
    SeqMessage,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
)
from shoal.storage.errors import StoreFull
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import Answers
from tests.support.storage_host import message
from tests.support.streams import ALICE, BOB, DAVE, EVE, NOW_NS, OTHER_STREAM, STREAM
from tests.support.sync_pair import Lies, Pair, keep


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


def test_a_row_from_the_future_waits_for_its_time_and_what_follows_it_in_its_log(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, (ALICE, BOB, DAVE))
    keep(pair.hosts[ALICE], 1, 2, 100_000 + 90_000, 3)  # the third is 90 s ahead
    keep(pair.hosts[DAVE], 4, 5)
    for peer in (ALICE, DAVE):
        pair.connect(peer, BOB)
    pair.run(20)
    bob = pair.hosts[BOB]
    assert pair.rows(BOB, ALICE) == pair.rows(ALICE, ALICE)[:2]
    assert pair.rows(BOB, DAVE) == pair.rows(DAVE, DAVE)
    assert bob.reasons() == ["from-the-future"], "she is not asked for it before its time"
    pair.run(15)
    assert pair.rows(BOB, ALICE) == pair.rows(ALICE, ALICE)
    assert bob.store_below.info().messages == 6
    pair.check()


def test_a_row_from_a_far_future_is_asked_for_now_and_then(pair: Pair) -> None:
    keep(pair.hosts[ALICE], 2**31, 1)  # 25 days
    pair.connect(ALICE, BOB)
    pair.run(1300)
    assert pair.rows(BOB, ALICE) == []
    assert pair.hosts[BOB].reasons() == ["from-the-future"] * 3


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
