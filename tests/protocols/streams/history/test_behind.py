"""A storage node that has just come back, or is new: what it says to readers, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from shoal.base.units import S_NS
from shoal.identity.message_body import Position
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import HistoryEnded, LastMessages, LogRange, MessageRange
from shoal.protocols.streams.config import StorageConfig, SyncConfig
from shoal.protocols.streams.history.anti_entropy import FollowStream
from shoal.protocols.streams.history.messages import (
    EVERYTHING,
    AskMessages,
    AskRows,
    CountKept,
    ReadHeads,
    ReadLast,
    ReadLog,
    Refused,
    Rows,
    SyncRefused,
)
from shoal.protocols.streams.history.replica_set import Comparisons
from shoal.protocols.streams.history.storage_node import KeepMessage
from shoal.storage.errors import StoreFull
from tests.support.history import LOG, Keeper, Library, Silent, history
from tests.support.storage_host import StorageHost, everything, message
from tests.support.streams import ALICE, BOB, EVE, NOW_NS, OTHER_STREAM, STREAM
from tests.support.sync_pair import Pair, keep

CONFIG = SyncConfig()
HOST = StorageConfig()
WHOLE = replace(everything(), whole=True)
MESSAGES = history(35)


def ask(host: StorageHost, question: Any) -> Any:
    """A reader asks, and is answered."""
    if not host.links.is_up(EVE):
        host.link_opened(EVE)
    host.received(EVE, question)
    host.finish_all()
    while host.exchange():
        pass
    said = host.said(EVE)
    if not said:
        host.advance(HOST.compare_ns)
        said = host.said(EVE)
    (answer,) = said
    return answer


def is_behind(host: StorageHost) -> bool:
    answer = ask(host, WHOLE)
    assert isinstance(answer, Rows) or answer == Refused(1, "behind")
    return isinstance(answer, Refused)


# What it says


def test_whoever_wants_the_whole_is_sent_on_until_all_of_it_is_here(pair: Pair) -> None:
    keep(pair.hosts[ALICE], 1, 2, 3)
    bob = pair.hosts[BOB]
    pair.connect(ALICE, BOB)
    assert ask(bob, WHOLE) == Refused(1, "behind")
    assert ask(bob, ReadLast(1, STREAM, 0, 5, None, 9, whole=True)) == Refused(1, "behind")
    assert ask(bob, everything()).rows == (), "to whoever takes what there is"
    pair.run(1)
    assert len(ask(bob, WHOLE).rows) == 3


def test_what_offsets_name_and_what_publishers_count_is_as_it_is(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    keep(bob, 1)
    assert is_behind(bob)
    log = bob.store_below.log.bytes
    assert len(ask(bob, ReadLog(1, STREAM, 0, log, 0, 9)).rows) == 1
    assert len(ask(bob, ReadHeads(1, STREAM, 0)).logs) == 1
    row = bob.store_below.log_read(bob.store_below.log, STREAM, 0, 0, 1).rows[0].id
    here = Position(row.timestamp_ms, row.sequence)
    counted = CountKept(1, STREAM, 0, row.publisher, row.chain, here, here)
    assert ask(bob, counted).count == 1


def test_one_without_peers_is_never_behind(tmp_path: Path) -> None:
    host = StorageHost(BOB, tmp_path, peers=(BOB,))
    host.command(host.sync, FollowStream(STREAM))
    assert not is_behind(host)
    host.close()


def test_a_peer_that_is_down_is_not_waited_for(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    assert is_behind(bob), "she is being dialled"
    bob.dial_failed(ALICE, "refused")
    assert not is_behind(bob)


def test_a_peer_that_does_not_pick_up_is_not_waited_for_long(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    bob.advance(CONFIG.behind_dial_ns - 1)
    assert is_behind(bob)
    bob.advance(1)
    assert not is_behind(bob)


def test_a_peer_that_comes_later_is_waited_for_then(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    bob.dial_failed(ALICE, "refused")
    pair.run(300)
    assert not is_behind(bob)
    pair.connect(ALICE, BOB)
    assert is_behind(bob)
    pair.run(1)
    assert not is_behind(bob)


@pytest.mark.parametrize("reason", [None, "busy"])
def test_a_peer_that_tells_nothing_is_not_waited_for_without_end(
    pair: Pair, reason: str | None
) -> None:
    def tell(question: Any, said: Any) -> Any:
        return None if reason is None else SyncRefused(said.request, reason)

    pair.lies[ALICE] = tell
    pair.connect(ALICE, BOB)
    pair.run(CONFIG.behind_ns // S_NS - 1)
    assert is_behind(pair.hosts[BOB])
    pair.run(1)
    assert not is_behind(pair.hosts[BOB])


def test_a_link_that_breaks_is_nobody_to_wait_for(pair: Pair) -> None:
    pair.connect(ALICE, BOB)
    pair.disconnect(ALICE, BOB)
    assert not is_behind(pair.hosts[BOB])


def test_one_that_was_only_cut_off_is_behind_as_well(pair: Pair) -> None:
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    pair.connect(ALICE, BOB)
    pair.run(3)
    pair.disconnect(ALICE, BOB)
    keep(alice, 1, 2, 3)
    pair.run(2 * CONFIG.retry_ns // S_NS)  # and they dial each other
    assert not is_behind(bob), "there is nobody who could have more"
    pair.connect(ALICE, BOB)
    assert is_behind(bob)
    pair.run(1)
    assert len(ask(bob, WHOLE).rows) == 3


@pytest.mark.parametrize("refused", [AskRows, AskMessages])
def test_what_a_round_had_to_leave_out_is_waited_for(pair: Pair, refused: type) -> None:
    bob = pair.hosts[BOB]
    said_no: list[Any] = []
    keep(pair.hosts[ALICE], 1, 2, 3)

    def refuse(question: Any, said: Any) -> Any:
        if type(question) is not refused or said_no:
            return said
        said_no.append(question)
        return SyncRefused(said.request, "failed")

    pair.lies[ALICE] = refuse
    pair.connect(ALICE, BOB)
    pair.run(1)
    assert said_no
    assert is_behind(bob), "that round is over"
    pair.run(3)
    assert len(ask(bob, WHOLE).rows) == 3


def test_what_the_own_disk_did_not_take_is_waited_for(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    keep(pair.hosts[ALICE], 1, 2, 3)
    with mock.patch.object(bob.store_below, "append_replica", side_effect=StoreFull("full")):
        pair.connect(ALICE, BOB)
        pair.run(1)
        assert is_behind(bob)
    pair.run(3)
    assert len(ask(bob, WHOLE).rows) == 3


@pytest.mark.parametrize("full", [True, False])
def test_what_the_own_disk_loses_later_is_waited_for_too(tmp_path: Path, full: bool) -> None:
    pair = Pair(tmp_path, config=StorageConfig(waiting_messages_max=1))
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    pair.connect(ALICE, BOB)
    pair.run(3)
    assert not is_behind(bob)
    for number in (1, 2):
        alice.command(alice.storage, KeepMessage(message(number)))
        alice.finish_all()
    if full:
        with mock.patch.object(bob.store_below, "append", side_effect=StoreFull("full")):
            keep(bob, 1)
    else:
        keep(bob, 1, 2)  # while the first one is stored, there is no room for the second
        assert "disk-behind" in bob.reasons()
    assert is_behind(bob)
    pair.run(3)
    assert len(ask(bob, WHOLE).rows) == 2
    for host in pair.hosts.values():
        host.close()


def test_as_long_as_rows_come_it_is_behind(tmp_path: Path) -> None:
    pair = Pair(tmp_path, sync_config=SyncConfig(rows_max=3, behind_ns=20 * S_NS))
    bob = pair.hosts[BOB]
    keep(pair.hosts[ALICE], *range(20))
    told = 0

    def slowly(question: Any, said: Any) -> Any:
        """A page, and then nothing for 12 seconds."""
        nonlocal told
        told += 1
        return said if told % 4 else None

    pair.lies[ALICE] = slowly
    pair.connect(ALICE, BOB)
    seconds = 0
    while is_behind(bob):
        pair.run(1)
        seconds += 1
    assert len(pair.rows(BOB, ALICE)) == 20
    assert seconds > 60
    for host in pair.hosts.values():
        host.close()


def test_of_a_stream_that_is_new_here_its_peers_are_asked_at_once(tmp_path: Path) -> None:
    pair = Pair(tmp_path, streams=(STREAM, OTHER_STREAM))
    pair.connect(ALICE, BOB)
    pair.run(3)
    other = replace(WHOLE, stream=OTHER_STREAM)
    for name in (ALICE, BOB):
        pair.hosts[name].command(pair.hosts[name].sync, FollowStream(OTHER_STREAM))
    assert ask(pair.hosts[BOB], other) == Refused(1, "behind")
    pair.run(0.5)
    assert ask(pair.hosts[BOB], other).rows == ()
    for host in pair.hosts.values():
        host.close()


# What a reader does


class Late(Keeper):
    """Has come back, and says so to whoever wants the whole."""

    def answer(self, question: Any) -> Any:
        self.asked.append(question)
        if getattr(question, "whole", False):
            return Refused(question.request, "behind")
        return super().answer(question)


@pytest.mark.parametrize("what", [MessageRange(), LastMessages(30)])
def test_a_reader_goes_to_one_that_has_it_all(what: MessageRange | LastMessages) -> None:
    late = Late(MESSAGES[30:])
    library = Library(late, Keeper(MESSAGES))
    library.read(what)
    assert library.rows, "at once"
    library.stop()
    assert library.read_all(what)[-30:] == MESSAGES[-30:]
    assert library.ended == [HistoryEnded("read")]
    assert library.rejected == [], "it has done nothing wrong"


@pytest.mark.parametrize("other", [Late(MESSAGES[30:]), None, Silent()])
def test_if_there_is_no_better_one_what_it_has_is_taken(other: Keeper | None) -> None:
    library = Library(Late(MESSAGES[20:]), other)
    assert library.read_all(MessageRange()) in (MESSAGES[20:], MESSAGES[30:])
    assert library.ended == [HistoryEnded("read")]


def test_it_is_waited_for_only_once() -> None:
    library = Library(Late(MESSAGES))
    began_ns = library.host.time_ns
    assert library.read_all(MessageRange()) == MESSAGES, "four pages"
    waited_ns = library.host.time_ns - began_ns
    assert waited_ns == (library.client.config.rounds - 1) * library.client.config.retry_ns


def test_one_that_catches_up_meanwhile_gives_all() -> None:
    late = Late()
    library = Library(late)
    library.read(MessageRange())
    library.keepers = dict.fromkeys(library.keepers, Keeper(MESSAGES, page_rows=100))
    library.advance(S_NS)
    assert library.rows == MESSAGES


def test_a_log_is_read_as_ever() -> None:
    library = Library(Late(MESSAGES))
    assert library.read_all(LogRange(LOG, 0)) == MESSAGES


# A clock that is wrong

HOUR_NS = 3600 * S_NS


def compared(wall: WallClock) -> Comparisons:
    """Alice was compared at 100 s, by the monotonic clock."""
    comparisons = Comparisons(wall)
    comparisons.compared(ALICE, {STREAM: (100 * S_NS, EVERYTHING)})
    return comparisons


def until_s(comparisons: Comparisons) -> int:
    return comparisons.until_ms(ALICE, STREAM) // 1000


def test_a_clock_that_was_set_ahead_vouches_for_nothing_that_is_to_come() -> None:
    """Alice may be gone by now, and have taken what came in the hour that there never was."""
    wall = WallClock(NOW_NS)
    wall.set(NOW_NS + HOUR_NS, 99 * S_NS)
    assert until_s(compared(wall)) == NOW_NS // S_NS + 100


def test_nor_after_a_restart() -> None:
    wall = WallClock(NOW_NS + HOUR_NS)  # from the start: there is nothing to tell it by
    note = compared(wall).note(ALICE)
    right = Comparisons(WallClock(NOW_NS))
    right.noted(ALICE, note, 600 * S_NS)
    assert until_s(right) == 0
    right.noted(ALICE, compared(WallClock(NOW_NS)).note(ALICE), 600 * S_NS)
    assert until_s(right) == NOW_NS // S_NS + 100
