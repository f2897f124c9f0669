"""A local consumer of a stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from shoal.base.errors import UsageError
from shoal.node.messages import Gap, Message, message_of
from shoal.protocols.streams.commands import MessageArrived

QUEUE_MESSAGES_MAX = 10_000  # 15 seconds of the busiest stream that we know


SLOW = "slow-consumer"  # this application did not keep up
LOST = "lost"  # nobody could give us what is missing


class Subscription:
    """Iterates over messages. A consumer that falls behind loses the oldest, and is told so:
    the next message has `gap_before`. So has the one after messages that could not be had."""

    def __init__(self, queue_max: int = QUEUE_MESSAGES_MAX) -> None:
        if queue_max < 1:
            raise UsageError(f"a queue of {queue_max} messages: give 1 or more")
        self._queue: deque[MessageArrived] = deque()
        self._queue_max = queue_max
        self._missed = 0
        self._missed_gap = False  # one of them had a gap before it
        self._wake = asyncio.Event()
        self._closed = False

    def push(self, arrived: MessageArrived) -> None:
        """A message came; never waits."""
        if len(self._queue) >= self._queue_max:
            self._missed_gap |= self._queue.popleft().gap_before
            self._missed += 1
        self._queue.append(arrived)
        self._wake.set()

    def close(self) -> None:
        """End the iteration, after what is queued."""
        self._closed = True
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        arrived = self._queue.popleft()
        return message_of(arrived, self._gap_before(arrived))

    def _gap_before(self, arrived: MessageArrived) -> Gap | None:
        missed, self._missed = self._missed, 0
        lost, self._missed_gap = self._missed_gap or arrived.gap_before, False
        if not missed:
            return Gap(None, LOST) if lost else None
        return Gap(None if lost else missed, SLOW)
