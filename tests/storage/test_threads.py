"""Several threads on one store: readers while it grows, writers in turn, and closing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.base.errors import UsageError
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.lmdb_file import Gate
from shoal.storage.message_store.store_types import LogHead, Stored
from tests.storage.stage import START_NS, STREAM, ids_of, log_rows, message, open_store

WAIT_S = 30


@pytest.fixture(autouse=True)
def _quick_turns() -> Iterator[None]:
    """lmdb's binding gives the interpreter up at every call, and waits for its next turn."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(before_s)


def test_reads_go_on_while_the_map_moves(tmp_path: Path) -> None:
    """Each growth takes the map away under lmdb; a read in it would end the process."""
    config = StoreConfig(map_bytes=64 * 1024, page_rows_max=50)
    done = threading.Event()
    with open_store(tmp_path / "a", config) as store, ThreadPoolExecutor(2) as threads:

        def read() -> int:
            reads = 0
            while not done.is_set():
                count = len(ids_of(store.range(STREAM, 0)))
                assert len(list(log_rows(store, store.log))) >= count
                reads += 1
            return reads

        readers = [threads.submit(read) for _ in range(2)]
        for number in range(30):
            store.append([message(number, n, content=bytes(4_000)) for n in range(10)], START_NS)
        done.set()
        assert all(reader.result(WAIT_S) for reader in readers)
        assert store.info().file_bytes > 20 * config.map_bytes
        store.check_invariants()


def test_writers_take_turns(tmp_path: Path) -> None:
    config = StoreConfig(
        map_bytes=64 * 1024, retention=Retention(age_ns=1, size_bytes_max=None, rows_per_step=10)
    )
    with open_store(tmp_path / "a", config) as store, ThreadPoolExecutor(4) as threads:

        def write(writer: int) -> list[int]:
            seqs = []
            for number in range(30):
                result = store.append([message(number, writer, content=bytes(900))], START_NS)[0]
                assert isinstance(result, Stored)
                seqs.append(result.seq)
            return seqs

        futures = [threads.submit(write, writer) for writer in range(3)]
        for _ in range(20):
            store.retain(START_NS + 1)
        seqs = [future.result(WAIT_S) for future in futures]
        assert all(given == sorted(given) for given in seqs)
        assert sorted(seq for given in seqs for seq in given) == list(range(1, 91))
        while store.retain(START_NS + 1).more:
            pass
        assert store.heads(STREAM, 0) == {store.log: LogHead(91, 90)}
        store.check_invariants()


def test_closing_waits_for_what_is_under_way(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")

    def write() -> int:
        number = 0
        try:
            while True:
                store.append([message(number)], START_NS)
                number += 1
        except UsageError as error:
            assert "is closed" in str(error)  # noqa: PT017
            return number

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write)
        while not store.heads(STREAM, 0)[store.log].last:
            pass
        store.close()
        stored = writer.result(WAIT_S)
    with open_store(tmp_path / "a") as store:
        assert store.heads(STREAM, 0) == {store.log: LogHead(1, stored)}


def test_whoever_wants_to_be_alone_is_not_overtaken() -> None:
    gate, order = Gate(), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with gate.together():
            inside.set()
            leave.wait(WAIT_S)
            order.append("together")

    def alone() -> None:
        with gate.alone():
            order.append("alone")

    def late() -> None:
        with gate.together():
            order.append("late")

    def start(work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    threads = [start(first)]
    inside.wait(WAIT_S)
    threads.append(start(alone))
    while not gate._alone:
        pass
    threads.append(start(late))
    leave.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert order == ["together", "alone", "late"]
