"""Signature checks, gathered per turn of the event loop.

A few are done at once, on the loop: handing them to a thread and back takes longer than they do.
Many go to a thread, so that the loop keeps reading and writing meanwhile; secp256k1 works without
the interpreter's lock. Results go back in the order in which the checks were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from shoal.base.ids import NodeId
from shoal.identity import verify

Check = tuple[NodeId, bytes, bytes]  # signer, body, signature
Done = Callable[[bool], None]

AT_ONCE_MAX = 32  # about a millisecond and a half on the loop
BATCH_MAX = 256  # about ten milliseconds of the thread; results flow while the rest is checked


class Verifier:
    """One thread at most, so that results are first in first out without further ado."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="shoal-verify")
        self._waiting: list[tuple[Check, Done]] = []
        self._turn: asyncio.Handle | None = None
        self._thread: asyncio.Task[None] | None = None
        self._closed = False

    def check(self, check: Check, done: Done) -> None:
        """Ask for a check; done is called from the event loop, never from within, and must not
        raise."""
        if self._closed:
            return
        self._waiting.append((check, done))
        if self._turn is None and self._thread is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    async def close(self) -> None:
        """Forget what waits; no thread is left."""
        self._closed = True
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
        if self._thread is not None:
            await self._thread
        self._executor.shutdown(wait=True)

    def _take_turn(self) -> None:
        self._turn = None
        if len(self._waiting) > AT_ONCE_MAX:
            self._thread = asyncio.get_running_loop().create_task(self._use_thread())
            return
        batch, self._waiting = self._waiting, []
        for check, done in batch:
            done(verify(*check))

    async def _use_thread(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            checks = [check for check, _ in batch]
            results = await loop.run_in_executor(self._executor, _check_all, checks)
            if self._closed:
                break
            for (_, done), valid in zip(batch, results, strict=True):
                done(valid)
        self._thread = None


def _check_all(checks: list[Check]) -> list[bool]:
    return [verify(*check) for check in checks]
