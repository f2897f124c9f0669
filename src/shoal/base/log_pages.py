"""What a storage node's HTTP log says to programs: both ends know it from here.

GET /streams/ID/log?format=msgpack&...    a LogRows, as msgpack
GET /streams/ID/log/heads?whole=true      a StreamHeads, as JSON
GET /streams/ID/log/seek?time=...         a Sought, as JSON
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.base.ids import Count
from shoal.base.units import MIB

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
