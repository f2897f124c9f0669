"""A session is one run of a node. Its record is signed, so that two runs under one key that exist
at the same time can be told apart, and put in order, by those who see both.

The number of a session is made of the time of its start in milliseconds and of random bits. It is
above every number that this copy of the node's folder has used or seen before, also if the clock
was set back meanwhile (node/session_file.py).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import MalformedMessage
from shoal.base.ids import NodeId
from shoal.identity.entropy import Entropy
from shoal.identity.keys import PrivateKey
from shoal.identity.signatures import SIGNATURE_BYTES, verify

SESSION_TAG = b"shoal/session/1\0"
RANDOM_BITS = 20
"""Two copies that start in the same millisecond, or that go on from the same number behind a clock
that was set back, differ by these."""
NUMBER_MAX = (1 << 63) - 1


class SessionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node says of its present run."""

    number: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
    """Grows with each start; 0 if the node does not say."""
    signature: Annotated[bytes, Meta(max_length=SIGNATURE_BYTES)] = b""
    """Of the number, by the node's key."""

    def is_signed_by(self, node: NodeId) -> bool:
        """Whether this node's key says so."""
        return verify(node, _signed(self.number), self.signature)


NO_SESSION = SessionRecord(0)
"""Of a peer that does not say: all its links count as those of one session."""


def begin_session(key: PrivateKey, entropy: Entropy, now_ms: int, above: int = 0) -> SessionRecord:
    """The record of a run that begins now, above a number that was used or seen before."""
    begun_ms = max(now_ms, (above >> RANDOM_BITS) + 1)
    random = int.from_bytes(entropy.token(4)) >> (32 - RANDOM_BITS)
    number = (begun_ms << RANDOM_BITS) | random
    return SessionRecord(number, key.sign(_signed(number)))


def encode_session(record: SessionRecord) -> bytes:
    """For a peer."""
    return _encoder.encode(record)


def decode_session(payload: bytes) -> SessionRecord:
    """What a peer sent, MalformedMessage if it is no record; its signature is not checked."""
    try:
        record = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise MalformedMessage(f"no session record: {error}") from error
    if not record.number or len(record.signature) != SIGNATURE_BYTES:
        raise MalformedMessage("a session record without a number or a signature")
    return record


def _signed(number: int) -> bytes:
    return SESSION_TAG + number.to_bytes(8)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SessionRecord)
