"""The on-disk format: tables, keys and values.

All numbers are big-endian, so that keys sort as the numbers do. A place (stream, partition) is 5
bytes: the stream's number in this database, and the partition. Stream ids have up to 1,024 bytes
and lmdb's keys at most 511: hence the numbers, which are given once and never reused.

A tail is a message id inside its place: timestamp, sequence, publisher, chain. The chain comes
last, so it needs no length, and its UTF-8 sorts as its code points do.

    table            key                        value
    meta             "format" | "log"           the format's number | the own log's UUID
                     "forgotten"                the highest own seq, and the highest number, of
                                                streams that are forgotten
                     "note ", name              CRC-32, what a machine noted beside the messages
    stream_names     stream number              stream id
    stream_numbers   SHA-256 of a stream id     stream number
    log_ids          log number                 UUID of a log; number 0 is the own log
    log_numbers      UUID of a log              log number
    messages         place, tail                own seq, ingest time, CRC-32, signed bytes
    entries          log number, place, seq     ingest time in that log, 1 variant, 2 lost, tail
    variants         log number, place, seq     CRC-32, signed bytes; if other than in `messages`
    heads            place, log number          first seq available, last seq given, newest ingest
                                                time, horizon
    holders          place, tail                (log number, seq) of each replica that has it
    leases           place, log number, holder  after seq, expiry
    closed           place, log number          last shared seq, time of closing

A log is *closed* when this store goes on under a new log id (logs.py): the rows that it had are
those of the own log, up to the last shared seq, and are there once.

The longest key is a lease's: 5 + 4 + 4 * 64 bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple, NewType

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import CHAIN_CHARS_MAX, NODE_ID_BYTES, MessageId, NodeId, StreamId
from shoal.storage.lmdb_file import Table

STORE_FORMAT = 2  # grows when a table changes its meaning; any other format is refused

LOG = b"log"  # in `meta`
OWN = 0  # the number of the own log

Place = NewType("Place", bytes)
Tail = NewType("Tail", bytes)

_NUMBER = struct.Struct(">I")
_PLACE = struct.Struct(">IB")
_TAIL = struct.Struct(f">QQ{NODE_ID_BYTES}s")
_MESSAGE = struct.Struct(">QQI")
_SEQ_AND_INGEST = struct.Struct(">QQ")
_ENTRY_KEY = struct.Struct(">I5sQ")
_ENTRY = struct.Struct(">QB")
_HEAD_KEY = struct.Struct(">5sI")
_HEAD = struct.Struct(">QQQQ")
_HOLDER = struct.Struct(">IQ")
_CRC = struct.Struct(">I")
_LEASE = struct.Struct(">QQ")
_CLOSED = struct.Struct(">QQ")

PLACE_BYTES = _PLACE.size
HEAD_KEY_BYTES = _HEAD_KEY.size
_VARIANT, _LOST = 1, 2  # kinds of rows in `entries`
_ENTRY_BYTES, _TAIL_BYTES = _ENTRY.size, _TAIL.size
SEQ_BYTES = 8  # at the end of a row's key
_MESSAGE_HEAD_BYTES = _MESSAGE.size
_CHAIN_BYTES_MAX = 4 * CHAIN_CHARS_MAX
_PUBLISHER = slice(PLACE_BYTES + 16, PLACE_BYTES + _TAIL.size)
_CHAIN = slice(PLACE_BYTES + _TAIL.size, None)


class Tables(NamedTuple):
    """Handles of the tables, named as in the file."""

    meta: Table
    stream_names: Table
    stream_numbers: Table
    log_ids: Table
    log_numbers: Table
    messages: Table
    entries: Table
    variants: Table
    heads: Table
    holders: Table  # the only one with several values under a key
    leases: Table
    closed: Table


# Places and ids


def number_bytes(number: int) -> bytes:
    """A stream's or log's number, as key or value."""
    return _NUMBER.pack(number)


def number_of(raw: bytes) -> int:
    """And back."""
    number: int = _NUMBER.unpack(raw)[0]
    return number


def place_of(stream_number: int, partition: int) -> Place:
    """The place of a (stream, partition)."""
    return Place(_PLACE.pack(stream_number, partition))


def split_place(place: bytes) -> tuple[int, int]:
    """Stream number and partition."""
    number, partition = _PLACE.unpack(place)
    return number, partition


def tail_of(id: MessageId) -> Tail:
    """The id inside its place; UsageError if it is none that a wire could have brought."""
    chain = id.chain.encode()
    if len(chain) > _CHAIN_BYTES_MAX or len(id.publisher) != NODE_ID_BYTES:
        raise UsageError(f"{id} is no message id: its chain or its publisher is too long")
    try:
        return Tail(_TAIL.pack(id.timestamp_ms, id.sequence, id.publisher) + chain)
    except struct.error:
        raise UsageError(f"{id} is no message id: its numbers are out of range") from None


def id_of(stream: StreamId, partition: int, tail: bytes) -> MessageId:
    """The full id again; of a tail that is damaged it is an id that nobody has."""
    publisher: NodeId  # a call for each row of a scan would cost more than what it is for
    timestamp_ms, sequence, publisher = _TAIL.unpack_from(tail)
    try:
        chain = tail[_TAIL_BYTES:].decode()
    except UnicodeDecodeError:
        chain = tail[_TAIL_BYTES:].decode(errors="replace")
    return MessageId(stream, partition, timestamp_ms, sequence, publisher, chain)


def timestamp_of(tail: bytes) -> int:
    """Milliseconds: the first eight bytes."""
    return int.from_bytes(tail[:8])


def publisher_of(message_key: bytes) -> bytes:
    """Of a key in `messages`."""
    return message_key[_PUBLISHER]


def chain_of(message_key: bytes) -> bytes:
    """Of a key in `messages`, in UTF-8."""
    return message_key[_CHAIN]


def position_key(place: Place, timestamp_ms: int, sequence: int) -> bytes:
    """Sorts before every message at this position, and after all earlier ones."""
    return place + _SEQ_AND_INGEST.pack(timestamp_ms, sequence)


def end_of(place: Place) -> bytes:
    """The lowest key above all that begin with this place."""
    return (int.from_bytes(place) + 1).to_bytes(PLACE_BYTES)


# Messages


class Rotten(Exception):
    """A message that is not what was written, or not there; the database says in which file."""

    def __init__(self, key: bytes) -> None:
        timestamp_ms, sequence, publisher = _TAIL.unpack_from(key, PLACE_BYTES)
        super().__init__(f"({timestamp_ms}, {sequence}) of 0x{publisher.hex()}")


class Message(msgspec.Struct, frozen=True, gc=False):
    """A value in `messages`."""

    seq: int
    ingest_ns: int
    signed: bytes


def message_value(key: bytes, seq: int, ingest_ns: int, signed: bytes) -> bytes:
    """The CRC also covers the key: bytes that rotted are ours to find, or their receiver would
    take them for a forgery."""
    crc = zlib.crc32(signed, zlib.crc32(key + _SEQ_AND_INGEST.pack(seq, ingest_ns)))
    return _MESSAGE.pack(seq, ingest_ns, crc) + signed


def read_header(value: bytes) -> tuple[int, int] | None:
    """Own seq and ingest time, as far as the bytes are there; nothing says that they are right."""
    if len(value) < _MESSAGE_HEAD_BYTES:
        return None
    seq, ingest_ns, _ = _MESSAGE.unpack_from(value)
    return seq, ingest_ns


def read_message(key: bytes, value: bytes | None) -> Message:
    """The message, or Rotten if its bytes are not those that were written."""
    if value is None or len(value) < _MESSAGE_HEAD_BYTES:
        raise Rotten(key)
    seq, ingest_ns, crc = _MESSAGE.unpack_from(value)
    signed = value[_MESSAGE_HEAD_BYTES:]
    if zlib.crc32(signed, zlib.crc32(key + value[:16])) != crc:
        raise Rotten(key)
    return Message(seq, ingest_ns, signed)


# Logs


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A value in `entries`."""

    ingest_ns: int
    variant: bool
    """The bytes of this row are in `variants`: the log's owner holds another content."""
    tail: Tail
    lost: bool = False
    """The log's owner could not read it, so it may not be in `messages`."""


class Head(NamedTuple):
    """A value in `heads`: what is available of one log at one place."""

    first: int = 1
    last: int = 0
    ingest_ns: int = 0
    horizon_ms: int = 0
    """Own log only: retention removed nothing at this message time or later."""


def entry_key(log: int, place: Place, seq: int) -> bytes:
    """Where a log's row is."""
    return _ENTRY_KEY.pack(log, place, seq)


def seq_of(key: bytes) -> int:
    """Of a key in `entries`."""
    return int.from_bytes(key[-SEQ_BYTES:])


def entry_value(ingest_ns: int, variant: bool, tail: bytes, *, lost: bool = False) -> bytes:
    """What a log's row says."""
    return _ENTRY.pack(ingest_ns, _LOST if lost else variant) + tail


def read_entry(value: bytes) -> Entry:
    """And back."""
    ingest_ns, kind = _ENTRY.unpack_from(value)
    tail: Tail = value[_ENTRY_BYTES:]  # type: ignore[assignment]  # a call for each row of a scan
    return (
        Entry(ingest_ns, kind == _VARIANT, tail, kind == _LOST)
        if kind
        else Entry(ingest_ns, False, tail)
    )


def variant_value(signed: bytes) -> bytes:
    """Bytes that a replica has for itself."""
    return _CRC.pack(zlib.crc32(signed)) + signed


def read_variant(value: bytes | None) -> bytes | None:
    """And back; None if they are not what was written."""
    if value is None or len(value) < _CRC.size:
        return None
    signed = value[_CRC.size :]
    return signed if variant_value(signed) == value else None


def head_key(place: Place, log: int) -> bytes:
    """Where a log's head is."""
    return _HEAD_KEY.pack(place, log)


def split_head_key(key: bytes) -> tuple[Place, int]:
    """Place and log number."""
    place, log = _HEAD_KEY.unpack(key)
    return Place(place), log


def read_head(value: bytes | None) -> Head:
    """The head; of a log that has no row yet if there is none."""
    return Head() if value is None else Head(*_HEAD.unpack(value))


def head_value(head: Head) -> bytes:
    """And back."""
    return _HEAD.pack(*head)


def holder_value(log: int, seq: int) -> bytes:
    """A replica that has a message."""
    return _HOLDER.pack(log, seq)


def read_holder(value: bytes) -> tuple[int, int]:
    """Log number and seq."""
    log, seq = _HOLDER.unpack(value)
    return log, seq


# Leases


def lease_value(after_seq: int, expires_ns: int) -> bytes:
    """A reader still needs what comes after this seq."""
    return _LEASE.pack(after_seq, expires_ns)


def read_lease(value: bytes) -> tuple[int, int]:
    """After seq, and expiry."""
    after_seq, expires_ns = _LEASE.unpack(value)
    return after_seq, expires_ns


# Closed logs


def closed_value(last: int, until_ns: int) -> bytes:
    """A log that was the own one: its rows up to `last` are those of the own log, in which they
    came in at `until_ns` at the latest."""
    return _CLOSED.pack(last, until_ns)


def read_closed(value: bytes) -> tuple[int, int]:
    """Last shared seq, and time of closing."""
    last, until_ns = _CLOSED.unpack(value)
    return last, until_ns
