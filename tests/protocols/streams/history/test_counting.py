"""How much of a chain is kept: asked by publishers of many messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.base.units import S_NS
from shoal.identity.message_body import Position, decode_body
from shoal.protocols.streams.commands import (
    FAILED,
    NO_STORAGE,
    CountDurable,
    CountedDurable,
    KeepFailed,
)
from shoal.protocols.streams.history.log_entries import read_kept
from shoal.protocols.streams.history.messages import Counted, CountKept
from shoal.protocols.streams.history.storage_node import KeepMessage
from tests.support.history import TWO, Keeper, Library, Refusing, Silent, history
from tests.support.storage_host import StorageHost
from tests.support.streams import ALICE, ME, STREAM

MESSAGES = history(30)
IDS = [decode_body(signed).id for signed in MESSAGES]
BEGIN, END = (Position(id.timestamp_ms, id.sequence) for id in (IDS[5], IDS[24]))


def count(library: Library, wanted: int = 20) -> None:
    id = IDS[0]
    command = CountDurable(STREAM, id.partition, id.publisher, id.chain, BEGIN, END, wanted)
    library.command(command, "count")


def told(library: Library) -> list[Any]:
    return [e for e in library.host.notified if isinstance(e, CountedDurable | KeepFailed)]


def test_the_first_that_has_all_is_enough() -> None:
    library = Library(Silent(), Keeper(MESSAGES))
    count(library)
    assert told(library) == [CountedDurable("count", 20)]
    library.advance(60 * S_NS)
    assert len(told(library)) == 1, "whoever is late changes nothing"
    assert library.client._jobs == {}


def test_late_ones_count_once_nobody_may_claim_to_be_complete_without_them() -> None:
    one, two = Keeper(MESSAGES), Keeper(MESSAGES[:20])
    one.unaware = (TWO,)
    library = Library(one, two)
    count(library)
    assert told(library) == [CountedDurable("count", 20, (TWO,))]
    library.keepers[TWO] = Keeper(MESSAGES)
    count(library)
    assert told(library)[1:] == [CountedDurable("count", 20)]
    library.keepers[TWO] = Refusing("not-kept")
    count(library)
    assert told(library)[2:] == [CountedDurable("count", 20)]


def test_else_it_is_whoever_has_most() -> None:
    library = Library(Keeper(MESSAGES[:10]), Keeper(MESSAGES[:20]), Refusing("busy"))
    count(library)
    assert told(library) == [CountedDurable("count", 15)]


def test_if_nobody_answers_that_is_said() -> None:
    library = Library(Silent(), Refusing("busy"))
    count(library)
    library.advance(10 * S_NS)
    (failed,) = told(library)
    assert (failed.token, failed.reason) == ("count", FAILED)
    assert "busy" in failed.problem
    assert library.client._jobs == {}


def test_a_stream_that_nobody_keeps_is_told_apart() -> None:
    library = Library()
    count(library)
    library.advance(10 * S_NS)
    (failed,) = told(library)
    assert failed.reason == NO_STORAGE


# Of a storage node


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StorageHost]:
    host = StorageHost(ME, tmp_path / "store")
    host.link_opened(ALICE)
    yield host
    host.close()


@pytest.mark.parametrize("kept", [30, 20, 5, 0])
def test_a_storage_node_counts_what_is_on_its_disk(host: StorageHost, kept: int) -> None:
    for signed in [*MESSAGES[:kept], *history(30, chain="another")]:
        host.command(host.storage, KeepMessage(read_kept(STREAM, signed).message))
    host.finish_all()
    id = IDS[0]
    question = CountKept(7, STREAM, id.partition, id.publisher, id.chain, BEGIN, END)
    host.received(ALICE, question)
    host.finish_all()
    assert host.said(ALICE) == [Counted(7, max(0, min(kept, 25) - 5))]
