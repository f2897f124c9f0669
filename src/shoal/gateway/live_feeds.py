"""Live messages for many subscribers: the node is asked once for each stream, whoever listens.

Each subscriber has a queue with bounds, in messages and in bytes. Whoever falls behind loses the
oldest, and is told how many: the next message has a gap before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from shoal.base.containers import BoundedQueue
from shoal.base.errors import HistoryUnavailable, ShoalError, UsageError
from shoal.base.ids import MessageId, StreamId, parse_node_id, show_node_id
from shoal.gateway.config import SUBSCRIBER_QUEUE_BYTES_MAX, SUBSCRIBER_QUEUE_MAX, SUBSCRIBERS_MAX
from shoal.gateway.requests import TooManySubscribers
from shoal.node import Last, Message, Node
from shoal.node.search.documents import PublishedDocument
from shoal.node.streams.history import NotKept
from shoal.node.streams.subscription import Subscription
from shoal.node.topics.event import Event
from shoal.node.topics.subscription import TopicSubscription
from shoal.node.topics.topic import ANYONE, Topic
from shoal.protocols.search.documents.document import Life

# What a gateway needs of its node. Whoever makes the gateway gives it doors that lead there: the
# gateway itself knows nothing of the Python API.


LATEST: Literal["latest"] = "latest"
EARLIEST: Literal["earliest"] = "earliest"
INCOMPLETE = "incomplete"  # a storage node that was not heard may have more of the history
NO_HISTORY = "no-history"  # nobody keeps what came while a subscriber was away

Start = Literal["latest", "earliest"] | int | datetime | MessageId
"""A number is the newest so many; a message's id is after that one."""


class HistoryQuery(msgspec.Struct, frozen=True):
    """What a client wants to read."""

    stream: StreamId
    last: int | None = None
    begin: datetime | None = None
    end: datetime | None = None
    partition: int | None = None
    publisher: str | None = None


class Gap(msgspec.Struct, frozen=True):
    """Something is missing here."""

    count: int | None
    """How many, if that is known."""
    reason: str


class Told(msgspec.Struct, frozen=True):
    """One message, or event, for subscribers."""

    id: str
    """Where to go on after it, as text."""
    line: bytes
    """It, as one line of JSON."""
    content: Any = None
    partition: int = 0
    gap_before: Gap | None = None


class PublishOptions(msgspec.Struct, frozen=True):
    """How a message is published."""

    partition: int | None = None
    key: str | None = None
    durable: int = 0
    """Wait until so many storage nodes have it."""


class StreamDoor(Protocol):
    """Streams of the node."""

    async def publish(
        self, stream: StreamId, content: Any, options: PublishOptions
    ) -> MessageId: ...

    async def retry(self, message: MessageId) -> None: ...

    def read(self, query: HistoryQuery) -> AsyncIterator[bytes]: ...

    def subscribe(
        self, stream: StreamId, start: Start, partition: int | None = None, *, ordered: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[Told]]: ...


class TopicDoor(Protocol):
    """Durable topics of the node."""

    async def create(
        self, name: str, publishers: Literal["author", "anyone"], *, public: bool
    ) -> TopicShown: ...

    async def show(self, cid: str) -> TopicShown: ...

    async def publish(self, cid: str, payload: bytes, replicas: int) -> bytes: ...

    def read(self, cid: str, end: str | None, limit: int) -> AsyncIterator[bytes]: ...

    def subscribe(
        self, cid: str, start: str
    ) -> AbstractAsyncContextManager[AsyncIterator[Told]]: ...


class TopicShown(msgspec.Struct, frozen=True):
    """A topic."""

    cid: str
    name: str
    author: str


class SearchQuestion(msgspec.Struct, frozen=True):
    """What is looked for, and how thoroughly."""

    query: str
    confidence: float
    limit: int
    within_s: float


class SearchAnswer(msgspec.Struct, frozen=True):
    """What was found, and how sure it is that this is all."""

    confidence: float
    """The probability to have found a document that is there."""
    asked: int
    """Nodes that were asked."""
    nodes: float
    """Nodes of the whole network, as it was measured."""
    hits: list[dict[str, Any]]


class DocumentShown(msgspec.Struct, frozen=True):
    """A document that was put or deleted."""

    owner: str
    name: str
    version: int
    nodes: int
    """So many nodes keep it, once it has reached them."""


class SearchDoor(Protocol):
    """The search network."""

    async def search(self, question: SearchQuestion) -> SearchAnswer: ...

    async def put(
        self, name: str, content: Mapping[str, Any], kind: str, life_s: float | None
    ) -> DocumentShown: ...

    async def get(self, name: str, owner: str | None) -> bytes: ...

    async def delete(self, name: str) -> DocumentShown: ...


class Doors(msgspec.Struct, frozen=True):
    """All that lead into a node; None where it has no such part."""

    streams: StreamDoor | None = None
    topics: TopicDoor | None = None
    search: SearchDoor | None = None


# The place of a message as text, for Last-Event-ID. Publishers name their chains as they like, so
# the name is quoted: an event's id must not end its line.


def show_message_id(id: MessageId) -> str:
    """A message's id without its stream."""
    publisher = show_node_id(id.publisher)
    return f"{id.timestamp_ms}-{id.sequence}-{id.partition}-{publisher}-{quote(id.chain, safe='')}"


def parse_message_id(stream: StreamId, text: str) -> MessageId:
    """The message that a text names; UsageError if none."""
    try:
        timestamp_ms, sequence, partition, publisher, chain = text.split("-", 4)
        numbers = [int(part) for part in (partition, timestamp_ms, sequence)]
        fields = (stream, *numbers, parse_node_id(publisher), unquote(chain))
        return msgspec.convert(fields, MessageId)
    except ValueError:  # UsageError and msgspec's are such
        raise UsageError(
            f"Last-Event-ID {text[:100]!r}: give one that an event had, or none"
        ) from None


SLOW = "slow-consumer"

Open = Callable[[], AbstractAsyncContextManager[AsyncIterator[Told]]]


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


# How the gateway of a node gets into it: the Python API behind the gateway's doors.


CLOCKS_MS = 5_000
"""A subscriber that comes back is told again what was published so long before the message that it
saw last: other publishers' clocks may be behind, and their messages were not yet there."""


class NodeStreams:
    """Streams of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def publish(self, stream: StreamId, content: Any, options: PublishOptions) -> MessageId:
        opened = await self._node.open_stream(stream)
        return await opened.publish(
            content, key=options.key, partition=options.partition, durable=options.durable
        )

    async def retry(self, message: MessageId) -> None:
        await self._node.retry(message)

    async def read(self, query: HistoryQuery) -> AsyncIterator[bytes]:
        opened = await self._node.open_stream(query.stream)
        start = Last(query.last) if query.last is not None else query.begin or "earliest"
        messages = opened.read(
            start, query.end, publisher=query.publisher, partitions=query.partition
        )
        async for message in messages:
            yield message.as_json() + b"\n"
        messages.raise_if_incomplete()

    @asynccontextmanager
    async def subscribe(
        self, stream: StreamId, start: Start, partition: int | None = None, *, ordered: bool = True
    ) -> AsyncIterator[AsyncIterator[Told]]:
        opened = await self._node.open_stream(stream)
        gap: Gap | None = None
        async with AsyncExitStack() as stack:

            async def begin(at: Any) -> Subscription:
                messages = opened.subscribe(
                    at, partitions=partition, ordered=ordered, queue_max=SUBSCRIBER_QUEUE_MAX
                )
                return await stack.enter_async_context(messages)

            if isinstance(start, MessageId) and not ordered:
                messages, gap = await begin(LATEST), Gap(None, NO_HISTORY)
            elif isinstance(start, MessageId):
                try:
                    messages = await begin(_before(start))
                except (NotKept, HistoryUnavailable):
                    # A browser comes back by itself: it goes on, and knows that it missed some.
                    messages, gap = await begin(LATEST), Gap(None, NO_HISTORY)
            else:
                messages = await begin(Last(start) if isinstance(start, int) else start)
            after = start if isinstance(start, MessageId) and ordered else None
            yield _Messages(messages, after, gap)


class _Messages:
    """Iterates over messages; a wait that is given up loses nothing."""

    def __init__(self, messages: Subscription, after: MessageId | None, gap: Gap | None) -> None:
        self._messages = messages
        self._after = after
        self._gap = gap
        self._told = False  # that history is not complete

    def __aiter__(self) -> AsyncIterator[Told]:
        return self

    async def __anext__(self) -> Told:
        message = await anext(self._messages)
        while self._after is not None and _is_seen(message.id, self._after):
            message = await anext(self._messages)
        if self._messages.problem is not None and not self._told:
            self._told, self._gap = True, self._gap or Gap(None, INCOMPLETE)
        gap, self._gap = self._gap, None
        return _told(message, gap)


def _told(message: Message, gap: Gap | None) -> Told:
    if message.gap_before is not None:
        gap = Gap(message.gap_before.count, message.gap_before.reason)
    return Told(
        show_message_id(message.id),
        message.as_json(),
        message.content,
        message.id.partition,
        gap,
    )


def _before(id: MessageId) -> datetime:
    at_s = max(0, id.timestamp_ms - CLOCKS_MS) / 1000
    try:
        return datetime.fromtimestamp(at_s, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def _is_seen(id: MessageId, last: MessageId) -> bool:
    """Whether a message is the last one seen, or one before it of the same chain."""
    same = (id.publisher, id.chain, id.partition) == (last.publisher, last.chain, last.partition)
    return same and (id.timestamp_ms, id.sequence) <= (last.timestamp_ms, last.sequence)


class NodeTopicsDoor:
    """Durable topics of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def create(
        self, name: str, publishers: Literal["author", "anyone"], *, public: bool
    ) -> TopicShown:
        who = ANYONE if publishers == "anyone" else None
        return _shown(await self._node.create_topic(name, publishers=who, public=public))

    async def show(self, cid: str) -> TopicShown:
        return _shown(await self._node.topic(cid))

    async def publish(self, cid: str, payload: bytes, replicas: int) -> bytes:
        event = await (await self._node.topic(cid)).publish(payload)
        if replicas:
            await event.stored(replicas)
        return event.as_json()

    async def read(self, cid: str, end: str | None, limit: int) -> AsyncIterator[bytes]:
        topic = await self._node.topic(cid)
        async for event in topic.read(end, limit=limit):
            yield event.as_json() + b"\n"

    @asynccontextmanager
    async def subscribe(self, cid: str, start: str) -> AsyncIterator[AsyncIterator[Told]]:
        topic = await self._node.topic(cid)
        async with topic.subscribe(start) as events:
            yield _Events(events)


class _Events:
    """Iterates over events; a wait that is given up loses nothing."""

    def __init__(self, events: TopicSubscription) -> None:
        self._events = events

    def __aiter__(self) -> AsyncIterator[Told]:
        return self

    async def __anext__(self) -> Told:
        event: Event = await anext(self._events)
        gap = Gap(None, "lost") if event.gap_before else None
        return Told(event.checkpoint, event.as_json(), event.payload, gap_before=gap)


class NodeSearchDoor:
    """The search network, through a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def search(self, question: SearchQuestion) -> SearchAnswer:
        search = self._node.search(
            question.query,
            confidence=question.confidence,
            limit=question.limit,
            within=question.within_s,
        )
        async with search:
            hits = [msgspec.json.decode(hit.as_json()) async for hit in search]
        return SearchAnswer(search.confidence, search.asked, search.nodes, hits)

    async def put(
        self, name: str, content: Mapping[str, Any], kind: str, life_s: float | None
    ) -> DocumentShown:
        put = await self._node.put(content, kind=cast(Life, kind), name=name, life=life_s)
        return _document(put)

    async def get(self, name: str, owner: str | None) -> bytes:
        return (await self._node.get(name, owner=owner)).as_json()

    async def delete(self, name: str) -> DocumentShown:
        return _document(await self._node.delete(name))


def _shown(topic: Topic) -> TopicShown:
    return TopicShown(topic.cid, topic.name, topic.author)


def _document(put: PublishedDocument) -> DocumentShown:
    return DocumentShown(put.owner, put.name, put.version, put.nodes)


def doors_of(node: Node) -> Doors:
    """All that a node has."""
    network = node.network
    return Doors(
        NodeStreams(node) if node.knows_trackers else None,
        NodeTopicsDoor(node) if network.dht is not None else None,
        NodeSearchDoor(node) if network.search is not None else None,
    )
