"""A local consumer of a durable topic.

The machine tells a subscription as many events as it has room for, and then waits until the
application has taken some. Meanwhile events stay where they are, in the topic's log: a slow
application loses none, but for what the node's limits take from the log. That shows, too: the
event after it has `gap_before`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from shoal.base.errors import MalformedMessage, ShoalError, UsageError
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptor_codec import decode_descriptor
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.identity.topics.event_signatures import signatures_hold
from shoal.node.topics.client import NodeTopics, Source
from shoal.node.topics.event import Event
from shoal.protocols.topics.commands import BEGINNING, EventArrived, Start

QUEUE_EVENTS_MAX = 256

OnVersion = Callable[[Cid, TopicDescriptor], None]


class _Feed(Source):
    """The events of one version of the topic."""

    def __init__(self, topic: Cid, subscription: TopicSubscription) -> None:
        super().__init__(topic)
        self.taken = 0
        """Events that the application took since the machine was told so."""
        self._subscription = subscription

    def arrived(self, event: EventArrived) -> None:
        self._subscription.push(self, event)

    def failed(self, error: ShoalError) -> None:
        self._subscription.fail(error)

    def ended(self) -> None:
        self._subscription.close()


class _MetaFeed(Source):
    """What the meta topic says."""

    def __init__(self, topic: Cid, subscription: TopicSubscription) -> None:
        super().__init__(topic)
        self._subscription = subscription

    def arrived(self, event: EventArrived) -> None:
        topic = _topic_in(event.event.payload)
        if topic is not None:
            self._subscription.heard_of(cid_of(event.event.payload), topic)


class TopicSubscription:
    """Iterates over events, each after the one that it follows, and each once."""

    def __init__(
        self,
        topics: NodeTopics,
        author: bytes,
        *,
        queue_max: int = QUEUE_EVENTS_MAX,
        follow: bool = False,
        on_version: OnVersion,
    ) -> None:
        if queue_max < 1:
            raise UsageError(f"a queue of {queue_max} events: give 1 or more")
        self.queue_max = queue_max
        self._topics = topics
        self._author = author
        self._follow = follow
        self._on_version = on_version
        self._sources: dict[Cid, Source] = {}
        self._versions: dict[Cid, None] = {}  # of our topic, as far as we heard of them
        self._queue: deque[tuple[_Feed, EventArrived] | ShoalError] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    # Life

    async def begin(self, topic: Cid, start: Start, meta: Cid | None) -> None:
        """Subscribe, to the meta topic as well if there is one."""
        self._versions[topic] = None
        if meta is not None:
            # From its beginning: a new version may have been announced long ago.
            await self._add(_MetaFeed(meta, self), BEGINNING, None)
        await self._add(_Feed(topic, self), start, self.queue_max)

    async def end(self) -> None:
        """Unsubscribe."""
        self.close()
        for source in self._sources.values():
            await self._topics.unsubscribe(source)

    def close(self) -> None:
        """End the iteration, after what is queued."""
        self._closed = True
        self._wake.set()

    # What comes

    def push(self, feed: _Feed, event: EventArrived) -> None:
        """An event: there is room, or the machine would wait."""
        self._queue.append((feed, event))
        self._wake.set()

    def fail(self, error: ShoalError) -> None:
        """An error, in its place among the events; not the same one twice in a row."""
        last = self._queue[-1] if self._queue else None
        if not isinstance(last, ShoalError) or str(last) != str(error):
            self._queue.append(error)
        self._wake.set()

    def heard_of(self, id: Cid, topic: TopicDescriptor) -> None:
        """The meta topic speaks of a topic, perhaps of a new version of ours."""
        if topic.parent not in self._versions or id in self._versions or self._closed:
            return
        if topic.author != self._author or not signatures_hold(topic):
            return  # anybody may ask to have something published there
        self._versions[id] = None
        self._on_version(id, topic)
        if self._follow:
            self._topics.start(self._follow_on(_Feed(id, self)))

    # What the application does

    @property
    def waits_for(self) -> str | None:
        """The CID of the checkpoint's event while it, or what led to it, is not here: until then
        nobody knows what was told before, and nothing is."""
        for source in self._sources.values():
            start = self._topics.waits_for(source)
            if start is not None:
                return show_cid(start)
        return None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        item = self._queue.popleft()
        if isinstance(item, ShoalError):
            raise item
        feed, arrived = item
        feed.taken += 1
        if 2 * feed.taken >= self.queue_max:  # by the half: a word to the machine for each is dear
            granted, feed.taken = feed.taken, 0
            await self._topics.grant(feed, granted)
        return Event(arrived.id, arrived.event, gap_before=arrived.gap_before)

    # Steps

    async def _add(self, source: Source, start: Start, credit: int | None) -> None:
        self._sources[source.topic] = source
        await self._topics.subscribe(source, start, credit)

    async def _follow_on(self, feed: _Feed) -> None:
        try:
            await self._add(feed, BEGINNING, self.queue_max)
        except ShoalError as error:
            self.fail(error)
        if self._closed:  # meanwhile
            await self._topics.unsubscribe(feed)


def _topic_in(payload: bytes) -> TopicDescriptor | None:
    try:
        found = decode_descriptor(payload)
    except MalformedMessage:
        return None
    return found if isinstance(found, TopicDescriptor) else None
