"""What an application publishes and gets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.base.offsets import PartitionOffset
from shoal.base.units import MS_NS
from shoal.identity.stream_message import BINARY, ENCRYPTED, JSON, TEXT
from shoal.node.progress import Mark, Progress, Step
from shoal.protocols.streams.commands import MessageArrived

Content = Any  # what JSON can say, or str, or bytes

_json_encoder = msgspec.json.Encoder()


class Gap(msgspec.Struct, frozen=True):
    """Messages are missing here."""

    count: int | None
    """How many, if that is known."""
    reason: str


SLOW = "slow-consumer"  # this application did not keep up
LOST = "lost"  # nobody could give us what is missing


NO_KEY = "no-key"  # the key was not to be had: is this node permitted to subscribe?
BROKEN = "broken"  # its publisher, though permitted to, did not seal it as is right


class Unreadable(msgspec.Struct, frozen=True):
    """A message whose content cannot be had."""

    arrived: MessageArrived
    reason: str


class FromLog(MessageArrived, frozen=True, gc=False):
    """A message that was read from a storage node's log."""

    place: PartitionOffset | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a stream, its signature checked."""

    id: MessageId
    content: Content
    hops: int
    received_ns: int
    gap_before: Gap | None = None
    undecryptable: str | None = None
    """Why the content, which is encrypted, is None: NO_KEY or BROKEN."""
    _mark: Mark | None = None

    @property
    def stream(self) -> StreamId:
        return self.id.stream

    @property
    def publisher(self) -> str:
        """The publisher's address, as people write it."""
        return show_node_id(NodeId(self.id.publisher))

    @property
    def timestamp(self) -> datetime:
        """When it was published, by the publisher's clock."""
        return datetime.fromtimestamp(self.id.timestamp_ms / 1000, UTC)

    @property
    def offset(self) -> str | None:
        """Where to go on after this one and all that came before it, in every partition:
        `subscribe(start=message.offset)`. Text to be stored; None if one publisher's were read,
        or messages come in no order."""
        return None if self._mark is None else self._mark.offset()

    def as_json(self, *, offset: bool = False) -> bytes:
        """One line for programs, with the offset if that is wanted; bytes come as base64."""
        line = {
            "stream": self.id.stream,
            "partition": self.id.partition,
            "publisher": self.publisher,
            "timestamp_ms": self.id.timestamp_ms,
            "sequence": self.id.sequence,
            "chain": self.id.chain,
            "content": self.content,
            "gap_before": self.gap_before,
        }
        if self.undecryptable is not None:
            line["undecryptable"] = self.undecryptable
        if offset:
            line["offset"] = self.offset
        try:
            return _json_encoder.encode(line)
        except RecursionError:  # just shallow enough to be read, and one level deeper here
            return _json_encoder.encode({**line, "content": "nested too deeply"})


def encode_content(content: Content) -> tuple[int, bytes]:
    """How content travels: bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(content, bytes | bytearray | memoryview):
        return BINARY, bytes(content)
    try:
        if isinstance(content, str):
            return TEXT, content.encode()
        return JSON, _json_encoder.encode(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"content of type {type(content).__name__} is not JSON ({error}): "
            "publish what JSON can say, a str, or bytes"
        ) from error


def decode_content(content_type: int, content: bytes) -> Content:
    """What the publisher meant. Content that is not what its type says comes as bytes."""
    try:
        if content_type == JSON:
            return msgspec.json.decode(content)
        if content_type == TEXT:
            return content.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return content  # whatever a publisher signs, its readers go on
    return content


def message_of(
    found: MessageArrived | Unreadable, gap: Gap | None, progress: Progress | None
) -> Message:
    """A message for the application, which has come so far with it."""
    arrived = found.arrived if isinstance(found, Unreadable) else found
    undecryptable = found.reason if isinstance(found, Unreadable) else None
    verified = arrived.message
    if verified.content_type == ENCRYPTED and undecryptable is None:
        undecryptable = NO_KEY  # this node has no registry, and so no keys
    place = arrived.place if isinstance(arrived, FromLog) else None
    step = Step(verified.id, arrived.received_ns // MS_NS, place)
    return Message(
        verified.id,
        None if undecryptable else decode_content(verified.content_type, verified.content),
        arrived.hops,
        arrived.received_ns,
        gap,
        undecryptable,
        None if progress is None else progress.gave(step),
    )
