"""How the gateway of a node gets into it: the Python API behind the gateway's doors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from shoal.base.errors import HistoryUnavailable
from shoal.base.ids import MessageId, StreamId
from shoal.gateway.config import SUBSCRIBER_QUEUE_MAX
from shoal.gateway.doors import (
    INCOMPLETE,
    LATEST,
    NO_HISTORY,
    DocumentShown,
    Doors,
    Gap,
    HistoryQuery,
    PublishOptions,
    SearchAnswer,
    SearchQuestion,
    Start,
    Told,
    TopicShown,
    show_message_id,
)
from shoal.node import Last, Message, Node
from shoal.node.documents import PublishedDocument
from shoal.node.history import NotKept
from shoal.node.subscription import Subscription
from shoal.node.topic import ANYONE, Topic
from shoal.node.topic_events import Event
from shoal.node.topic_subscription import TopicSubscription
from shoal.protocols.search.documents import Life

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
