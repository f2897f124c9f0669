"""A stream, as an application uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, StreamId
from shoal.node.streams.history import (
    EARLIEST,
    LATEST,
    Completeness,
    HistoryRead,
    Start,
    progress_of,
    reads_of,
    where,
)
from shoal.node.streams.message import Content, Key, encode_content
from shoal.node.streams.subscription import QUEUE_MESSAGES_MAX, Splice, Subscription

if TYPE_CHECKING:
    from shoal.node.node import Node


class Stream:
    """Publish and subscribe. Made by Node.create_stream and Node.open_stream."""

    def __init__(self, node: Node, id: StreamId) -> None:
        self.id = id
        self._node = node

    def __repr__(self) -> str:
        return f"Stream({self.id!r})"

    @property
    def partitions(self) -> int:
        """How many partitions the stream has, as its settings say."""
        return self._node.partitions.count(self.id)

    async def publish(
        self,
        content: Content,
        *,
        key: Key | None = None,
        partition: int | None = None,
        durable: bool | int = False,
    ) -> MessageId:
        """Send to every subscriber; returns when the message is on its way to our neighbours.

        Messages of one partition stay in order. Give the partition, or a key that always goes to
        the same one (see node/partitions.py); without either, partitions take turns.
        Waits while neighbours cannot keep up, but not for ever for one that is stuck. If it is to
        be durable, returns when a storage node (or so many of them) has it on disk, and raises
        HistoryUnavailable if none says so: it is published all the same. The node then keeps the
        message, on disk if it has a key file, and tries again by itself; `retry` waits for that,
        under the id that the error has as `message`. Raises StreamUnavailable while the stream's
        tracker does not answer, unless the message is to be durable and the network file names the
        storage nodes.
        """
        if durable < 0:
            raise UsageError(
                f"durable={durable}: give how many storage nodes must have it, or True"
            )
        content_type, data = encode_content(content)
        partition = self._node.partitions.choose(self.id, key, partition)
        return await self._node.publish(self.id, data, content_type, partition, int(durable))

    async def retry(self, message: MessageId) -> MessageId:
        """Return when a durable message has its copies, for which `publish` raised
        HistoryUnavailable: the same message, under the same id. Raises as `publish` does."""
        if message.stream != self.id:
            raise UsageError(f"{message} is of another stream: retry it there")
        await self._node.retry(message)
        return message

    @asynccontextmanager
    async def subscribe(
        self,
        start: Start = LATEST,
        *,
        partitions: Iterable[int] | int | None = None,
        ordered: bool = True,
        queue_max: int = QUEUE_MESSAGES_MAX,
    ) -> AsyncIterator[Subscription]:
        """Messages as they come, from when the overlay has taken us in; before them history, if
        start says so: "earliest", a datetime, Last(100), or the offset of a message.

        Partitions are chosen here, not in the network: a stream has one overlay, and the node
        carries all of it. `complete` of the subscription says whether all of that history was had,
        and `missing` which storage nodes may have more. With ordered=False live messages come as
        the overlay brings them: none waits for one before it, what is late comes late, and they
        have no offsets.
        """
        if not ordered and start != LATEST:
            raise UsageError(
                "ordered=False is of live messages, and history is in order: give no start"
            )
        chosen = self._node.partitions.chosen(self.id, partitions)
        wanted, begin = self._all(chosen), where(start)
        commands = [] if begin == LATEST else reads_of(self.id, wanted, begin)
        progress = progress_of(begin, wanted)
        subscription = Subscription(queue_max, chosen, self._node.keys, progress, ordered=ordered)
        splice = Splice(subscription, self._node.history, commands) if commands else None
        if splice is not None:
            subscription.follow(splice, Completeness(self.id))
        await self._node.attach(self.id, subscription)
        try:
            if splice is not None:
                await splice.begin()
            yield subscription
        finally:
            subscription.close()
            try:
                if splice is not None:
                    await splice.close()
            finally:
                await self._node.detach(self.id, subscription)

    def read(
        self,
        start: Start = EARLIEST,
        end: datetime | None = None,
        *,
        publisher: str | None = None,
        partitions: Iterable[int] | int | None = None,
    ) -> HistoryRead:
        """History from start to end, both included, as it is iterated over: no faster, and no more
        of it is held than a page for each partition. Several partitions come merged by time. At
        the end `complete` of what this returns says whether that was all: a storage node that does
        not answer may have more, and is named in `missing`."""
        chosen = self._all(self._node.partitions.chosen(self.id, partitions))
        begin = where(start)
        commands = reads_of(self.id, chosen, begin, end, publisher)
        progress = progress_of(begin, chosen) if publisher is None else None
        return self._node.history.messages(commands, progress)

    def _all(self, chosen: frozenset[int] | None) -> list[int]:
        return sorted(range(self.partitions) if chosen is None else chosen)
