"""What a storage node's HTTP log says to programs: both ends know it from here.

GET /streams/ID/log?format=msgpack&...    a LogRows, as msgpack
GET /streams/ID/log/heads?whole=true      a StreamHeads, as JSON
GET /streams/ID/log/seek?time=...         a Sought, as JSON
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from shoal.base.errors import MalformedMessage
from shoal.base.ids import Count
from shoal.base.units import KIB, MIB

PAGE_BYTES_MAX = 4 * MIB
"""Signed bytes in one page, and one message more: what a reader holds at once."""

PAGE_ROWS_MAX = 10_000

T = TypeVar("T")

LOG_MEDIA_TYPE = "application/vnd.shoal.log+msgpack"


class LogRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as its publisher signed it, and when it came in."""

    seq: Count
    ingest_ns: Count
    signed: bytes


class LogRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a log after some seq."""

    log: UUID
    first: Count
    last: Count
    """What the server has of this log."""
    through: Count
    """Go on after this seq: above the last row's where rows were left out."""
    rows: list[LogRow]
    damaged: list[Count] = []
    """Rows up to `through` that the server cannot read; another one may have them."""


class HeldLog(msgspec.Struct, frozen=True):
    """What a server has of one log at one partition: nothing if first is last + 1."""

    log: UUID
    first: Count
    last: Count


class UnheardNode(msgspec.Struct, frozen=True):
    """Another storage node of a stream, which may have messages that a server lacks."""

    node: str
    """Its address."""
    until_ms: Count
    """When the two were last compared; 0 if they never were."""
    whole_until_ms: Count
    """What it has with timestamps up to this is at the server, too."""


class StreamHeads(msgspec.Struct, frozen=True):
    """What a server has of a stream."""

    node: str
    """Its address, for people."""
    own: UUID
    """The log that grows there."""
    kept: bool
    """Whether it keeps this stream, or ever had a message of it."""
    known: bool
    """Whether there is such a stream as far as it knows: it ever had a message of it, or the
    network file or the registry names it. A node that keeps any stream keeps misspelt ones, too."""
    partitions: dict[int, list[HeldLog]]
    """By partition, those that ever had a message."""
    unheard: list[UnheardNode] = []
    """Asked with whole=true: storage nodes that could not be compared with for this answer. If
    there are none, the own log has every message that was acknowledged before the question."""


class Sought(msgspec.Struct, frozen=True):
    """Where a time is in a log."""

    log: UUID
    seq: Count
    """The first that came in then or later; the next to be given if there is none yet."""
    last: Count


_encoder = msgspec.msgpack.Encoder()
_rows_decoder = msgspec.msgpack.Decoder(LogRows)
_heads_decoder = msgspec.json.Decoder(StreamHeads)
_sought_decoder = msgspec.json.Decoder(Sought)


def encode_rows(rows: LogRows) -> bytes:
    """A page as it travels."""
    return _encoder.encode(rows)


def decode_rows(raw: bytes) -> LogRows:
    """A page from a server; MalformedMessage if it is none."""
    return _decoded("page of a log", _rows_decoder.decode, raw)


def decode_heads(raw: bytes) -> StreamHeads:
    """What a server says it has; MalformedMessage if it says nothing."""
    return _decoded("heads of a stream", _heads_decoder.decode, raw)


def decode_sought(raw: bytes) -> Sought:
    """Where a server says that a time is; MalformedMessage if it says nothing."""
    return _decoded("place in a log", _sought_decoder.decode, raw)


def _decoded(what: str, decode: Callable[[bytes], T], raw: bytes) -> T:
    try:
        return decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no {what}: {error}") from error


# What the tasks and drivers of Spark queries say to a node's outbox, over HTTP.
#
# Chunks of rows travel as msgpack, the rest as JSON. Both ends check it by these classes.


CHUNK_ROWS_MAX = 500
"""Half of what a node holds unverified of one neighbour: it must not drop what comes in one go."""
CHUNK_BYTES = 256 * KIB
"""A chunk with so many bytes of values is full; one row more may be in it, of any size."""
BODY_BYTES_MAX = 1024 * KIB
"""A full chunk, the largest row, keys, and the rest."""
ATTEMPTS_MAX = 100_000
"""Tasks of one batch."""
SEAL_BYTES_MAX = 8 * 1024 * KIB

SOURCE_CHARS_MAX = 16 * KIB
"""Source offsets of one batch. Longer ones are given as their digest: they can be compared, and are
not shown to people."""
DIGEST_CHARS_MAX = 64

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Small = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Row = tuple[Annotated[int, Meta(ge=0, le=255)], int | None, str | None, bytes]
"""Content type, partition of the stream, key, content."""


class EpochRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of a query begins, or one of its tasks does."""

    query: Name
    run: Name
    stream: str
    once: bool = False


class StageRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Some rows of a task."""

    stream: str
    query: Name
    epoch: Small
    batch: Count
    partition: Small
    attempt: Count
    chunk: Small
    rows: Annotated[list[Row], Meta(max_length=CHUNK_ROWS_MAX)]


class SealedAttempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attempt of a task that counts."""

    partition: Small
    attempt: Count
    chunks: Small


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a batch is made of, to tell a replay from another batch with the same number."""

    rows: Count = 0
    digest: Annotated[str, Meta(max_length=DIGEST_CHARS_MAX)] = ""
    """Of all rows, in whatever order tasks have them."""
    plan: Annotated[str, Meta(max_length=DIGEST_CHARS_MAX)] = ""
    """Digest of Spark's own plan of the batch, which is in its checkpoint; empty if the sink
    cannot read that."""
    source: Annotated[str, Meta(max_length=SOURCE_CHARS_MAX)] = ""
    """The source offsets where the batch ends, one line for each source; empty as above."""

    def is_same_plan(self, other: Fingerprint) -> bool:
        """Whether Spark planned the batch once, and runs it again."""
        return bool(self.plan) and self.plan == other.plan

    def has_same_rows(self, other: Fingerprint) -> bool:
        """Whether all rows are the same."""
        return (self.rows, self.digest) == (other.rows, other.digest)

    def is_replay_of(self, other: Fingerprint) -> bool:
        """Whether this is the same batch: Spark's own replay of it, or the same rows from source
        offsets that are not known to be others."""
        same_source = not (self.source and other.source) or self.source == other.source
        return self.is_same_plan(other) or (self.has_same_rows(other) and same_source)


class SealRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These attempts are the batch."""

    query: Name
    epoch: Small
    batch: Count
    attempts: Annotated[list[SealedAttempt], Meta(max_length=ATTEMPTS_MAX)]
    fingerprint: Fingerprint


class DiscardRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The batch was given up, or one attempt of one of its tasks."""

    query: Name
    epoch: Small
    batch: Count
    partition: Small | None = None
    attempt: Count | None = None
