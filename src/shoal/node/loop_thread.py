"""An event loop in a thread of its own, for callers that have none, or whose own is busy: a
notebook runs each cell inside of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from shoal.base.errors import UsageError

CLOSE_S = 10.0  # whatever takes longer to end is given up

T = TypeVar("T")


class LoopThread:
    """Runs coroutines, for one thread that waits or for several."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        # A program that ends without `close` ends all the same.
        self._thread = threading.Thread(target=self._run, name="shoal", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether it is not closed."""
        return self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """The result; TimeoutError if it takes longer. Whatever ends the wait, Ctrl-C as well, ends
        the work."""
        if not self.runs:
            work.close()
            raise UsageError("this node is closed: connect again")
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("this would wait for itself: use the async API here")
        future = asyncio.run_coroutine_threadsafe(_within(work, timeout), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and everything in it; never waits for long. Closing twice is fine."""
        if self.runs:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_S / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


class Held(Generic[T]):
    """An async context manager that is entered and left by one task of a loop, as it must be."""

    def __init__(self, thread: LoopThread, context: AbstractAsyncContextManager[T]) -> None:
        """Enters it; raises what that raises."""
        self._thread = thread
        self._leave = asyncio.Event()
        self._entered: Future[T] = Future()
        self._task: asyncio.Task[None] | None = None
        self.value = thread.call(self._enter(context))

    async def _enter(self, context: AbstractAsyncContextManager[T]) -> T:
        self._task = asyncio.get_running_loop().create_task(self._live(context))
        try:
            return await asyncio.wrap_future(self._entered)
        except BaseException:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_S)
            raise

    async def _live(self, context: AbstractAsyncContextManager[T]) -> None:
        try:
            async with context as value:
                self._entered.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)

    def close(self) -> None:
        """Leave it; what takes too long is cancelled. Closing twice is fine."""
        task, self._task = self._task, None
        if task is not None and self._thread.runs:
            self._thread.call(self._end(task))

    async def _end(self, task: asyncio.Task[None]) -> None:
        self._leave.set()
        await asyncio.wait([task], timeout=CLOSE_S)
        task.cancel()
        await asyncio.wait([task], timeout=CLOSE_S)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _within(work: Coroutine[Any, Any, T], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await work


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
