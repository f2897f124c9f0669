"""History, as an application reads it.

The history machine gives a page when there is room for one. Here a page becomes rows, partitions
are merged by time, and what went wrong becomes an error with a remedy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from heapq import heapify, heapreplace
from time import time_ns
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import msgspec

from shoal.base.errors import (
    HistoryIncomplete,
    HistoryUnavailable,
    NotFound,
    OffsetExpired,
    UsageError,
)
from shoal.base.ids import INT63_MAX, NodeId, StreamId, parse_node_id, show_node_id
from shoal.base.offsets import PartitionOffset
from shoal.base.units import MS_NS, check_order, show_time
from shoal.identity.message_body import Position
from shoal.node.streams.message import LOST, FromLog, Gap, Message, Unreadable, message_of
from shoal.node.streams.reader_offsets import (
    Chains,
    Place,
    Places,
    Progress,
    Standing,
    parse_places,
)
from shoal.protocols.streams.commands import (
    BEYOND,
    EXPIRED,
    FAILED,
    INCOMPLETE,
    LATE,
    NO_STORAGE,
    NO_SUCH_LOG,
    NO_TRACKER,
    CountDurable,
    CountedDurable,
    HistoryEnded,
    HistoryPage,
    HistoryRow,
    KeepDurably,
    KeepFailed,
    KeptDurably,
    LastMessages,
    LogRange,
    MessageArrived,
    MessageRange,
    ReadHistory,
    ReadMore,
    StopReading,
    Unheard,
    What,
)
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.history_read import ANOTHER_LOG, DAMAGED
from shoal.protocols.streams.history.read_plan import cursor_of
from shoal.runtime import RuntimeHost

if TYPE_CHECKING:
    from shoal.node.keys.group_keys import NodeKeys

EARLIEST, LATEST = "earliest", "latest"
HISTORY_EVENTS = (HistoryPage, HistoryEnded, KeptDurably, KeepFailed, CountedDurable)


class Last(msgspec.Struct, frozen=True):
    """The newest so many messages, of each partition."""

    count: int

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if type(self.count) is not int or self.count < 1:
            raise UsageError(f"Last({self.count!r}): give a whole number, 1 or more")


Start = str | datetime | Last


class PartitionRead:
    """One read of the machine, whose token it is."""

    def __init__(self, history: NodeHistory, command: ReadHistory) -> None:
        self.command = command
        self._history = history
        self._rows: deque[HistoryRow] = deque()
        self._ended: HistoryEnded | None = None
        self._wake = asyncio.Event()

    def heard(self, event: HistoryPage | HistoryEnded) -> None:
        """The machine said something."""
        if isinstance(event, HistoryPage):
            self._rows.extend(event.rows)
        else:
            self._ended = event
        self._wake.set()

    @property
    def unheard(self) -> tuple[Unheard, ...]:
        """Storage nodes that may have more, once the read is over."""
        return () if self._ended is None else self._ended.unheard

    async def peek(self) -> HistoryRow | None:
        """The next row, which stays; None at the end. Raises what went wrong, unless all that was
        found was given and there may be more: then it is in `unheard`."""
        while not self._rows:
            if self._ended is not None:
                if not self._ended.complete and self._ended.reason != INCOMPLETE:
                    raise _error(self.command.stream, self._ended)
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._rows[0]

    async def advance(self) -> None:
        """The row that was peeked at is taken; with the last of a page, the next is asked for."""
        self._rows.popleft()
        if not self._rows and self._ended is None:
            await self._history.issue(ReadMore(), self)

    async def close(self) -> None:
        """Nobody wants the rest."""
        if self._ended is None:
            self._ended = HistoryEnded(self)
            await self._history.issue(StopReading(), self)


class Missing(msgspec.Struct, frozen=True):
    """A storage node that may have messages which a read lacks."""

    node: str
    """Its id, 0x..."""
    until: datetime | None
    """What it had at this time was read, from the other storage nodes; None if nothing is known of
    it. Of what came since, messages with timestamps up to a minute older may be missing, too."""
    reason: str
    """Why it was not asked itself, or what it said."""

    def __str__(self) -> str:
        if self.reason == DAMAGED:
            return f"{self.node}, which has rows that it cannot read"
        if self.reason == ANOTHER_LOG:
            return f"{self.node}, which goes on under another log: start at a time"
        if self.until is None:
            return f"{self.node} ({self.reason}), which was never compared with the others"
        at = show_time(self.until)
        return f"{self.node} ({self.reason}), last compared with the others at {at}"


class Completeness:
    """Whether all of a history was read. False until its end, and then if a storage node that was
    not heard may have more of it."""

    def __init__(self, stream: StreamId) -> None:
        self.stream = stream
        self.over = False
        """It was read to its end, or as far as could be."""
        self._missing: dict[NodeId, Unheard] = {}
        self._failed = False

    @property
    def complete(self) -> bool:
        return self.over and not self._missing and not self._failed

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The storage nodes that may have more."""
        return tuple([_missing(unheard) for unheard in self._missing.values()])

    @property
    def problem(self) -> str | None:
        """For people: why it is not complete; None if it is, or is still being read."""
        if not self.over or self.complete:
            return None
        if not self._missing:
            return f"{self.stream}: its history could not be read to the end"
        nodes = "; ".join(map(str, self.missing))
        return (
            f"{self.stream}: the history is incomplete: these storage nodes may have more of it:"
            f" {nodes}. Start those that are away, or ask later"
        )

    def raise_if_incomplete(self) -> None:
        """Raise HistoryIncomplete unless all of it was read."""
        if not self.complete:
            problem = self.problem or f"{self.stream}: its history was not read to the end"
            raise HistoryIncomplete(problem)

    def lacks(self, unheard: Iterable[Unheard]) -> None:
        """These may have more."""
        for one in unheard:
            known = self._missing.get(one.node)
            if known is None or one.until_ms < known.until_ms:
                self._missing[one.node] = one

    def failed(self) -> None:
        """It ended before its end."""
        self.over = self._failed = True


def _missing(unheard: Unheard) -> Missing:
    until = datetime.fromtimestamp(unheard.until_ms / 1000, UTC) if unheard.until_ms else None
    return Missing(show_node_id(unheard.node), until, unheard.reason)


class HistoryRead:
    """Messages of a history, as they are iterated over. At the end it says whether they are all:

    read = stream.read(start)
    async for message in read:
        print(message.content)
    if not read.complete:
        print(read.problem)         # or look at read.missing, or read.raise_if_incomplete()
    """

    def __init__(self, messages: AsyncGenerator[Message], completeness: Completeness) -> None:
        self._messages = messages
        self._completeness = completeness

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await anext(self._messages)

    async def aclose(self) -> None:
        """Want no more."""
        await self._messages.aclose()

    @property
    def complete(self) -> bool:
        """Whether it was read to its end, and has every message that was acknowledged before it
        began. False while it is being read."""
        return self._completeness.complete

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The storage nodes that may have more."""
        return self._completeness.missing

    @property
    def problem(self) -> str | None:
        """For people: why it is not complete; None if it is, or is still being read."""
        return self._completeness.problem

    def raise_if_incomplete(self) -> None:
        """Raise HistoryIncomplete unless `complete`."""
        self._completeness.raise_if_incomplete()


class NotKept(UsageError):
    """No storage node is named for a stream."""


class _Kept:
    """The token of a KeepDurably, or of a CountDurable."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[KeptDurably | CountedDurable | KeepFailed] = asyncio.Future()

    def heard(self, event: KeptDurably | CountedDurable | KeepFailed) -> None:
        """The machine said something."""
        if not self.answer.done():
            self.answer.set_result(event)


class NodeHistory:
    """The door to a node's history machine."""

    def __init__(self, host: RuntimeHost, client: HistoryClient) -> None:
        self.keys: NodeKeys | None = None
        """What messages are opened with, in a network with a registry."""
        self._host = host
        self._client = client
        self._keeps: dict[_Kept, None] = {}
        self._reads: dict[PartitionRead, None] = {}
        self._closed = False

    def close(self) -> None:
        """Let nobody wait for a node that is gone."""
        self._closed = True
        for read in self._reads:
            read.heard(HistoryEnded(read, FAILED, "this node is closed"))
        for keep in self._keeps:
            keep.heard(KeepFailed(keep, FAILED, "this node is closed"))

    async def issue(self, command: Any, token: Any) -> None:
        """Ask something of the machine."""
        if self._closed:
            raise UsageError("this node is closed: open another one")
        await self._host.issue(self._client, command, token)

    @asynccontextmanager
    async def open(self, commands: Iterable[ReadHistory]) -> AsyncIterator[list[PartitionRead]]:
        """Reads under way; those that were not finished are stopped at the end."""
        async with AsyncExitStack() as stack:
            reads = []
            for command in commands:
                read = PartitionRead(self, command)
                self._reads[read] = None
                stack.callback(self._reads.pop, read)
                await self.issue(command, read)
                stack.push_async_callback(read.close)
                reads.append(read)
            yield reads

    def messages(self, commands: Sequence[ReadHistory], progress: Progress | None) -> HistoryRead:
        """Messages of one or several partitions; what storage lacks shows as a gap."""
        completeness = Completeness(commands[0].stream)
        return HistoryRead(self._messages(commands, progress, completeness), completeness)

    async def _messages(
        self,
        commands: Sequence[ReadHistory],
        progress: Progress | None,
        completeness: Completeness,
    ) -> AsyncGenerator[Message]:
        chains = chains_of(progress)
        async with self.open(commands) as reads:
            await until_begun(reads, progress)
            async for read, row in merged(reads):
                arrived = arrived_of(read.command, row)
                gap = False
                if row.seq is None:  # a log is in the order of arrival: nothing follows from it
                    standing = chains.standing(row.message)
                    if standing is Standing.SEEN:
                        continue
                    gap = standing is Standing.GAP
                    chains.took(row.message)
                found: MessageArrived | Unreadable = arrived
                if self.keys is not None:
                    await self.keys.obtain(row.message)
                    found = self.keys.opened(arrived)
                yield message_of(found, Gap(None, LOST) if gap else None, progress)
            for read in reads:
                completeness.lacks(read.unheard)
            completeness.over = True

    async def keep(self, stream: StreamId, signed: bytes, copies: int) -> None:
        """Return when so many storage nodes have a message on disk."""
        await self._kept(KeepDurably(stream, signed, copies))

    async def count(self, command: CountDurable) -> CountedDurable:
        """How many messages of a chain a storage node has on disk; NotKept if there is none."""
        answer = await self._kept(command)
        assert isinstance(answer, CountedDurable)  # to a CountDurable
        return answer

    async def _kept(self, command: KeepDurably | CountDurable) -> KeptDurably | CountedDurable:
        token = _Kept()
        self._keeps[token] = None
        try:
            await self.issue(command, token)
            answer = await token.answer
        finally:
            del self._keeps[token]
        if isinstance(answer, KeepFailed):
            more = "the message was published, and may be kept all the same"
            raise _error(command.stream, answer, more)
        return answer


async def merged(
    reads: Sequence[PartitionRead],
) -> AsyncIterator[tuple[PartitionRead, HistoryRow]]:
    """The rows of several reads by position, of each one in its own order."""
    heads = []
    for number, read in enumerate(reads):
        row = await read.peek()
        if row is not None:
            heads.append((cursor_of(row.message.id), number, row))
    heapify(heads)
    while heads:
        _, number, row = heads[0]
        read = reads[number]
        await read.advance()
        yield read, row
        following = await read.peek()
        if following is None:
            heads[0] = heads[-1]
            heads.pop()
            heapify(heads)
        else:
            heapreplace(heads, (cursor_of(following.message.id), number, following))


def arrived_of(command: ReadHistory, row: HistoryRow, *, gap: bool = False) -> MessageArrived:
    """A row as a subscriber gets it."""
    now_ns = time_ns()
    if row.seq is None or not isinstance(command.what, LogRange):
        return MessageArrived(row.message, 0, now_ns, gap)
    place = PartitionOffset(UUID(bytes=command.what.log), row.seq)
    return FromLog(row.message, 0, now_ns, gap, place)


async def until_begun(reads: Sequence[PartitionRead], progress: Progress | None) -> None:
    """Wait for the first rows, or for what went wrong."""
    for read in reads:
        row = await read.peek()
        if row is not None and progress is not None and isinstance(read.command.what, LastMessages):
            id = row.message.id
            progress.begin_at(id.partition, (id.timestamp_ms, id.sequence))


def chains_of(progress: Progress | None) -> Chains:
    """What a reader that comes back was given."""
    chains = Chains()
    for partition, place in {} if progress is None else progress.begin.items():
        if place.given:
            chains.resume(partition, place)
    return chains


# What an application asks for


def where(start: Start) -> Start | Places:
    """What the text of an offset says; any other start as it is."""
    if isinstance(start, str) and start.lstrip().startswith("{"):
        return parse_places(start)
    return start


def progress_of(start: Start | Places, partitions: Sequence[int]) -> Progress:
    """How far a reader has come that begins there."""
    if isinstance(start, Places):
        return Progress(start.partitions)
    if start == LATEST:
        begin_ms = time_ns() // MS_NS
    elif isinstance(start, datetime):
        begin_ms = _milliseconds("start", start)
    else:
        return Progress()
    return Progress(dict.fromkeys(partitions, Place((begin_ms, 0))))


def reads_of(
    stream: StreamId,
    partitions: Sequence[int],
    start: Start | Places,
    end: datetime | None = None,
    publisher: str | None = None,
) -> list[ReadHistory]:
    """The reads, one for each partition; UsageError names what is wrong and what would be right."""
    by = None if publisher is None else _publisher(publisher)
    stop = None if end is None else Position(_milliseconds("end", end), INT63_MAX)
    reads = [
        ReadHistory(stream, partition, _what(start, stop, partition), by)
        for partition in partitions
    ]
    if isinstance(start, datetime):
        check_order("start", start, "end", end)
    return reads


def _what(start: Start | Places, end: Position | None, partition: int) -> What:
    if isinstance(start, Last | Places) and end is not None:
        given = repr(start) if isinstance(start, Last) else "an offset"
        raise UsageError(
            f"start={given} reads up to the newest message: give no end, or a time to start at"
        )
    match start:
        case "earliest":
            return MessageRange(None, end)
        case datetime():
            return MessageRange(Position(_milliseconds("start", start), 0), end)
        case Last(count):
            return LastMessages(count)
        case Places(places):
            return _after(places.get(partition))
    raise UsageError(
        f"start={start!r}: give 'earliest', a datetime, Last(100), or the offset of a message"
    )


def _after(place: Place | None) -> What:
    if place is None:
        return MessageRange()
    log = place.log
    if log is None:
        return MessageRange(Position(*place.begin))
    if log.minus:
        raise UsageError(
            f"this offset leaves out rows of {len(log.minus)} other logs: "
            "only a pipeline can read on from it"
        )
    return LogRange(log.log.bytes, log.seq)


def _milliseconds(name: str, when: datetime) -> int:
    if when.tzinfo is None:
        raise UsageError(f"{name}={when!r}: give it a time zone, as in datetime.now(UTC)")
    at_ms = int(when.timestamp() * 1000)
    if at_ms < 0:
        raise UsageError(f"{name}={when!r} is before 1970: give a later one")
    return at_ms


def _publisher(text: str) -> NodeId:
    try:
        return parse_node_id(text)
    except UsageError as error:
        raise UsageError(f"publisher={text!r}: {error}") from None


def _error(stream: StreamId, ended: HistoryEnded | KeepFailed, more: str = "") -> Exception:
    match ended.reason:
        case reason if reason == NO_STORAGE:
            return NotKept(
                f"{stream} is kept by nobody: name its storage nodes as storage = [...] "
                "under [[streams]] in the network file of its trackers"
            )
        case reason if reason == NO_TRACKER:
            return HistoryUnavailable(
                f"{stream}: no tracker answered who keeps it: is one running, "
                "at the address in the network file?"
            )
        case reason if reason == NO_SUCH_LOG:
            return NotFound(
                f"{stream}: no storage node has the log of this offset: start at a time instead"
            )
        case reason if reason == EXPIRED:
            return OffsetExpired(
                f"{stream}: the messages after this offset are no longer kept: start at 'earliest'"
            )
        case reason if reason == BEYOND:
            return HistoryUnavailable(
                f"{stream}: {ended.problem}: start at an earlier offset, or at a time"
            )
    if ended.reason == LATE:
        return HistoryUnavailable(
            f"{stream}: this message is late: it is on disk, but until other storage nodes have it,"
            f" too, they may tell readers that nothing is missing ({ended.problem}). Start them,"
            " or, if they are gone for good, take them off the storage nodes of the stream"
        )
    said = [word.rpartition(": ")[2] for word in ended.problem.split(", ")]
    if not more and all(word == "not-kept" for word in said):
        return HistoryUnavailable(
            f"{stream}: none of its storage nodes has heard of it ({ended.problem}): they keep it"
            " from the first subscriber or publisher on, if `storage` under [[streams]] in their"
            " own network files names them, too"
        )
    text = f"{stream}: its storage nodes gave no good answer ({ended.problem})"
    if isinstance(ended, KeepFailed):
        return HistoryUnavailable(f"{text}; {more}", refused=ended.refused)
    may_not = "no-permission" in ended.problem
    remedy = f"its owner allows it with `shoal stream grant {stream}`"
    return HistoryUnavailable(f"{text}: {remedy if may_not else 'are they running?'}")
