"""What a gateway needs of its node. Whoever makes the gateway gives it doors that lead there: the
gateway itself knows nothing of the Python API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, Protocol
from urllib.parse import quote, unquote

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, StreamId, parse_node_id, show_node_id

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
