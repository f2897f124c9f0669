"""A local consumer of a stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from shoal.base.errors import ShoalError, UsageError
from shoal.node.messages import LOST, SLOW, Gap, Message, message_of
from shoal.protocols.streams.commands import MessageArrived

if TYPE_CHECKING:
    from shoal.node.splice import Splice

QUEUE_MESSAGES_MAX = 10_000  # 15 seconds of the busiest stream that we know
AHEAD_MAX = 256  # messages of history that wait for their reader: the next page comes meanwhile


class Subscription:
    """Iterates over messages. A consumer that falls behind loses the oldest, and is told so:
    the next message has `gap_before`. So has the one after messages that could not be had."""

    def __init__(
        self, queue_max: int = QUEUE_MESSAGES_MAX, partitions: frozenset[int] | None = None
    ) -> None:
        if queue_max < 1:
            raise UsageError(f"a queue of {queue_max} messages: give 1 or more")
        self.queue_max = queue_max
        self._queue: deque[MessageArrived | ShoalError] = deque()
        self._splice: Splice | None = None  # while history and live are being put together
        self._partitions = partitions  # None: all of them
        self._missed = 0
        self._missed_gap = False  # one of them had a gap before it
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        self._closed = False

    def push(self, arrived: MessageArrived) -> None:
        """A message came; never waits."""
        # A gap before a message is one of its chain, and so of its partition: it goes along.
        if self._partitions is not None and arrived.message.id.partition not in self._partitions:
            return
        if self._splice is not None:
            self._splice.live(arrived)
        else:
            self.take(arrived)

    def take(self, arrived: MessageArrived) -> None:
        """It is this message's turn."""
        if len(self._queue) >= self.queue_max:
            dropped = self._queue.popleft()
            self._missed_gap |= isinstance(dropped, ShoalError) or dropped.gap_before
            self._missed += 1
        self._queue.append(arrived)
        self._wake.set()

    # History

    def follow(self, splice: Splice) -> None:
        """History comes first, through this one."""
        self._splice = splice

    def spliced(self) -> None:
        """From now on all that comes is live."""
        self._splice = None

    def skip(self) -> None:
        """Something is missing here, nobody knows how much: the next message has a gap before."""
        self._missed_gap = True

    def fail(self, error: ShoalError) -> None:
        """History could not be read to its end: said in its place."""
        self._queue.append(error)
        self._wake.set()

    async def room(self) -> None:
        """Wait until the reader has taken most of what is there."""
        while len(self._queue) >= min(self.queue_max, AHEAD_MAX):
            self._taken.clear()
            await self._taken.wait()

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
        self._taken.set()
        if isinstance(arrived, ShoalError):
            raise arrived
        return message_of(arrived, self._gap_before(arrived))

    def _gap_before(self, arrived: MessageArrived) -> Gap | None:
        missed, self._missed = self._missed, 0
        lost, self._missed_gap = self._missed_gap or arrived.gap_before, False
        if not missed:
            return Gap(None, LOST) if lost else None
        return Gap(None if lost else missed, SLOW)
