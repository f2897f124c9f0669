"""Whom a storage node serves, and whose messages it takes, where there is a registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.base.units import S_NS
from shoal.identity.message_body import Position
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.inputs import AccessChanged
from shoal.protocols.streams.history.anti_entropy import FollowStream
from shoal.protocols.streams.history.messages import (
    AskHeads,
    Counted,
    CountKept,
    Keep,
    Kept,
    ReadRange,
    Refused,
    Rows,
    SyncRefused,
    TellHeads,
)
from shoal.protocols.streams.history.storage_node import KeepMessage, StreamWanted
from tests.support.storage_host import StorageHost, message
from tests.support.streams import ALICE, BOB, CAROL, ME, NOW_NS, STREAM

LATER_NS = NOW_NS + 120 * S_NS
NOTHING = Verdict(0, LATER_NS)
READS = Verdict(Permission.SUBSCRIBE, LATER_NS)
WRITES = Verdict(Permission.PUBLISH, LATER_NS)
NOBODY_KNOWS = Verdict(0, NOW_NS, "the chain is away")
READ = ReadRange(7, STREAM, 0, None, None, None, None, None, 10)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StorageHost]:
    """Bob is the other storage node of the stream."""
    host = StorageHost(ME, tmp_path / "store", peers=[ME, BOB], permissions=True)
    for peer in (ALICE, BOB):
        host.link_opened(peer)
    host.command(host.sync, FollowStream(STREAM))
    host.command(host.storage, KeepMessage(message(1)))
    host.finish_all()
    host.said(BOB)
    yield host
    host.close()


def ask(host: StorageHost, question: Any) -> Any:
    host.received(ALICE, question)
    host.finish_all()
    (answer,) = host.said(ALICE)
    return answer


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (NOTHING, "no-permission"),
        (WRITES, "no-permission"),
        (NOBODY_KNOWS, "permission-unknown: the chain is away"),
    ],
)
def test_who_may_not_subscribe_reads_nothing(
    host: StorageHost, verdict: Verdict, reason: str
) -> None:
    host.access.verdicts[STREAM, ALICE] = verdict
    assert ask(host, READ) == Refused(7, reason)
    assert host.reasons() == [reason.partition(":")[0]]


def test_who_may_subscribe_reads_until_it_may_not(host: StorageHost) -> None:
    host.access.verdicts[STREAM, ALICE] = READS
    for _ in range(2):
        answer = ask(host, READ)
        assert isinstance(answer, Rows)
        assert len(answer.rows) == 1
    host.access.verdicts[STREAM, ALICE] = NOTHING
    host.access_changed(AccessChanged(STREAM, ALICE))
    assert ask(host, READ) == Refused(7, "no-permission")


def test_this_node_itself_reads_whatever_it_keeps(host: StorageHost) -> None:
    host.access.verdicts[STREAM, ME] = NOTHING
    host.received(ME, READ)
    host.finish_all()
    assert host.reasons() == ["no-such-role"], "the answer came back here, where nobody reads"


def test_only_what_permitted_publishers_signed_is_kept(host: StorageHost) -> None:
    host.access.verdicts[STREAM, CAROL] = NOTHING
    assert ask(host, Keep(1, message(2).signed)) == Refused(1, "no-permission")
    assert host.storage.waiting == 0
    assert StreamWanted(STREAM) not in host.notified
    host.access.verdicts[STREAM, CAROL] = WRITES
    host.access_changed(AccessChanged(STREAM, CAROL))
    assert isinstance(ask(host, Keep(2, message(2).signed)), Kept)
    host.access.verdicts[STREAM, ALICE] = READS
    assert len(ask(host, READ).rows) == 2


def test_a_publisher_may_count_what_is_kept(host: StorageHost) -> None:
    host.access.verdicts[STREAM, ALICE] = WRITES
    here = message(1).id
    position = Position(here.timestamp_ms, here.sequence)
    count = CountKept(3, STREAM, 0, CAROL, here.chain, position, position)
    assert isinstance(ask(host, count), Counted)


def test_anti_entropy_is_for_storage_nodes_of_the_stream(host: StorageHost) -> None:
    question = AskHeads(4, (STREAM,), 0)
    assert isinstance(ask(host, question), SyncRefused)
    host.received(BOB, question)
    host.finish_all()
    assert any(isinstance(answer, TellHeads) for answer in host.said(BOB))
