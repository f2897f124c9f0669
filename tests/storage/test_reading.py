"""Reads by position: pages that hold no transaction open, filters, bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX, StreamId
from shoal.identity.message_body import Position
from shoal.storage.config import StoreConfig
from tests.storage.stage import (
    ALICE,
    BOB,
    OTHER,
    START_MS,
    START_NS,
    STREAM,
    claim,
    ids_of,
    message,
    messages,
    open_store,
    rows_of,
)

PAGES = StoreConfig(page_rows_max=4, scan_rows_max=5, last_rows_max=50)


def at(timestamp_ms: int, sequence: int = 0) -> Position:
    return Position(START_MS + timestamp_ms, sequence)


def test_a_range_has_both_its_ends(tmp_path: Path) -> None:
    batch = [message(n // 3, n % 3) for n in range(12)]
    with open_store(tmp_path / "a", PAGES) as store:
        store.append([*batch, message(1, stream=OTHER), message(1, partition=1)], START_NS)
        ids = [m.id for m in batch]
        assert ids_of(store.range(STREAM, 0)) == ids
        assert ids_of(store.range(STREAM, 0, at(1, 1), at(2, 0))) == ids[4:7]
        assert ids_of(store.range(STREAM, 0, at(1, 1))) == ids[4:]
        assert ids_of(store.range(STREAM, 0, None, at(1, INT63_MAX))) == ids[:6]
        assert ids_of(store.range(STREAM, 0, at(2), at(1))) == []
        assert ids_of(store.range(StreamId("unknown"), 0)) == []
        assert ids_of(store.range(STREAM, 2)) == []
        assert ids_of(store.range(STREAM, 0, at(1), at(2))) == ids[3:7]


def test_pages_are_bounded(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", PAGES) as store:
        store.append(messages(10), START_NS)
        assert [len(page) for page in store.range(STREAM, 0)] == [4, 4, 2]
        assert [len(page) for page in store.get([m.id for m in messages(10)])] == [4, 4, 2]


def test_a_filter_gives_empty_pages_and_goes_on(tmp_path: Path) -> None:
    batch = [message(n, publisher=BOB if n in (3, 17) else ALICE) for n in range(20)]
    with open_store(tmp_path / "a", PAGES) as store:
        store.append(batch, START_NS)
        pages = list(store.range(STREAM, 0, publisher=BOB))
        assert [len(page) for page in pages] == [1, 0, 0, 1]
        assert ids_of(pages) == [batch[3].id, batch[17].id]
        pages = list(store.last(STREAM, 0, 2, publisher=BOB))
        assert ids_of(pages) == [batch[3].id, batch[17].id]
        assert [] in pages, "a page every 5 keys, whatever they are"


def test_a_chain_of_a_publisher(tmp_path: Path) -> None:
    batch = [
        message(n, publisher=publisher, chain=chain)
        for n in range(3)
        for publisher in (ALICE, BOB)
        for chain in ("c", "cc")
    ]
    with open_store(tmp_path / "a", PAGES) as store:
        store.append(batch, START_NS)
        found = ids_of(store.range(STREAM, 0, publisher=BOB, chain="c"))
        assert found == [message(n, publisher=BOB, chain="c").id for n in range(3)]
        assert len(ids_of(store.range(STREAM, 0, chain="cc"))) == 6
        assert ids_of(store.range(STREAM, 0, chain="ccc")) == []


@pytest.mark.parametrize("n", [0, 1, 4, 5, 9, 10, 11, 50])
def test_the_last_n_come_in_order(tmp_path: Path, n: int) -> None:
    batch = messages(10)
    with open_store(tmp_path / "a", PAGES) as store:
        store.append([*reversed(batch), message(5, stream=OTHER), message(0, partition=1)], 0)
        expected = [m.id for m in batch][-n:] if n else []
        assert ids_of(store.last(STREAM, 0, n)) == expected
        assert ids_of(store.last(STREAM, 1, n)) == [message(0, partition=1).id][:n]
        assert ids_of(store.last(STREAM, 2, n)) == []


def test_last_is_bounded(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", PAGES) as store:
        for n in (-1, 51):
            with pytest.raises(UsageError, match="at most 50"):
                store.last(STREAM, 0, n)


def test_a_slow_reader_sees_what_lies_ahead_and_holds_nothing_open(tmp_path: Path) -> None:
    with open_store(tmp_path / "a", PAGES) as store:
        store.append(messages(6), START_NS)
        pages = store.range(STREAM, 0)
        last = store.last(STREAM, 0, 5)
        assert ids_of([next(pages)]) == [m.id for m in messages(4)]
        assert ids_of([next(last)]) == [m.id for m in messages(4, 1)]
        store.append([message(0, 1), *messages(3, 6)], START_NS)
        assert ids_of(pages) == [m.id for m in messages(5, 4)]
        assert ids_of(last) == [message(5).id], "`last` ends where it began"


def test_by_id_leaves_out_what_is_not_held(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        store.append([message(1), message(2)], START_NS)
        asked = [message(2).id, message(3).id, message(1, stream=OTHER).id, message(1).id]
        assert ids_of(store.get(asked)) == [asked[0], asked[3]]
        assert rows_of(store.get([])) == []


def test_lacking_tells_what_to_ask_for(tmp_path: Path) -> None:
    held, other_body, unknown = message(1), message(1, content=b"other"), message(2)
    elsewhere = message(1, stream=OTHER)
    with open_store(tmp_path / "a", StoreConfig(claims_max=4)) as store:
        store.append([held], START_NS)
        claims = [
            claim(held),
            claim(message(1, signature=b"t")),
            claim(other_body),
            claim(unknown),
        ]
        assert store.lacking(claims) == [held.id, unknown.id]
        assert store.lacking([claim(elsewhere)]) == [elsewhere.id]
        with pytest.raises(UsageError, match="at most 4"):
            store.lacking(claims * 2)
