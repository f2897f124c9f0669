"""Events of durable topics, as an application gets them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from shoal.base.times import show_time
from shoal.identity import base58
from shoal.identity.topics.cid import Cid, show_cid
from shoal.identity.topics.descriptors import EventDescriptor

if TYPE_CHECKING:
    from shoal.node.topics import NodeTopics

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_json_encoder = msgspec.json.Encoder()


class Event:
    """One event of a topic: its signatures were checked, or its CID was asked for. It never
    changes: its CID is its content's."""

    __slots__ = ("descriptor", "gap_before", "id")

    def __init__(self, id: Cid, descriptor: EventDescriptor, *, gap_before: bool = False) -> None:
        self.id = id
        """The CID as bytes."""
        self.descriptor = descriptor
        self.gap_before = gap_before
        """Events before this one could not be had, since nobody keeps them any more; or a topic's
        only publisher went on from an older copy of its disk, and this one does not follow the one
        told before."""

    def __repr__(self) -> str:
        return f"Event({self.cid!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def cid(self) -> str:
        """Its name, zdpu..."""
        return show_cid(self.id)

    @property
    def checkpoint(self) -> str:
        """Where to go on after this one: `subscribe(start=event.checkpoint)`."""
        return self.cid

    @property
    def topic(self) -> str:
        """The CID of its topic."""
        return show_cid(self.descriptor.topic)

    @property
    def payload(self) -> bytes:
        return self.descriptor.payload

    @property
    def author(self) -> str:
        """The peer id of who wrote it."""
        return base58.encode(self.descriptor.author)

    @property
    def publisher(self) -> str:
        """The peer id of who gave it its place in the topic."""
        return base58.encode(self.descriptor.publisher or self.descriptor.author)

    @property
    def parent(self) -> str | None:
        """The CID of the event before this one."""
        return None if self.descriptor.parent is None else show_cid(self.descriptor.parent)

    @property
    def created(self) -> datetime:
        """When it was written, by its author's clock."""
        return _EPOCH + timedelta(milliseconds=self.descriptor.metadata.created_ms)

    def as_json(self) -> bytes:
        """One line for programs; a payload that is not text comes as base64."""
        line = {
            "topic": self.topic,
            "cid": self.cid,
            "parent": self.parent,
            "author": self.author,
            "publisher": self.publisher,
            "created": show_time(self.created),
            "gap_before": self.gap_before,
        }
        try:
            return _json_encoder.encode({**line, "text": self.payload.decode()})
        except UnicodeDecodeError:
            return _json_encoder.encode({**line, "base64": self.payload})


class PublishedEvent(Event):
    """An event that was published by this node, or on its behalf."""

    __slots__ = ("_topics",)

    def __init__(self, id: Cid, descriptor: EventDescriptor, topics: NodeTopics) -> None:
        super().__init__(id, descriptor)
        self._topics = topics

    async def stored(self, replicas: int = 1) -> int:
        """Wait until so many other nodes say that they keep it; how many do. TopicUnavailable, with
        their number as `replicas`, if fewer will."""
        return await self._topics.stored(self.id, replicas)
