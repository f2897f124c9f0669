"""Signature checks, gathered per turn of the event loop.

They are done on the loop, a slice per turn, so that it keeps reading and writing in between. A
thread does not come cheap: a check calls into C three times, each call gives up the interpreter's
lock and wants it back, and two threads that take turns at it cost a fifth on top of a delivery. So
only a backlog that would hold the loop up for long goes to one. Results go back in the order in
which the checks were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

from shoal.identity import verify_signed
from shoal.kernel.effects import Verify

Check = tuple[int, Verify]  # who asks, and what
Done = Callable[[int, Hashable, bool], None]  # who asked, its token, whether it is valid

AT_ONCE_MAX = 64  # about three milliseconds on the loop; fewer make more and smaller writes
THREAD_MIN = 512  # a backlog of 20 milliseconds: more than a turn of any node that keeps up
BATCH_MAX = 256  # about ten milliseconds of the thread; results flow while the rest is checked


class Verifier:
    """One thread at most, so that results are first in first out without further ado."""

    def __init__(self, done: Done) -> None:
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
