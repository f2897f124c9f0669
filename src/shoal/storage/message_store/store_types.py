"""What a store takes and gives."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

import msgspec

from shoal.base.ids import MessageId, StreamId
from shoal.protocols.streams.signed_message import VerifiedMessage

LogId: TypeAlias = UUID
"""Names a log at all its places; born with a database."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """A message as it is kept. Seq and ingest time are those of the log that was read: of the own
    one for reads by position."""

    id: MessageId
    seq: int
    ingest_ns: int
    signed: bytes
    """Signature and body as they came."""


# Appending


class Stored(msgspec.Struct, frozen=True, gc=False):
    """New here, and durable: this is its seq in the own log."""

    seq: int


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """Held already, with the same body."""

    seq: int


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """Equivocation: its publisher signed two bodies for one id. The first one stays."""

    seq: int
    held: bytes
    offered: bytes


Appended: TypeAlias = Stored | Duplicate | Conflict


# Replicas


class ReplicaRow(msgspec.Struct, frozen=True, gc=False):
    """A row of another node's log. The message may be left out if it is held here with the same
    body: `lacking` says so beforehand."""

    seq: int
    ingest_ns: int
    id: MessageId
    message: VerifiedMessage | None = None
    lost: bool = False
    """The log's owner cannot read it any more: it is kept as a row without a message, unless one
    comes."""


class ReplicaAppended(msgspec.Struct, frozen=True, gc=False):
    """What became of a range of a replica."""

    appended: int
    """Rows that the replica did not have."""
    stored: int
    """Messages that were new here, and got a seq in the own log too."""
    conflicts: tuple[Conflict, ...]


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Another store holds this message; the digest tells whether its body is ours."""

    id: MessageId
    digest: bytes


# Logs


class LogHead(msgspec.Struct, frozen=True, gc=False):
    """What is available of a log at one place: nothing if first is last + 1."""

    first: int
    last: int


class DamagedRow(msgspec.Struct, frozen=True, gc=False):
    """A row that is not as it was written, or not there."""

    seq: int
    ingest_ns: int
    id: MessageId | None
    """None if not even that is known."""
    lost: bool = False
    """Of a replica whose owner could not read it either: nothing is wrong here."""


class LogPage(msgspec.Struct, frozen=True, gc=False):
    """Rows of a log after some seq."""

    rows: list[Row]
    through: int
    """Go on after this seq. Above the last row's if rows were left out: `minus`, or a filter."""
    head: LogHead
    damaged: tuple[DamagedRow, ...] = ()
    """Rows that should be among these, and cannot be read."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A reader still needs what comes after this seq."""

    holder: str
    log: LogId
    stream: StreamId
    partition: int
    after_seq: int
    expires_ns: int


# Retention


class RetentionStep(msgspec.Struct, frozen=True, gc=False):
    """One step's work."""

    removed: int
    """Messages let go."""
    more: bool
    """Another step would do more now."""
    blocked: bool
    """Something should go, but a lease holds it."""
    size_bytes: int


class StoreInfo(msgspec.Struct, frozen=True, gc=False):
    """A store at a glance."""

    log: LogId
    messages: int
    size_bytes: int
    file_bytes: int
    streams: int
