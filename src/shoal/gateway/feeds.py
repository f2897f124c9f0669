"""Live messages for many subscribers: the node is asked once for each stream, whoever listens.

Each subscriber has a queue with bounds, in messages and in bytes. Whoever falls behind loses the
oldest, and is told how many: the next message has a gap before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec.structs import replace

from shoal.base.bounded_queue import BoundedQueue
from shoal.base.errors import ShoalError
from shoal.gateway.config import (
    SUBSCRIBER_QUEUE_BYTES_MAX,
    SUBSCRIBER_QUEUE_MAX,
    SUBSCRIBERS_MAX,
)
from shoal.gateway.doors import Gap, Told

SLOW = "slow-consumer"

Open = Callable[[], AbstractAsyncContextManager[AsyncIterator[Told]]]


class TooManySubscribers(ShoalError):
    """The gateway has as many as it takes."""


class Queue:
    """What waits for one subscriber. Iterates; a wait that is given up loses nothing."""

    __slots__ = ("_ended", "_error", "_gap", "_missed", "_partition", "_waiting", "_wake")

    def __init__(self, partition: int | None) -> None:
        self._partition = partition
        self._waiting: BoundedQueue[Told] = BoundedQueue(
            SUBSCRIBER_QUEUE_MAX, SUBSCRIBER_QUEUE_BYTES_MAX
        )
        self._missed = 0
        self._gap: Gap | None = None  # one that was before a message that went
        self._ended = False
        self._error: ShoalError | None = None
        self._wake: asyncio.Future[None] | None = None

    def push(self, told: Told) -> int:
        """A message; never waits. How many went for it."""
        if self._partition is not None and told.partition != self._partition:
            return 0
        gone = self._waiting.put(told, len(told.line))
        for missed in gone:
            self._gap = missed.gap_before or self._gap
        self._missed += len(gone)
        self._wake_up()
        return len(gone)

    def end(self, error: ShoalError | None) -> None:
        """Nothing more will come."""
        self._ended, self._error = True, error
        self._wake_up()

    def __aiter__(self) -> AsyncIterator[Told]:
        return self

    async def __anext__(self) -> Told:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        told = self._waiting.take()
        if self._missed:
            count = None if self._gap or told.gap_before else self._missed
            told = replace(told, gap_before=Gap(count, SLOW))
            self._missed, self._gap = 0, None
        return told

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class _Feed:
    """One stream or topic, and who listens."""

    def __init__(self, open: Open, on_gone: Callable[[int], None]) -> None:
        self.queues: dict[Queue, None] = {}
        self.over = False
        self.failed: ShoalError | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(open, on_gone))

    async def _run(self, open: Open, on_gone: Callable[[int], None]) -> None:
        try:
            async with open() as messages:
                self.ready.set_result(None)
                async for told in messages:
                    gone = sum([queue.push(told) for queue in self.queues])
                    if gone:
                        on_gone(gone)
        except ShoalError as error:
            self.failed = error
        finally:
            self.over = True
            if not self.ready.done():
                self.ready.set_result(None)
            for queue in self.queues:
                queue.end(self.failed)


class Feeds:
    """All that is listened to through a gateway."""

    def __init__(self) -> None:
        self.subscribers = 0
        self.gone = 0
        """Messages that subscribers were too slow for."""
        self._feeds: dict[Hashable, _Feed] = {}

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """Be one of the subscribers, if there is room."""
        if self.subscribers >= SUBSCRIBERS_MAX:
            raise TooManySubscribers(
                f"{SUBSCRIBERS_MAX} subscribers are here already: ask another node's gateway"
            )
        self.subscribers += 1
        try:
            yield
        finally:
            self.subscribers -= 1

    @asynccontextmanager
    async def join(
        self, subject: Hashable, open: Open, partition: int | None = None
    ) -> AsyncIterator[Queue]:
        """Messages from now on; raises what the node does if it cannot listen."""
        feed = self._feeds.get(subject)
        if feed is None or feed.over:
            feed = self._feeds[subject] = _Feed(open, self._count_gone)
        queue = Queue(partition)
        feed.queues[queue] = None
        try:
            await asyncio.shield(feed.ready)
            if feed.failed is not None:
                raise feed.failed
            yield queue
        finally:
            del feed.queues[queue]
            if not feed.queues:
                if self._feeds.get(subject) is feed:
                    del self._feeds[subject]
                feed.task.cancel()
                await asyncio.wait([feed.task])

    async def close(self) -> None:
        """End them all; who listens hears it."""
        tasks = [feed.task for feed in self._feeds.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _count_gone(self, count: int) -> None:
        self.gone += count
