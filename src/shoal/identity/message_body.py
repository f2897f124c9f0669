"""A stream's message as its publisher signs it: signature, then the encoded body.

Whoever keeps, forwards or computes on messages can check them by these bytes alone, so they are
known down here: to the protocol, to storage, and to executors of the pipeline, which have no more
of Shoal than this.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import MalformedMessage
from shoal.base.ids import Count, MessageId
from shoal.base.units import KIB
from shoal.identity.signatures import SIGNATURE_BYTES

CONTENT_BYTES_MAX = 512 * KIB  # one message must not stall a link for long

# What the content is, as its publisher says; other numbers are for applications.
JSON = 0
BINARY = 1
TEXT = 2
KEYS = 254  # group keys of the publisher, wrapped for those who may read (identity/wrapped_key.py)
ENCRYPTED = 255  # what it is, is inside (identity/group_key.py)


class Position(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    order=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """Where a message stands in its chain."""

    timestamp_ms: Count
    sequence: Count


class Body(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    tag="shoal/stream/1",
    forbid_unknown_fields=True,
    gc=False,
):
    """What a publisher signs. The tag keeps the signature from meaning anything elsewhere, and
    there is nothing in it that one hop reads and another does not."""

    id: MessageId
    previous: Position | None
    content_type: Annotated[int, Meta(ge=0, le=255)]
    content: Annotated[bytes, Meta(max_length=CONTENT_BYTES_MAX)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Body)


def encode_body(body: Body) -> bytes:
    """The bytes that a publisher signs."""
    return _encoder.encode(body)


def split_signed(signed: bytes) -> tuple[bytes, bytes]:
    """Signature and body of signed bytes."""
    return signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]


def decode_body(signed: bytes) -> Body:
    """What the publisher says, not yet believed; MalformedMessage if it says nothing."""
    try:
        return _decoder.decode(memoryview(signed)[SIGNATURE_BYTES:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(str(error)) from error
