"""Two kinds of values that need nothing but themselves to be believed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import Count, NodeId, WireNodeId
from shoal.identity import SIGNATURE_BYTES
from shoal.protocols.dht.checking import Judged
from shoal.protocols.dht.config import VALUE_BYTES_MAX
from shoal.protocols.dht.messages import Key

Sign = Callable[[bytes], bytes]


class RecordBody(msgspec.Struct, frozen=True, array_like=True, tag="shoal/dht/record/1", gc=False):
    """What a signer says under a key. The tag keeps the signature from meaning anything else."""

    key: Key
    number: Count
    payload: bytes


class SignedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record as the DHT keeps it."""

    signer: WireNodeId
    signed: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES + 1, max_length=VALUE_BYTES_MAX)]


_records = msgspec.msgpack.Decoder(SignedRecord)
_bodies = msgspec.msgpack.Decoder(RecordBody)


def content_key(value: bytes) -> bytes:
    """The key of a content-addressed value."""
    return hashlib.sha256(value).digest()


def judge_content(key: bytes, value: bytes) -> Judged | None:
    """A value whose key is its hash."""
    return Judged() if content_key(value) == key else None


def sign_record(signer: NodeId, sign: Sign, key: bytes, number: int, payload: bytes) -> bytes:
    """A record, ready to be put."""
    body = msgspec.msgpack.encode(RecordBody(key, number, payload))
    return msgspec.msgpack.encode(SignedRecord(signer, sign(body) + body))


def read_record(value: bytes) -> tuple[NodeId, RecordBody] | None:
    """Signer and body of a record, whoever really signed it; None if it is none."""
    try:
        record = _records.decode(value)
        return record.signer, _bodies.decode(record.signed[SIGNATURE_BYTES:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def judge_record(key: bytes, value: bytes) -> Judged | None:
    """A record that says which key it is for."""
    read = read_record(value)
    if read is None or read[1].key != key:
        return None
    signed = _records.decode(value).signed
    return Judged(read[0], read[1].number, signed)


def judge_any(key: bytes, value: bytes) -> Judged | None:
    """Either kind."""
    return judge_content(key, value) or judge_record(key, value)
