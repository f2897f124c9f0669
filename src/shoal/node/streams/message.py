"""What an application publishes and gets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.base.offsets import PartitionOffset
from shoal.base.units import MS_NS
from shoal.identity.message_body import BINARY, ENCRYPTED, JSON, TEXT
from shoal.node.streams.reader_offsets import Mark, Progress, Step
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


# Which partition of a stream a message goes to.
#
# A stream has as many partitions as its settings say, one unless told otherwise. Order is kept per
# chain, and a chain is one publisher process in one partition: whatever must stay in order needs
# the same partition, and so the same key.
#
# The partition of a key is SHA-256 over the key, its first 8 bytes as a big-endian number, modulo
# the stream's partitions. Text counts as its UTF-8 bytes, a whole number as its decimal digits, so
# 12 and "12" are the same key. It is the same in every process and every version: a test pins it.


Key = str | bytes | int


def partition_of(key: Key, partitions: int) -> int:
    """The partition that a key always goes to, while the stream has so many."""
    digest = hashlib.sha256(_key_bytes(key)).digest()
    return int.from_bytes(digest[:8], "big") % partitions


class Partitions:
    """The partitions of a node's streams, and whose turn it is in each."""

    def __init__(self, count: Callable[[StreamId], int]) -> None:
        """Count says how many a stream has."""
        self.count = count
        self._turns: dict[StreamId, int] = {}

    def choose(self, stream: StreamId, key: Key | None, partition: int | None) -> int:
        """The one that was asked for, else that of the key, else the next in turn."""
        count = self.count(stream)
        if partition is not None:
            if key is not None:
                raise UsageError("both a key and a partition: give one, the key chooses for itself")
            return self._checked(stream, partition)
        if key is not None:
            return partition_of(key, count)
        if count == 1:
            return 0
        turn = self._turns.get(stream, 0)
        self._turns[stream] = (turn + 1) % count
        return turn

    def chosen(
        self, stream: StreamId, partitions: Iterable[int] | int | None
    ) -> frozenset[int] | None:
        """Those that a subscriber wants; None for all."""
        if partitions is None:
            return None
        if isinstance(partitions, int):
            partitions = (partitions,)
        wanted = frozenset([self._checked(stream, partition) for partition in partitions])
        if not wanted:
            raise UsageError("no partitions: name at least one, or leave it out for all")
        return wanted

    def _checked(self, stream: StreamId, partition: int) -> int:
        count = self.count(stream)
        if type(partition) is not int or not 0 <= partition < count:
            has = "one partition, 0" if count == 1 else f"partitions 0..{count - 1}"
            raise UsageError(
                f"partition {partition!r}: {stream} has {has}; "
                "more are set by its owner: `shoal stream edit`, or [[streams]] of the network file"
            )
        return partition


def _key_bytes(key: Key) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"key {key!r} is no text ({error.reason}): give bytes") from error
    raise UsageError(f"key {key!r}: give a str, bytes or a whole number")
