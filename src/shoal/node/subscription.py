"""A local consumer of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic_ns
from typing import TYPE_CHECKING

from shoal.base.bounded_queue import BoundedQueue
from shoal.base.errors import ShoalError, UsageError
from shoal.base.ids import INT63_MAX, KEYS_PARTITION
from shoal.base.units import KIB, MIB, S_NS
from shoal.node.messages import LOST, SLOW, Gap, Message, Unreadable, message_of
from shoal.node.progress import Progress
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.keys.waiting import Waiting
from shoal.protocols.streams.messages import VerifiedMessage

if TYPE_CHECKING:
    from shoal.node.history import Completeness, Missing
    from shoal.node.keys import NodeKeys
    from shoal.node.splice import Splice

QUEUE_MESSAGES_MAX = 10_000  # 15 seconds of the busiest stream that we know
QUEUE_BYTES_MIN = 64 * MIB  # of them: a burst of the largest, and what a machine can spare
QUEUE_BYTES_EACH = 4 * KIB  # whoever wants a longer queue gets so much for each of its messages
AHEAD_MAX = 256  # messages of history that wait for their reader: the next page comes meanwhile


class Subscription:
    """Iterates over messages. A consumer that falls behind loses the oldest, and is told so:
    the next message has `gap_before`. So has the one after messages that could not be had. A live
    message whose key is not here waits for it a while, and no other chain waits with it."""

    def __init__(
        self,
        queue_max: int = QUEUE_MESSAGES_MAX,
        partitions: frozenset[int] | None = None,
        keys: NodeKeys | None = None,
        progress: Progress | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        if queue_max < 1:
            raise UsageError(f"a queue of {queue_max} messages: give 1 or more")
        self.queue_max = queue_max
        self.ordered = ordered
        """Each chain in order; else as messages come, without offsets: there is no place up to
        which all of them were given."""
        self.progress = progress or Progress()
        """How far the application has come."""
        self.queue_bytes_max = max(QUEUE_BYTES_MIN, queue_max * QUEUE_BYTES_EACH)
        self._queue: BoundedQueue[MessageArrived | Unreadable | ShoalError] = BoundedQueue(
            queue_max, self.queue_bytes_max
        )
        self.history: Completeness | None = None
        """Whether all of the history before what is live was had."""
        self._splice: Splice | None = None  # while history and live are being put together
        self._partitions = partitions  # None: all of them
        self._missed = 0
        self._missed_gap = False  # one of them had a gap before it
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        self._closed = False
        self._keys = keys
        self._waiting: Waiting | None = None  # for keys
        self._timer: asyncio.TimerHandle | None = None
        if keys is not None:
            self._waiting = Waiting(keys.awaits, self._readable)

    def push(self, arrived: MessageArrived) -> None:
        """A message came; never waits."""
        # A gap before a message is one of its chain, and so of its partition: it goes along.
        partition = arrived.message.id.partition
        if partition == KEYS_PARTITION:
            return  # no content
        if self._partitions is not None and partition not in self._partitions:
            return
        if self._splice is not None:
            self._splice.live(arrived)
        else:
            self.take(arrived)

    def take(self, arrived: MessageArrived) -> None:
        """It is this message's turn."""
        if self._waiting is None or self._keys is None:
            self._put(arrived)
        elif self._waiting.take(arrived.message, arrived, monotonic_ns()):
            self._keys.want(arrived.message)
            self._wait_on()

    def _put(self, found: MessageArrived | Unreadable | ShoalError) -> None:
        for dropped in self._queue.put(found, bytes_of(found)):
            if isinstance(dropped, Unreadable):
                dropped = dropped.arrived
            self._missed_gap |= isinstance(dropped, ShoalError) or dropped.gap_before
            self._missed += 1
        self._wake.set()

    # Keys

    async def key_of(self, message: VerifiedMessage) -> None:
        """Return when the key of a message of history is here, or is not to be had."""
        if self._keys is not None:
            await self._keys.obtain(message)

    def _readable(self, arrived: MessageArrived) -> None:
        assert self._keys is not None  # or nothing would wait for a key
        self._put(self._keys.opened(arrived))

    def _look(self) -> None:
        """Keys have come, or time has passed."""
        if self._waiting is not None:
            self._waiting.look(monotonic_ns())
            self._wait_on()

    def _wait_on(self) -> None:
        """Hear of keys and of time as long as something waits."""
        assert self._keys is not None
        next_ns = None if self._waiting is None else self._waiting.next_ns()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._keys.listeners.pop(self._look, None)
        if next_ns is not None and not self._closed:
            self._keys.listeners[self._look] = None
            delay_s = max(0.0, (next_ns - monotonic_ns()) / S_NS)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    # History

    def follow(self, splice: Splice, history: Completeness | None = None) -> None:
        """History comes first, through this one."""
        self._splice = splice
        self.history = history

    @property
    def complete(self) -> bool:
        """Whether all of the history was read that comes before what is live, as far as that was
        wanted: True without a start in the past, False while it is being read, and if a storage
        node that was not heard may have more of it."""
        return self.history is None or self.history.complete

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The storage nodes that may have more of that history."""
        return () if self.history is None else self.history.missing

    @property
    def problem(self) -> str | None:
        """For people: why the history is not complete; None if it is, or is still being read."""
        return None if self.history is None else self.history.problem

    def spliced(self) -> None:
        """From now on all that comes is live."""
        self._splice = None

    def skip(self) -> None:
        """Something is missing here, nobody knows how much: the next message has a gap before."""
        self._missed_gap = True

    def fail(self, error: ShoalError) -> None:
        """History could not be read to its end: said in its place."""
        if self.history is not None:
            self.history.failed()
        self._put(error)

    async def room(self) -> None:
        """Wait until the reader has taken most of what is there."""
        queue = self._queue
        while (
            len(queue) >= min(self.queue_max, AHEAD_MAX) or queue.size_bytes >= queue.bytes_max // 2
        ):
            self._taken.clear()
            await self._taken.wait()

    def close(self) -> None:
        """End the iteration, after what is queued; what waits for its key is shown without."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.look(INT63_MAX)
            self._wait_on()
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        arrived = self._queue.take()
        self._taken.set()
        if isinstance(arrived, ShoalError):
            raise arrived
        of = arrived.arrived if isinstance(arrived, Unreadable) else arrived
        progress = self.progress if self.ordered else None
        return message_of(arrived, self._gap_before(of), progress)

    def _gap_before(self, arrived: MessageArrived) -> Gap | None:
        missed, self._missed = self._missed, 0
        lost, self._missed_gap = self._missed_gap or arrived.gap_before, False
        if not missed:
            return Gap(None, LOST) if lost else None
        return Gap(None if lost else missed, SLOW)


def bytes_of(found: MessageArrived | Unreadable | ShoalError) -> int:
    """What it takes in memory, all but: the content is there twice, as it was signed, too."""
    if isinstance(found, ShoalError):
        return 0
    message = (found.arrived if isinstance(found, Unreadable) else found).message
    return len(message.content) + len(message.signed)
