"""Two kinds of values that need nothing but themselves to be believed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import Count, NodeId, WireNodeId
from shoal.identity import SIGNATURE_BYTES
from shoal.kernel.effects import Effect, Verify
from shoal.kernel.inputs import Verified
from shoal.protocols.dht.config import VALUE_BYTES_MAX, DhtConfig
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


# Values are checked before they are kept, passed on or returned: nobody's word is taken.
#
# A judge looks at a key and a value. For a content-addressed one that is all; of a signed record it
# names signer, number and what was signed, and the signature is checked off the machine.


REMEMBERED_MAX = 4096  # good signatures: replicas bring the same record again and again


class Judged(msgspec.Struct, frozen=True, gc=False):
    """What a valid value is."""

    signer: NodeId | None = None
    """Whose record it is; nobody's, if the key is made from the value."""
    number: int = 0
    """Of one signer's records of a key, the highest wins."""
    signed: bytes = b""
    """The signature, and behind it the body; if there is a signer."""


Judge = Callable[[bytes, bytes], Judged | None]
"""Says what a value under a key is; None if it does not belong there. Never raises."""

Checked = Callable[[Judged | None, int], list[Effect]]


class Checking:
    """The checks under way."""

    def __init__(self, judge: Judge, config: DhtConfig) -> None:
        self._judge = judge
        self._config = config
        self._token = 0
        self._waiting: dict[int, tuple[bytes, Judged, Checked]] = {}
        self._good: dict[bytes, None] = {}

    @property
    def busy(self) -> bool:
        """Whether no more checks should begin."""
        return len(self._waiting) >= self._config.checks_max

    def check(self, key: bytes, value: bytes, then: Checked, now_ns: int) -> list[Effect]:
        """Find out what a value is; `then` may be called at once."""
        judged = self._judge(key, value)
        if judged is None or judged.signer is None:
            return then(judged, now_ns)
        digest = hashlib.sha256(judged.signer + judged.signed).digest()
        if digest in self._good:
            return then(judged, now_ns)
        self._token += 1
        self._waiting[self._token] = (digest, judged, then)
        return [Verify(judged.signer, judged.signed, self._token)]

    def verified(self, event: Verified, now_ns: int) -> list[Effect]:
        """A signature was checked."""
        token = event.token
        assert isinstance(token, int)
        digest, judged, then = self._waiting.pop(token)
        if not event.valid:
            return then(None, now_ns)
        self._good[digest] = None
        if len(self._good) > REMEMBERED_MAX:
            del self._good[next(iter(self._good))]
        return then(judged, now_ns)
