"""The disk of a node: one thread that does what machines ask for, batch after batch.

What is asked for while a batch is at work makes the next one, so the busier the disk, the larger
the batches and the less each request costs. Results go back to the event loop in the order in
which they were asked for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

from shoal.base.units import MIB
from shoal.kernel.disk import Disk, DiskRequest, DiskResult
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, StoreFailed

BATCH_STORES_MAX = 4_096  # 20 ms of a store
BATCH_BYTES_MAX = 16 * MIB
BATCH_LOADS_MAX = 16  # pages of a few milliseconds: what is to be stored waits for no more

Done = Callable[[int, DiskResult], None]  # who asked, and the result

log = logging.getLogger("shoal.runtime")


class DiskThread:
    """Owns a disk from the first request to the end of `close`."""

    def __init__(self, disk: Disk, done: Done, now_ns: Callable[[], int]) -> None:
        """Done is called from the event loop, and must not raise; the time, from the thread."""
        self._disk = disk
        self._done = done
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._queue: deque[DiskRequest] = deque()
        self._more = threading.Condition()
        self._idle = False  # the thread is about to wait, or waits: only then it must be woken
        self._closing = False
        self._stopped = self._loop.create_future()
        self._thread: threading.Thread | None = None

    def ask(self, slot: int, effect: Store | Load) -> None:
        """Queue a request; machines bound what they ask for."""
        if self._closing:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shoal-disk")
            self._thread.start()
        self._queue.append((slot, effect))
        if self._idle:
            with self._more:
                self._idle = False  # it is woken once, however long it takes
                self._more.notify()

    async def close(self) -> None:
        """Do what is queued, tell nobody of it, and close the disk; no thread is left. Cancelled,
        all of it is done without anybody waiting for it."""
        with self._more:
            self._closing = True
            self._more.notify()
        if self._thread is None:
            self._disk.close()
            return
        await asyncio.shield(self._stopped)
        self._thread.join()

    def _run(self) -> None:
        while True:
            if not self._queue and self._wait_for_more():
                break
            batch = self._take()
            results = self._work(batch)
            self._tell(self._finished, batch, results)
        try:
            self._disk.close()
        except Exception:
            log.exception("the disk could not be closed")
        self._tell(self._stop)

    def _wait_for_more(self) -> bool:
        """Whether the disk is being closed, and all that was asked for is done."""
        with self._more:
            # First this, then a look at the queue: who asks does it the other way round.
            self._idle = True
            while not self._queue and not self._closing:
                self._more.wait()
                self._idle = True
            self._idle = False
            return not self._queue

    def _take(self) -> list[DiskRequest]:
        """The next batch, first in first out."""
        queue = self._queue
        batch: list[DiskRequest] = []
        stores = loads = size_bytes = 0
        while queue:
            request = queue.popleft()
            effect = request[1]
            if isinstance(effect, Load):
                loads += 1
            else:
                stores += 1
                if effect.value is not None:
                    size_bytes += len(effect.value)
            over = stores > BATCH_STORES_MAX or loads > BATCH_LOADS_MAX
            if batch and (over or size_bytes > BATCH_BYTES_MAX):
                queue.appendleft(request)
                break
            batch.append(request)
        return batch

    def _work(self, batch: list[DiskRequest]) -> list[DiskResult]:
        try:
            return self._disk.work(batch, self._now_ns())
        except Exception:
            # A bug, or a disk that breaks its contract: the node goes on without what it lost.
            log.exception("the disk failed")
            return [_failed(effect) for _, effect in batch]

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            log.warning("the event loop ended before its disk was closed")

    def _finished(self, batch: list[DiskRequest], results: list[DiskResult]) -> None:
        if self._closing:
            return
        done = self._done
        for (slot, _), result in zip(batch, results, strict=True):
            done(slot, result)

    def _stop(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)


def _failed(effect: Store | Load) -> DiskResult:
    if isinstance(effect, Store):
        return StoreFailed(effect.token, "failed")
    return Loaded(effect.token, None)
