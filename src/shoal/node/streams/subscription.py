"""A local consumer of a stream."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

import msgspec

from shoal.base.containers import BoundedQueue
from shoal.base.errors import InvariantViolated, ShoalError, UsageError
from shoal.base.ids import INT63_MAX, KEYS_PARTITION, MessageId
from shoal.base.units import KIB, MIB, MS_NS, S_NS
from shoal.identity.message_body import Position
from shoal.node.streams.history import (
    NodeHistory,
    PartitionRead,
    arrived_of,
    chains_of,
    merged,
    until_begun,
)
from shoal.node.streams.message import LOST, SLOW, Gap, Message, Unreadable, message_of
from shoal.node.streams.reader_offsets import Number, Progress, Standing
from shoal.protocols.streams.commands import (
    HistoryRow,
    LastMessages,
    LogRange,
    MessageArrived,
    MessageRange,
    ReadHistory,
    Unheard,
)
from shoal.protocols.streams.history.catch_up import following
from shoal.protocols.streams.keys.sealed_queue import Waiting
from shoal.protocols.streams.signed_message import BEGINNING, VerifiedMessage

if TYPE_CHECKING:
    from shoal.node.keys.group_keys import NodeKeys
    from shoal.node.streams.history import Completeness, Missing

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


# History first, then live: nothing twice, nothing missing in between, each chain in order.
#
#     HISTORY --read to its end--> DRAINING --nothing waits--> DIRECT --a gap--> DRAINING
#     live waits                   what waited is told         live goes through
#
# The node joins the overlay before history is read, so a message is in storage, or comes live, or
# both. What came live waits meanwhile, bounded: if too much of it waits, the oldest is let go, for
# history will come to it. Then what waits is put behind history: what was seen is dropped; where a
# message before it is missing, one that was still on its way to storage when history was read, that
# chain is read again. The last messages of a chain that has gone quiet show no gap: so the newest
# part of history is read once more a little later, and so is what was let go since. While storage
# does not answer, live messages do not wait for it: what is missing before them is a gap. A
# partition that was not asked for is new, and should be whole from when we came.
#
# A log is in the order of arrival, so a late message is one that was not told, whatever was told of
# its chain. What was published before we came, and is live all the same, may lie before the offset:
# it comes by the log, or not at all.


UNDER_WAY_MS = 10_000  # a message older than this is in storage by now, or will never be
PAUSES_S = (0.0, 0.25, 0.5, 1.0)  # between looks for one that is under way
SETTLE_S = 2.0  # then the newest part of history is read once more
FILL_S = 4.0  # for what lies before live messages: a silent storage node has 3, then the next one
AWAY_S = 10.0  # storage that gave no answer is not asked again before
OVER_S = 300.0  # copies older than the freshness window of live messages do not come any more


log = logging.getLogger("shoal.node")


class Splice:
    """Feeds one subscription, until history and live have become one."""

    def __init__(
        self, subscription: Subscription, history: NodeHistory, commands: Sequence[ReadHistory]
    ) -> None:
        self._subscription = subscription
        self._history = history
        self._commands = {command.partition: command for command in commands}
        self._chains = chains_of(subscription.progress)
        self._waiting: BoundedQueue[MessageArrived] = BoundedQueue(
            subscription.queue_max, subscription.queue_bytes_max
        )
        self._direct = False
        self._wake = asyncio.Event()
        self._joined_ms = time_ns() // MS_NS
        self._seqs = {c.partition: c.what.after_seq for c in commands if type(c.what) is LogRange}
        self._chains.logged = frozenset(self._seqs)
        self._let_go: dict[int, Number] = {}  # of each partition, the first of what did not fit
        self._task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] = asyncio.Future()
        self._settled_s = math.inf  # by then nothing is on its way to storage any more
        self._tail_s = math.inf  # when the newest part of history is read again
        self._tail_read = False
        self._away_s = -math.inf  # until then storage is not asked
        self._over_s = math.inf

    # What the subscription tells

    def live(self, arrived: MessageArrived) -> None:
        """A message came over the overlay; never waits."""
        if arrived.message.id.partition not in self._commands:
            self._add(arrived.message.id)
        if self._direct and self._comes_by_log(arrived):
            self._look_again(arrived)
            return
        if self._direct:
            standing = self._chains.standing(arrived.message)
            if standing is Standing.SEEN:
                self._seen(arrived)
                return
            if standing is Standing.NEXT:
                self._take(arrived, gap=self._gap_of_next(arrived))
                return
            self._direct = False
        for gone in self._waiting.put(arrived, bytes_of(arrived)):
            self._look_again(gone)
        self._wake.set()

    async def begin(self) -> None:
        """Start; returns when history has begun to come, raises if it cannot be had."""
        task = self._task = asyncio.create_task(self._run())
        try:
            await asyncio.wait((task, self._begun), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop; no task is left."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _add(self, id: MessageId) -> None:
        """A partition that the stream had not when we came."""
        came = Position(self._joined_ms, 0)
        self._commands[id.partition] = ReadHistory(id.stream, id.partition, MessageRange(came))
        self._chains.begin[id.partition] = (came.timestamp_ms, came.sequence)

    # The task

    async def _run(self) -> None:
        try:
            await self._put_together()
        except Exception as error:
            if not self._begun.done():
                raise
            log.exception("history and live could not be put together")
            self._subscription.fail(_broken(error))
            self._let_through()

    def _let_through(self) -> None:
        """From here on all is live, whatever is missing."""
        self._subscription.spliced()
        while self._waiting:
            arrived = self._waiting.take()
            standing = self._chains.standing(arrived.message)
            if standing is not Standing.SEEN:
                self._take(arrived, gap=standing is Standing.GAP)

    async def _put_together(self) -> None:
        try:
            await self._read_history()
        except ShoalError as error:
            if not self._begun.done():
                raise
            self._subscription.fail(error)  # in its place; what is live goes on after it
            self._away_s = _now_s() + AWAY_S
        self._lacks([])
        self._tail_s = self._settled_s = _now_s() + SETTLE_S
        self._over_s = _now_s() + OVER_S
        while _now_s() < self._over_s or self._tail_s < math.inf:  # what was let go is owed
            await self._drain()
            self._wake.clear()
            self._direct = True
            until_s = self._tail_s if self._tail_s < math.inf else self._over_s
            with suppress(TimeoutError):
                async with asyncio.timeout(until_s - _now_s()):
                    await self._wake.wait()
            if _now_s() >= self._tail_s:
                await self._read_tail()
        await self._drain()
        self._subscription.spliced()

    async def _read_history(self) -> None:
        first: dict[int, Position] = {}
        asked = list(self._commands.values())
        counts = {command.partition: 0 for command in asked}
        async with self._history.open(asked) as reads:
            await until_begun(reads, self._subscription.progress)
            self._begun.set_result(None)
            async for read, row in merged(reads):
                id = row.message.id
                counts[id.partition] += 1
                first.setdefault(id.partition, Position(id.timestamp_ms, id.sequence))
                if row.seq is None:
                    await self._tell(read, row)
                else:
                    await self._tell_logged(read, row, row.seq)
            for read in reads:
                self._lacks(read.unheard)
        for command in asked:
            begin = _whole_from(command, counts[command.partition], first.get(command.partition))
            if type(command.what) is LogRange:
                begin = (self._joined_ms - UNDER_WAY_MS, 0)  # older ones are before the offset
            self._chains.begin[command.partition] = begin

    def _lacks(self, unheard: Sequence[Unheard]) -> None:
        """History was read, and these may have more of it."""
        history = self._subscription.history
        if history is not None:
            history.lacks(unheard)
            history.over = True

    async def _tell(self, read: PartitionRead, row: HistoryRow, *, again: bool = False) -> None:
        """Give a row of history to the subscription, when there is room."""
        await self._subscription.key_of(row.message)
        await self._subscription.room()
        arrived = arrived_of(read.command, row)
        if not again and self._chains.standing(row.message) is Standing.GAP:
            await self._fill(arrived, live=False)  # it may have come to storage before its time
            await self._subscription.room()
        standing = self._chains.standing(row.message)
        if standing is not Standing.SEEN:
            self._take(arrived, gap=standing is Standing.GAP)

    async def _tell_logged(
        self, read: PartitionRead, row: HistoryRow, seq: int, *, again: bool = False
    ) -> None:
        """A log has each message once, and late ones where they came."""
        await self._subscription.key_of(row.message)
        await self._subscription.room()
        self._seqs[read.command.partition] = seq
        if not self._chains.told(row.message):  # it may have come live
            known = again and self._chains.last(row.message.id) is not None
            gap = known and self._chains.standing(row.message) is Standing.GAP
            self._take(arrived_of(read.command, row), gap=gap)

    async def _drain(self) -> None:
        """Put what waits behind what was told."""
        while self._waiting:
            await self._subscription.room()
            arrived = self._waiting.take()
            if self._comes_by_log(arrived):
                self._look_again(arrived)
                continue
            standing = self._chains.standing(arrived.message)
            gap = self._gap_of_next(arrived)
            if standing is Standing.GAP:
                await self._fill_before(arrived)
                standing = self._chains.standing(arrived.message)
                gap = standing is Standing.GAP and self._is_told(arrived)
            if standing is not Standing.SEEN:
                self._take(arrived, gap=gap)
            else:
                self._seen(arrived)

    def _take(self, arrived: MessageArrived, *, gap: bool) -> None:
        self._chains.took(arrived.message)
        if gap is not arrived.gap_before:
            arrived = msgspec.structs.replace(arrived, gap_before=gap)
        self._subscription.take(arrived)

    def _gap_of_next(self, arrived: MessageArrived) -> bool:
        """Whether the overlay missed something before a message that storage did not have."""
        return arrived.gap_before and self._chains.last(arrived.message.id) is None

    def _seen(self, arrived: MessageArrived) -> None:
        """What is not told counts as seen if it is late: then it comes by the log, if at all."""
        if arrived.message.id.partition in self._seqs and not self._chains.told(arrived.message):
            self._look_again(arrived)

    # Storage once more

    def _comes_by_log(self, arrived: MessageArrived) -> bool:
        """Whether a live message may lie before the offset."""
        id = arrived.message.id
        early = id.partition in self._seqs and id.timestamp_ms < self._joined_ms
        return early and not self._tail_read and self._chains.last(id) is None

    def _look_again(self, arrived: MessageArrived) -> None:
        """A message is not told now: storage will have it a little later."""
        id = arrived.message.id
        number = (id.timestamp_ms, id.sequence)
        self._let_go[id.partition] = min(number, self._let_go.get(id.partition, number))
        if self._tail_read:
            self._tail_s = min(self._tail_s, _now_s() + SETTLE_S)
            self._wake.set()

    def _is_told(self, arrived: MessageArrived) -> bool:
        """Whether a gap is one for this reader: what lies before an offset it has had."""
        id = arrived.message.id
        return id.partition not in self._seqs or self._chains.last(id) is not None

    async def _fill_before(self, arrived: MessageArrived) -> None:
        """What is missing before a live message, which waits meanwhile."""
        try:
            await self._fill(arrived, live=True)
            await self._subscription.room()
        except Exception:
            self._waiting.put_back(arrived, bytes_of(arrived))
            raise

    async def _fill(self, arrived: MessageArrived, *, live: bool) -> None:
        """Get what is missing before a message, if it is to be had; before a live one also if it
        is old, but within a time."""
        previous = arrived.message.previous
        assert previous is not None  # or nothing would be missing
        under_way = time_ns() // MS_NS - previous.timestamp_ms < UNDER_WAY_MS
        if not (under_way or live):
            return
        patience_s = FILL_S if live else None
        for pause_s in PAUSES_S if under_way else PAUSES_S[:1]:
            if pause_s and _now_s() > self._settled_s:
                return
            await asyncio.sleep(pause_s)
            moved = True
            while moved:  # one storage node may have what the one before it lacks
                last = self._chains.last(arrived.message.id)
                gap = self._gap_before(arrived, previous)
                if await self._read_again(gap, patience_s) is None:
                    return
                if self._chains.standing(arrived.message) is not Standing.GAP:
                    return
                moved = self._chains.last(arrived.message.id) != last

    def _gap_before(self, arrived: MessageArrived, previous: Position) -> ReadHistory:
        id = arrived.message.id
        command = self._commands[id.partition]
        if type(command.what) is LogRange:
            return self._rest_of_log(command, command.what)
        begin = Position(*max((0, 0), self._chains.whole_to(id)))
        if self._chains.last(id) is not None:
            begin = following(begin)  # a storage node that has that one and no more has nothing
        what = MessageRange(begin, previous)
        return ReadHistory(command.stream, id.partition, what, id.publisher, id.chain, insist=True)

    def _rest_of_log(self, command: ReadHistory, what: LogRange) -> ReadHistory:
        rest = LogRange(what.log, self._seqs[command.partition])
        return ReadHistory(command.stream, command.partition, rest)

    async def _read_tail(self) -> None:
        """What reached storage while history was read, of chains that have gone quiet since; later
        what did not fit meanwhile."""
        let_go, self._let_go, self._tail_s = self._let_go, {}, math.inf
        first, self._tail_read = not self._tail_read, True
        for partition, command in list(self._commands.items()):
            if not first and partition not in let_go:
                continue
            begin = (self._joined_ms - UNDER_WAY_MS, 0) if first else let_go[partition]
            unheard = await self._read_again(self._newest(command, begin))
            self._lacks(unheard or ())
            if (unheard is None or unheard) and partition in let_go:
                self._subscription.skip()  # and nothing that comes shows it
            if type(command.what) is LogRange:
                self._chains.begin.pop(partition, None)  # all that was on its way is there

    def _newest(self, command: ReadHistory, begin: Number) -> ReadHistory:
        if type(command.what) is LogRange:
            return self._rest_of_log(command, command.what)
        begin = max(begin, self._chains.begin.get(command.partition, BEGINNING))
        return ReadHistory(command.stream, command.partition, MessageRange(Position(*begin)))

    async def _read_again(
        self, command: ReadHistory, patience_s: float | None = None
    ) -> tuple[Unheard, ...] | None:
        """Those who may have more; None if it fails, or takes too long: then what is missing is
        told as a gap, and live goes on."""
        if _now_s() < self._away_s:
            return None
        try:
            async with self._history.open([command]) as (read,):
                while (row := await _within(patience_s, read)) is not None:
                    await read.advance()
                    if row.seq is not None:
                        await self._tell_logged(read, row, row.seq, again=True)
                    elif self._chains.standing(row.message) is not Standing.SEEN:
                        await self._tell(read, row, again=True)
                return read.unheard
        except (ShoalError, TimeoutError):
            self._away_s = _now_s() + AWAY_S
            return None
        finally:
            self._over_s = _now_s() + OVER_S  # copies of what was told may come live


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _within(patience_s: float | None, read: PartitionRead) -> HistoryRow | None:
    """The next row; the time that the reader takes for it does not count."""
    async with asyncio.timeout(patience_s):
        return await read.peek()


def _broken(error: Exception) -> InvariantViolated:
    """What a subscriber is told of a fault of ours."""
    broken = InvariantViolated(
        f"history and live could not be put together ({error!r}): what follows is live,"
        " and what is missing before it comes with a new subscription"
    )
    broken.__cause__ = error
    return broken


def _whole_from(command: ReadHistory, count: int, first: Position | None) -> Number:
    """From where on history was asked for."""
    match command.what:
        case MessageRange(Position(timestamp_ms, sequence)):
            return (timestamp_ms, sequence)
        case LastMessages(wanted) if first is not None and count >= wanted:
            return (first.timestamp_ms, first.sequence)
    return BEGINNING
