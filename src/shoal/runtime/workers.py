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
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from shoal.base.units import MIB
from shoal.identity import verify_signed
from shoal.kernel.disk import Disk, DiskRequest, DiskResult
from shoal.kernel.effects import Load, Store, Verify
from shoal.kernel.inputs import Loaded, StoreFailed
from shoal.kernel.wall_clock import ReadsWall, WallClock

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


# Signature checks, gathered per turn of the event loop.
#
# They are done on the loop, a slice per turn, so that it keeps reading and writing in between. A
# thread does not come cheap: a check calls into C three times, each call gives up the interpreter's
# lock and wants it back, and two threads that take turns at it cost a fifth on top of a delivery.
# So only a backlog that would hold the loop up for long goes to one. Results go back in the order
# in which the checks were asked for.


Check = tuple[int, Verify]  # who asks, and what
VerifyDone = Callable[[int, Hashable, bool], None]  # who asked, its token, whether it is valid

AT_ONCE_MAX = 64  # about three milliseconds on the loop; fewer make more and smaller writes
THREAD_MIN = 512  # a backlog of 20 milliseconds: more than a turn of any node that keeps up
BATCH_MAX = 256  # about ten milliseconds of the thread; results flow while the rest is checked


class Verifier:
    """One thread at most, so that results are first in first out without further ado."""

    def __init__(self, done: VerifyDone) -> None:
        """Done is called from the event loop, never from within check, and must not raise."""
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="shoal-verify")
        self._waiting: list[Check] = []
        self._turn: asyncio.Handle | None = None
        self._thread: asyncio.Task[None] | None = None
        self._closed = False

    def check(self, slot: int, effect: Verify) -> None:
        """Ask for a check."""
        if self._closed:
            return
        self._waiting.append((slot, effect))
        if self._turn is None and self._thread is None:
            self._turn = self._loop.call_soon(self._take_turn)

    async def close(self) -> None:
        """Forget what waits; no thread is left."""
        self._closed = True
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
        try:
            if self._thread is not None:
                await asyncio.wait([self._thread])
        finally:
            self._executor.shutdown(wait=True)

    def _take_turn(self) -> None:
        self._turn = None
        if len(self._waiting) > THREAD_MIN:
            self._thread = self._loop.create_task(self._use_thread())
            return
        batch, self._waiting = self._waiting[:AT_ONCE_MAX], self._waiting[AT_ONCE_MAX:]
        # First all checks, then all that follows: they would drive each other out of the cache.
        self._tell(batch, _check_all(batch))
        if self._waiting and self._turn is None and not self._closed:
            self._turn = self._loop.call_soon(self._take_turn)

    async def _use_thread(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            results = await self._loop.run_in_executor(self._executor, _check_all, batch)
            if self._closed:
                break
            self._tell(batch, results)
        self._thread = None

    def _tell(self, checks: list[Check], results: list[bool]) -> None:
        done = self._done
        for (slot, effect), valid in zip(checks, results, strict=True):
            done(slot, effect.token, valid)


def _check_all(checks: list[Check]) -> list[bool]:
    return [verify_signed(effect.signer, effect.signed) for _, effect in checks]


# Several disks of one node as one: each machine's requests go to its own.


class DisksBySlot:
    """The disk port over others, by the slot of the machine that asks."""

    def __init__(self, disks: Mapping[int, Disk]) -> None:
        self._of_slot = dict(disks)
        self._disks: tuple[Disk, ...] = tuple({id(disk): disk for disk in disks.values()}.values())
        self.wall = WallClock()
        for disk in self._disks:
            if isinstance(disk, ReadsWall):
                disk.wall = self.wall

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        results = [_no_disk(effect) for _, effect in requests]
        for disk in self._disks:
            mine = [at for at, (slot, _) in enumerate(requests) if self._of_slot.get(slot) is disk]
            if mine:
                done = disk.work([requests[at] for at in mine], now_ns)
                for at, result in zip(mine, done, strict=True):
                    results[at] = result
        return results

    def clear(self) -> None:
        for disk in self._disks:
            disk.clear()

    def close(self) -> None:
        with ExitStack() as stack:  # one that cannot be closed does not keep the others open
            for disk in self._disks:
                stack.callback(disk.close)


def _no_disk(effect: Store | Load) -> DiskResult:
    """What a machine without a disk is told."""
    if isinstance(effect, Store):
        return StoreFailed(effect.token, "no-disk")
    return Loaded(effect.token, None)
