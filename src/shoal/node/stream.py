"""A stream, as an application uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, StreamId
from shoal.node.messages import Content, encode_content
from shoal.node.subscription import QUEUE_MESSAGES_MAX, Subscription

if TYPE_CHECKING:
    from shoal.node.node import Node


class Stream:
    """Publish and subscribe. Made by Node.create_stream and Node.open_stream."""

    def __init__(self, node: Node, id: StreamId) -> None:
        self.id = id
        self._node = node

    def __repr__(self) -> str:
        return f"Stream({self.id!r})"

    async def publish(self, content: Content, *, partition: int = 0) -> MessageId:
        """Send to every subscriber; returns when the message is on its way to our neighbours.

        Waits while neighbours cannot keep up, but not for ever for one that is stuck.
        """
        content_type, data = encode_content(content)
        return await self._node.publish(self.id, data, content_type, partition)

    @asynccontextmanager
    async def subscribe(
        self, start: str = "latest", *, queue_max: int = QUEUE_MESSAGES_MAX
    ) -> AsyncIterator[Subscription]:
        """Messages as they come, from when the overlay has taken us in."""
        if start != "latest":
            raise UsageError(f"start={start!r}: only 'latest' exists without a storage node")
        subscription = Subscription(queue_max)
        await self._node.attach(self.id, subscription)
        try:
            yield subscription
        finally:
            subscription.close()
            await self._node.detach(self.id, subscription)
