"""What the machines of a storage node ask of their disk, as the bytes of Store and Load.

A Load's key is a question, encoded as on a wire; its value is the encoded answer. So the disk
answers what peers ask, and machines only pass it on; an answer that is a question again is asked
next. A Store's key names a message or a replica of
a log; its value is the message, or what is to be appended to the replica.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.base.ids import ChainName, Count, MessageId, Partition, WireNodeId, WireStreamId
from shoal.protocols.streams.history.messages import (
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    Counted,
    CountKept,
    Cursor,
    Heads,
    LogId,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    RowName,
    Rows,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
    TellStreams,
)


class Lacking(msgspec.Struct, frozen=True, array_like=True, tag=40, gc=False):
    """Asked by the own node: the messages of which of these rows are not held, or differ?"""

    stream: WireStreamId
    partition: Partition
    rows: tuple[RowName, ...]


class Lacks(msgspec.Struct, frozen=True, array_like=True, tag=41, gc=False):
    """The answer: the seqs of those rows."""

    seqs: tuple[int, ...]


class Retain(msgspec.Struct, frozen=True, array_like=True, tag=42, gc=False):
    """Asked by the own node: let go of what is too old or too much, one step of it."""


class Retained(msgspec.Struct, frozen=True, array_like=True, tag=43, gc=False):
    """The answer: so many messages are gone, and whether another step would do more."""

    removed: int
    more: bool


class FindCompared(msgspec.Struct, frozen=True, array_like=True, tag=60, gc=False):
    """Asked by the own node: what was noted of the comparisons with a peer?"""

    node: WireNodeId


class Compared(msgspec.Struct, frozen=True, array_like=True, tag=61, gc=False):
    """The answer, and what is stored: streams by the time of day at which they were compared."""

    at_ns: tuple[tuple[Count, tuple[WireStreamId, ...]], ...] = ()


class FindGranted(msgspec.Struct, frozen=True, array_like=True, tag=62, gc=False):
    """Asked by the own node: up to when may a peer speak for our log, at most?"""

    node: WireNodeId


class Granted(msgspec.Struct, frozen=True, array_like=True, tag=63, gc=False):
    """The answer, and what is stored; None if it was not noted for this log."""

    until_ms: Count | None = None


class FindLast(msgspec.Struct, frozen=True, array_like=True, tag=44, gc=False):
    """A ReadLast that goes on: so many are still to be found, before this place. One question is
    looked into for one transaction at a time, so that others have their turn."""

    question: ReadLast
    left: int
    before: Cursor
    steps: int
    """How many transactions it has had."""


class FindMissing(msgspec.Struct, frozen=True, array_like=True, tag=45, gc=False):
    """Asked by the own node: which of these messages are not held, though retention has not let go
    of them?"""

    ids: tuple[MessageId, ...]


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=46, gc=False):
    """The answer: their places among those that were asked for."""

    at: tuple[int, ...]


class FindDamaged(msgspec.Struct, frozen=True, array_like=True, tag=47, gc=False):
    """Asked by the own node: rows of the own log that cannot be read, to be asked for elsewhere.
    Each time others are told, as long as there are others."""


class DamagedRows(msgspec.Struct, frozen=True, array_like=True, tag=48, gc=False):
    """The answer: rows of one place, or none."""

    stream: WireStreamId
    partition: Partition
    log: LogId
    seqs: tuple[int, ...]


DiskQuestion: TypeAlias = (
    ReadRange
    | ReadLast
    | ReadLog
    | ReadHeads
    | CountKept
    | AskHeads
    | AskRows
    | AskMessages
    | AskStreams
    | Lacking
    | Retain
    | FindLast
    | FindCompared
    | FindGranted
    | FindMissing
    | FindDamaged
)
DiskAnswer: TypeAlias = (
    Rows
    | LogRows
    | Heads
    | Counted
    | Refused
    | TellHeads
    | TellRows
    | TellMessages
    | TellStreams
    | SyncRefused
    | Lacks
    | Retained
    | FindLast
    | Compared
    | Granted
    | Missing
    | DamagedRows
    | None
)


# Stores


class MessageKey(msgspec.Struct, frozen=True, array_like=True, tag=50, gc=False):
    """The value is the signed message with this id, its signature checked."""

    id: MessageId


class ReplicaKey(msgspec.Struct, frozen=True, array_like=True, tag=51, gc=False):
    """The value is a ReplicaChange of this log at this place."""

    stream: WireStreamId
    partition: Partition
    log: LogId


class MendKey(msgspec.Struct, frozen=True, array_like=True, tag=52, gc=False):
    """The value is the signed message that a copy of our log has at this seq: the own row is
    damaged."""

    stream: WireStreamId
    partition: Partition
    seq: Count


class ComparedKey(msgspec.Struct, frozen=True, array_like=True, tag=53, gc=False):
    """The value is a Compared: what is noted of the comparisons with this peer."""

    node: WireNodeId


class GrantedKey(msgspec.Struct, frozen=True, array_like=True, tag=54, gc=False):
    """The value is a Granted: up to when this peer may speak for our log, at most."""

    node: WireNodeId


class KeptRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of another node's log; without its message if that is held."""

    seq: Count
    ingest_ns: Count
    timestamp_ms: Count
    sequence: Count
    publisher: WireNodeId
    chain: ChainName
    signed: bytes | None
    lost: bool = False
    """The peer has no message for it any more, and we have none."""


class ReplicaChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows to append; the log has nothing before them that is not held, or ever will be, if
    `advance`."""

    rows: tuple[KeptRow, ...]
    advance: bool


DISK_BEHIND = "disk-behind"
DISK_FAILED = "failed"
STORE_GONE = "store-gone"  # deleted, or not mounted
CONFLICT = "conflict"
DIVERGED = "log-diverged"
MALFORMED = "malformed"
NOT_HELD = "not-held"

_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[DiskQuestion] = msgspec.msgpack.Decoder(DiskQuestion)
_answers: msgspec.msgpack.Decoder[DiskAnswer] = msgspec.msgpack.Decoder(DiskAnswer)
_DiskKey: TypeAlias = MessageKey | ReplicaKey | MendKey | ComparedKey | GrantedKey
_keys: msgspec.msgpack.Decoder[_DiskKey] = msgspec.msgpack.Decoder(_DiskKey)
_changes = msgspec.msgpack.Decoder(ReplicaChange)

encode = _encoder.encode
decode_question = _questions.decode
decode_answer = _answers.decode
decode_key = _keys.decode
decode_change = _changes.decode
