"""Durable topics in the logs of a storage node, for readers who go by offsets, such as Spark.

The node subscribes to the topics that `[storage]` names, and appends their events to its store,
where a topic has the place of a stream: seqs are in the order in which events came here. A row is
the event's block, as those who signed it wrote it. Once a topic is found, the other storage nodes
that keep it are followed as those of streams are (protocols/streams/history/sync.py), so that each
can serve the logs of the others.

After a restart all events that the topic still has are told again: those that the store has, it
knows by their cores. Those that retention took before must not come twice, so what is older than
retention's horizon is left out. So is what is stamped ahead of our clock by more than messages may
be: such an event would push the watermark of every query, and, once it is let go, the horizon.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from time import time_ns

from shoal.base.errors import ShoalError
from shoal.base.ids import StreamId
from shoal.base.log_limit import log_of_others
from shoal.base.units import MS_NS
from shoal.identity.topics.canonical import encode_descriptor
from shoal.identity.topics.cid import Cid, parse_cid, show_cid
from shoal.node.network_file import StorageSection
from shoal.node.storage_role import StorageRole
from shoal.node.tasks import Tasks
from shoal.node.topic import EARLIEST, Topic
from shoal.node.topic_events import Event
from shoal.node.topic_subscription import TopicSubscription
from shoal.node.topics import NodeTopics
from shoal.protocols.streams.history.config import FUTURE_NS
from shoal.protocols.streams.history.kept import event_message
from shoal.storage.errors import StoreError

ROWS_MAX = 100  # events that wait to be written: with the largest payloads, one transaction
RETRY_S = 5.0  # a topic that nobody knows yet, a disk that is full

log = logging.getLogger("shoal.storage")
log_others = log_of_others("shoal.storage")


class TopicLogs:
    """The logs of the topics that a storage node keeps for readers."""

    def __init__(self, role: StorageRole, section: StorageSection) -> None:
        self.store = role.store
        self.left_out = 0
        """Events from the future, or from before 1970, since the start."""
        self._role = role
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

    async def close(self) -> None:
        """Append nothing more; the store is the role's."""
        await self._tasks.close()
        self._thread.shutdown()

    # Steps

    async def _follow(self, topics: NodeTopics, id: Cid) -> None:
        """Append all that comes; whatever goes wrong, again."""
        told: str | None = None
        while True:
            try:
                topic = Topic(topics, id, await topics.find(id))
                self._role.follow_topic(id, topic.descriptor)
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
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._append_now, topic, events)

    def _append_now(self, topic: StreamId, events: list[Event]) -> None:
        """In the thread: the store may be busy, with a look into it as with a row."""
        if self._role.disk.refused is not None:
            raise StoreError(self._role.disk.refused)
        at = self.store.stream_heads(topic).get(0)
        horizon_ms, now_ns = 0 if at is None else at.horizon_ms, time_ns()
        kept = []
        for event in events:
            created_ms = event.descriptor.metadata.created_ms
            # What is left out now does not come again: a clock set back leaves out nothing.
            latest_ns = max(now_ns, self.store.certain_ns or 0) + FUTURE_NS
            if not 0 <= created_ms * MS_NS <= latest_ns:
                self.left_out += 1
                log_others.warning("event %s is left out: it is of %s", event.cid, event.created)
            elif created_ms >= horizon_ms:
                kept.append(event_message(event.descriptor, encode_descriptor(event.descriptor)))
        self.store.append(kept, now_ns)
