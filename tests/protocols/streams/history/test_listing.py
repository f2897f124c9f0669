"""Storage nodes that tell each other which streams they hold, and strangers who ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.base.ids import Contact, StreamId
from shoal.protocols.streams.history.anti_entropy import FollowNodes, FollowStream, StreamListed
from shoal.protocols.streams.history.messages import (
    LISTED_STREAMS_MAX,
    AskStreams,
    SyncRefused,
    TellStreams,
)
from tests.support.storage_host import StorageHost
from tests.support.streams import ALICE, BOB, EVE, STREAM
from tests.support.sync_pair import Pair, keep

NO_LOG = bytes(16)


def name(number: int) -> StreamId:
    return StreamId(f"0xowner/{number}")


def ask(host: StorageHost, peer: Any, question: Any) -> Any:
    if not host.links.is_up(peer):
        host.link_opened(peer)
    host.said(peer)
    host.received(peer, question)
    host.finish_all()
    return host.said(peer)[-1]


def listed(host: StorageHost) -> list[StreamId]:
    return [event.stream for event in host.notified if isinstance(event, StreamListed)]


def test_all_streams_are_told_once_a_page_at_a_time(tmp_path: Path) -> None:
    names = [name(number) for number in range(LISTED_STREAMS_MAX + 10)]
    pair = Pair(tmp_path, streams=[STREAM, *names])
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    for stream in names:
        keep(alice, 1, stream=stream)
    pair.connect(ALICE, BOB)
    pair.run(10)
    assert listed(bob) == names
    assert listed(alice) == []
    keep(alice, 1, stream=name(9_999))
    pair.run(5)
    assert listed(bob) == [*names, name(9_999)]
    pages = [question.after for question in pair.asked if isinstance(question, AskStreams)]
    assert max(pages) == len(names) + 1
    pair.check()


def test_a_node_that_knows_of_no_stream_asks_those_that_are_named_beside_it(
    tmp_path: Path,
) -> None:
    host = StorageHost(ALICE, tmp_path / "store", peers=(ALICE, BOB))
    host.command(host.sync, FollowNodes((Contact(ALICE), Contact(BOB))))
    host.link_opened(BOB)
    host.advance(1_000_000_000)
    (question,) = host.said(BOB)
    assert isinstance(question, AskStreams)
    host.received(BOB, TellStreams(question.request, NO_LOG, (name(1),), 1, False))
    assert listed(host) == [name(1)]
    host.close()


def test_strangers_are_told_nothing(tmp_path: Path) -> None:
    host = StorageHost(ALICE, tmp_path / "store", peers=(ALICE, BOB))
    host.command(host.sync, FollowStream(STREAM))
    keep(host, 1)
    assert ask(host, EVE, AskStreams(1, NO_LOG, 0)) == SyncRefused(1, "not-kept")
    told = ask(host, BOB, AskStreams(2, NO_LOG, 0))
    assert told == TellStreams(2, host.store_below.log.bytes, (STREAM,), 1, False)
    host.close()


def test_a_number_of_another_store_begins_anew(tmp_path: Path) -> None:
    host = StorageHost(ALICE, tmp_path / "store", peers=(ALICE, BOB))
    host.command(host.sync, FollowStream(STREAM))
    keep(host, 1)
    log = host.store_below.log.bytes
    assert ask(host, BOB, AskStreams(1, log, 1)).streams == ()
    assert ask(host, BOB, AskStreams(2, bytes(range(16)), 1)).streams == (STREAM,)
    assert ask(host, BOB, AskStreams(3, log, 2**60)).streams == ()
    host.close()


def test_a_list_that_does_not_go_on_is_not_asked_for_without_end(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    keep(pair.hosts[ALICE], 1)

    def lie(question: Any, said: Any) -> Any:
        if isinstance(said, TellStreams):
            return TellStreams(said.request, said.own, (), 0, True)
        return said

    pair.lies[ALICE] = lie
    pair.connect(ALICE, BOB)
    pair.run(20)
    assert pair.hosts[BOB].reasons().count("no-list") <= 11
    assert len(pair.rows(BOB, ALICE)) == 1  # and all else goes on
    pair.check()
