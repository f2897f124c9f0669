"""History first, then live: nothing twice, nothing missing in between, each chain in order.

    HISTORY --read to its end--> DRAINING --nothing waits--> DIRECT --a gap--> DRAINING
    live waits                   what waited is told         live goes through

The node joins the overlay before history is read, so a message is in storage, or comes live, or
both. What came live waits meanwhile, bounded: if too much of it waits, the oldest is let go, for
history will come to it. Then what waits is put behind history: what was seen is dropped; where a
message before it is missing, one that was still on its way to storage when history was read, that
chain is read again. The last messages of a chain that has gone quiet show no gap: so the newest
part of history is read once more a little later.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import time_ns
from typing import TYPE_CHECKING

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.units import MS_NS
from shoal.node.history import NodeHistory, PartitionRead, arrived_of, merged
from shoal.node.positions import Chains, Number, Standing
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.duplicates import BEGINNING
from shoal.protocols.streams.history.commands import (
    HistoryRow,
    LastMessages,
    LogRange,
    MessageRange,
    ReadHistory,
)
from shoal.protocols.streams.messages import Position

if TYPE_CHECKING:
    from shoal.node.subscription import Subscription

UNDER_WAY_MS = 10_000  # a message older than this is in storage by now, or will never be
PAUSES_S = (0.0, 0.25, 0.5, 1.0)  # between looks for one that is under way
SETTLE_S = 2.0  # then the newest part of history is read once more
OVER_S = 300.0  # copies older than the freshness window of live messages do not come any more


class Splice:
    """Feeds one subscription, until history and live have become one."""

    def __init__(
        self, subscription: Subscription, history: NodeHistory, commands: Sequence[ReadHistory]
    ) -> None:
        self._subscription = subscription
        self._history = history
        self._commands = commands
        self._chains = Chains()
        self._waiting: deque[MessageArrived] = deque()
        self._direct = False
        self._wake = asyncio.Event()
        self._joined_ms = time_ns() // MS_NS
        self._seqs = {c.partition: c.what.after_seq for c in commands if type(c.what) is LogRange}
        self._task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] = asyncio.Future()
        self._settled_s = math.inf  # by then nothing is on its way to storage any more

    # What the subscription tells

    def live(self, arrived: MessageArrived) -> None:
        """A message came over the overlay; never waits."""
        if self._direct:
            standing = self._chains.standing(arrived.message)
            if standing is Standing.SEEN:
                return
            if standing is Standing.NEXT:
                self._chains.took(arrived.message)
                self._subscription.take(arrived)
                return
            self._direct = False
        if len(self._waiting) >= self._subscription.queue_max:
            self._waiting.popleft()
        self._waiting.append(arrived)
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
            with suppress(asyncio.CancelledError):
                await task

    # The task

    async def _run(self) -> None:
        try:
            await self._read_history()
        except ShoalError as error:
            if not self._begun.done():
                raise
            self._subscription.fail(error)  # in its place; what is live goes on after it
        loop = asyncio.get_running_loop()
        self._settled_s, over_s = loop.time() + SETTLE_S, loop.time() + OVER_S
        tail_read = False
        while loop.time() < over_s:
            await self._drain()
            self._wake.clear()
            self._direct = True
            until_s = over_s if tail_read else self._settled_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, until_s - loop.time()))
            if not tail_read and loop.time() >= self._settled_s:
                tail_read = True
                await self._read_tail()
        await self._drain()
        self._subscription.spliced()

    async def _read_history(self) -> None:
        first: dict[int, Position] = {}
        counts = dict.fromkeys([command.partition for command in self._commands], 0)
        async with self._history.open(self._commands) as reads:
            for read in reads:
                await read.peek()
            self._begun.set_result(None)
            async for read, row in merged(reads):
                id = row.message.id
                counts[id.partition] += 1
                first.setdefault(id.partition, Position(id.timestamp_ms, id.sequence))
                if row.seq is None:
                    await self._tell(read, row)
                else:
                    await self._tell_logged(read, row)
        for command in self._commands:
            begin = _whole_from(command, counts[command.partition], first.get(command.partition))
            if type(command.what) is LogRange:
                begin = (self._joined_ms - UNDER_WAY_MS, 0)  # older ones are before the offset
            self._chains.begin[command.partition] = begin

    async def _tell(self, read: PartitionRead, row: HistoryRow, *, again: bool = False) -> None:
        """Give a row of history to the subscription, when there is room."""
        await self._subscription.room()
        arrived = arrived_of(read.command, row)
        if not again and self._chains.standing(row.message) is Standing.GAP:
            await self._fill(arrived, old=False)  # it may have come to storage before its time
            await self._subscription.room()
        standing = self._chains.standing(row.message)
        if standing is not Standing.SEEN:
            self._chains.took(row.message)
            gap = standing is Standing.GAP
            self._subscription.take(msgspec.structs.replace(arrived, gap_before=gap))

    async def _tell_logged(self, read: PartitionRead, row: HistoryRow) -> None:
        """A log has each message once, and late ones where they came."""
        await self._subscription.room()
        assert row.seq is not None  # a row of a log has one
        self._seqs[row.message.id.partition] = row.seq
        self._chains.took(row.message)
        self._subscription.take(arrived_of(read.command, row))

    async def _drain(self) -> None:
        """Put what waits behind what was told."""
        while self._waiting:
            await self._subscription.room()
            arrived = self._waiting.popleft()
            standing = self._chains.standing(arrived.message)
            gap = arrived.gap_before
            if standing is Standing.GAP:
                await self._fill(arrived)
                await self._subscription.room()
                standing = self._chains.standing(arrived.message)
                gap = standing is Standing.GAP and self._is_told(arrived)
            if standing is not Standing.SEEN:
                self._chains.took(arrived.message)
                self._subscription.take(msgspec.structs.replace(arrived, gap_before=gap))

    # Storage once more

    def _is_told(self, arrived: MessageArrived) -> bool:
        """Whether a gap is one for this reader: what lies before an offset it has had."""
        id = arrived.message.id
        return id.partition not in self._seqs or self._chains.last(id) is not None

    async def _fill(self, arrived: MessageArrived, *, old: bool = True) -> None:
        """Get what is missing before a message, if it is to be had; also if it is old."""
        previous = arrived.message.previous
        assert previous is not None  # or nothing would be missing
        loop = asyncio.get_running_loop()
        under_way = time_ns() // MS_NS - previous.timestamp_ms < UNDER_WAY_MS
        if not (under_way or old):
            return
        for pause_s in PAUSES_S if under_way else PAUSES_S[:1]:
            if pause_s and loop.time() > self._settled_s:
                return
            await asyncio.sleep(pause_s)
            await self._read_again(self._gap_before(arrived, previous))
            if self._chains.standing(arrived.message) is not Standing.GAP:
                return

    def _gap_before(self, arrived: MessageArrived, previous: Position) -> ReadHistory:
        id = arrived.message.id
        command = next(c for c in self._commands if c.partition == id.partition)
        if type(command.what) is LogRange:
            return self._rest_of_log(command, command.what)
        last = self._chains.last(id) or self._chains.begin.get(id.partition, BEGINNING)
        begin = Position(max(0, last[0]), max(0, last[1]))
        what = MessageRange(begin, previous)
        return ReadHistory(command.stream, id.partition, what, id.publisher, id.chain)

    def _rest_of_log(self, command: ReadHistory, what: LogRange) -> ReadHistory:
        rest = LogRange(what.log, self._seqs[command.partition])
        return ReadHistory(command.stream, command.partition, rest)

    async def _read_tail(self) -> None:
        """What reached storage while history was read, of chains that have gone quiet since."""
        for command in self._commands:
            if type(command.what) is LogRange:
                await self._read_again(self._rest_of_log(command, command.what))
                del self._chains.begin[command.partition]  # all that was on its way is there
            else:
                whole_from = self._chains.begin.get(command.partition, BEGINNING)
                begin = max((self._joined_ms - UNDER_WAY_MS, 0), whole_from)
                what = MessageRange(Position(*begin))
                await self._read_again(ReadHistory(command.stream, command.partition, what))

    async def _read_again(self, command: ReadHistory) -> None:
        # If it fails, what is missing is told as a gap: live goes on.
        with suppress(ShoalError):
            async with self._history.open([command]) as reads:
                async for read, row in merged(reads):
                    if row.seq is not None:
                        self._seqs[command.partition] = row.seq
                    if self._chains.standing(row.message) is not Standing.SEEN:
                        await self._tell(read, row, again=True)


def _whole_from(command: ReadHistory, count: int, first: Position | None) -> Number:
    """From where on history was asked for."""
    match command.what:
        case MessageRange(Position(timestamp_ms, sequence)):
            return (timestamp_ms, sequence)
        case LastMessages(wanted) if first is not None and count >= wanted:
            return (first.timestamp_ms, first.sequence)
    return BEGINNING
