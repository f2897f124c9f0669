"""Durable topics in the logs of a storage node, for readers who go by offsets, such as Spark.

The node subscribes to the topics that `[storage]` names, and appends their events to a store beside
that of streams: one log per topic, with seqs in the order in which events came here. A row is the
event's block, as those who signed it wrote it.

After a restart all events that the topic still has are told again: those that the store has, it
knows by their CIDs. Those that retention took before must not come twice, so what is older than
retention's horizon is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import time_ns
from typing import Any, TypeVar

from shoal.base.errors import ShoalError
from shoal.base.ids import MessageId, StreamId
from shoal.identity import Entropy
from shoal.identity.stream_message import BINARY
from shoal.identity.topics.canonical import encode_descriptor
from shoal.identity.topics.cid import Cid, parse_cid, show_cid
from shoal.identity.topics.signing import signer_of
from shoal.node.network_file import NetworkFile, StorageSection
from shoal.node.storage_role import store_config
from shoal.node.tasks import Tasks
from shoal.node.topic import EARLIEST, Topic
from shoal.node.topic_events import Event
from shoal.node.topic_subscription import TopicSubscription
from shoal.node.topics import NodeTopics
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.storage.store import Store

ROWS_MAX = 100  # events that wait to be written: with the largest payloads, one transaction
RETRY_S = 5.0  # a topic that nobody knows yet, a disk that is full
RETAIN_S = 10.0
FOLDER = "{}-topics"
"""Of the store, beside that of streams."""

T = TypeVar("T")

log = logging.getLogger("shoal.storage")


class TopicLogs:
    """The logs of the topics that a storage node keeps for readers."""

    def __init__(self, network: NetworkFile, section: StorageSection, entropy: Entropy) -> None:
        """Opens the store; StoreError if that cannot be."""
        folder = network.path(FOLDER.format(section.folder))
        self.store = Store(folder, entropy, store_config(section))
        self._topics = {StreamId(show_cid(parse_cid(text))): None for text in section.topics}
        self._tasks = Tasks()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-topic-logs")

    def keeps(self, topic: StreamId) -> bool:
        """Whether events of a topic, by its CID, are appended here."""
        return topic in self._topics

    def start(self, topics: NodeTopics) -> None:
        """The node runs: follow every topic until its end."""
        for topic in self._topics:
            self._tasks.start(self._follow(topics, parse_cid(topic)))
        self._tasks.start(self._retain())

    async def close(self) -> None:
        """Let go of the folder."""
        await self._tasks.close()
        self._thread.shutdown()
        self.store.close()

    # Steps

    async def _follow(self, topics: NodeTopics, id: Cid) -> None:
        """Append all that comes; whatever goes wrong, again."""
        told: str | None = None
        while True:
            try:
                topic = Topic(topics, id, await topics.find(id))
                async with topic.subscribe(EARLIEST, meta=False, queue_max=ROWS_MAX) as events:
                    await self._append_all(StreamId(show_cid(id)), events)
            except ShoalError as error:
                if str(error) != told:
                    log.warning("topic %s is not kept now: %s", show_cid(id), error)
                told = str(error)
            await asyncio.sleep(RETRY_S)

    async def _append_all(self, topic: StreamId, events: TopicSubscription) -> None:
        """One transaction for all that came while the one before was written."""
        some: list[Event] = []
        came, room = asyncio.Event(), asyncio.Event()

        async def gather() -> None:
            try:
                async for event in events:
                    some.append(event)
                    came.set()
                    if len(some) >= ROWS_MAX:
                        room.clear()
                        await room.wait()
            finally:
                came.set()

        gathering = asyncio.create_task(gather())
        try:
            while some or not gathering.done():
                await came.wait()
                came.clear()
                batch, some[:] = list(some), []
                room.set()
                await self._append(topic, batch)
            await gathering  # raises what ended it
        finally:
            gathering.cancel()
            await asyncio.gather(gathering, return_exceptions=True)

    async def _append(self, topic: StreamId, events: list[Event]) -> None:
        at = self.store.stream_heads(topic).get(0)
        horizon_ms = 0 if at is None else at.horizon_ms
        kept = [event for event in events if event.descriptor.metadata.created_ms >= horizon_ms]
        await self._do(self.store.append, [_row(topic, event) for event in kept], time_ns())

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(RETAIN_S)
            try:
                while (await self._do(self.store.retain, time_ns())).more:
                    pass
            except ShoalError as error:
                log.error("old events of topics cannot be let go: %s", error)

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _row(topic: StreamId, event: Event) -> VerifiedMessage:
    """An event as a row of a log: known by its CID, found by its publisher and time."""
    described = event.descriptor
    publisher = signer_of(described.publisher or described.author)
    id = MessageId(topic, 0, described.metadata.created_ms, 0, publisher, event.cid)
    block = encode_descriptor(described)
    return VerifiedMessage(id, None, BINARY, described.payload, block)
