"""The disk thread: batches, order, and a disk that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from time import time_ns

import pytest

from shoal.kernel.disk import DiskRequest, DiskResult, MemoryDisk
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed
from shoal.runtime import workers as disk_module
from shoal.runtime.workers import DiskThread


class SlowDisk(MemoryDisk):
    """Waits for leave before each batch; says what it was asked for."""

    def __init__(self, *, open: bool = False) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.gate = threading.Semaphore(1_000_000 if open else 0)
        self.closed = False
        self.broken = False

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        self.gate.acquire()
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(requests))
        if self.broken:
            raise OSError("no such disk")
        return super().work(requests, now_ns)

    def close(self) -> None:
        self.closed = True


class Stage:
    """A disk thread and what it said."""

    def __init__(self, disk: SlowDisk) -> None:
        self.disk = disk
        self.results: list[tuple[int, DiskResult]] = []
        self.thread = DiskThread(
            disk, lambda slot, result: self.results.append((slot, result)), time_ns
        )

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.results) < count:
                await asyncio.sleep(0.001)


def run(disk: SlowDisk, scenario: object) -> None:
    async def main() -> None:
        stage = Stage(disk)
        try:
            await scenario(stage)  # type: ignore[operator]
        finally:
            disk.gate.release(1_000)
            await stage.thread.close()
        assert disk.closed
        assert "shoal-disk" not in {thread.name for thread in threading.enumerate()}

    asyncio.run(main())


def test_what_is_asked_for_while_a_batch_is_at_work_makes_the_next() -> None:
    async def scenario(stage: Stage) -> None:
        stage.thread.ask(1, Store(b"k", b"0", 0))
        await asyncio.sleep(0.05)
        for token in range(1, 100):
            stage.thread.ask(1, Store(b"k", b"%d" % token, token))
        stage.thread.ask(2, Load(b"k", "theirs"))
        stage.thread.ask(1, Load(b"k", "ours"))
        assert stage.results == []
        stage.disk.gate.release(2)
        await stage.until(102)
        assert stage.disk.batches == [1, 101]
        assert stage.results[:100] == [(1, Stored(token)) for token in range(100)]
        assert stage.results[100:] == [(2, Loaded("theirs", None)), (1, Loaded("ours", b"99"))]
        assert stage.disk.threads == {"shoal-disk"}

    run(SlowDisk(), scenario)


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "BATCH_STORES_MAX", 10)
    monkeypatch.setattr(disk_module, "BATCH_LOADS_MAX", 3)
    monkeypatch.setattr(disk_module, "BATCH_BYTES_MAX", 1_000)

    async def scenario(stage: Stage) -> None:
        stage.thread.ask(0, Load(b"first", 0))
        await asyncio.sleep(0.05)
        for token in range(12):
            stage.thread.ask(0, Store(b"k", b"", token))
        for token in range(4):
            stage.thread.ask(0, Load(b"k", token))
        for token in range(3):
            stage.thread.ask(0, Store(b"k", bytes(600), token))
        stage.thread.ask(0, Store(b"k", bytes(2_000), 9))
        stage.disk.gate.release(100)
        await stage.until(21)
        assert stage.disk.batches == [1, 10, 5, 2, 1, 1, 1]

    run(SlowDisk(), scenario)


def test_a_disk_that_breaks_fails_what_it_was_asked_for_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(stage: Stage) -> None:
        stage.disk.broken = True
        stage.thread.ask(0, Store(b"k", b"1", "a"))
        stage.thread.ask(0, Load(b"k", "b"))
        await stage.until(2)
        stage.disk.broken = False
        stage.thread.ask(0, Store(b"k", b"2", "c"))
        await stage.until(3)
        assert [result for _, result in stage.results] == [
            StoreFailed("a", "failed"),
            Loaded("b", None),
            Stored("c"),
        ]

    run(SlowDisk(open=True), scenario)
    assert "the disk failed" in caplog.text


def test_closing_stores_what_is_queued_and_tells_nobody() -> None:
    disk = SlowDisk()

    async def scenario(stage: Stage) -> None:
        for token in range(100):
            stage.thread.ask(0, Store(b"%d" % token, b"v", token))
        disk.gate.release(1_000)
        await stage.thread.close()
        assert len(disk.values) == 100
        assert len(stage.results) < 100
        stage.thread.ask(0, Store(b"late", b"v", None))

    async def main() -> None:
        await scenario(Stage(disk))

    asyncio.run(main())
    assert (0, b"late") not in disk.values
    assert disk.closed
