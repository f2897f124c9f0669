"""A publisher's group key of one stream: what it seals messages with, for those who may read them.

Content that is sealed: key id (16) || counter (8) || ciphertext || tag (16). The plaintext is one
byte, what the content is, and the content. The nonce is the counter; the associated data is the
message's id: a body opens in its own place only.

A key belongs to one process: a publisher makes a new one whenever it starts, so a counter is
enough for nonces never to repeat. (What an outbox publishes has to come out the same after a crash:
its keys are derived, one for each run of messages whose places are fixed on disk.)

The id of a key is a hash over stream, publisher and key. So whoever is given a key knows whether it
is the right one, and AES-GCM, for which a text may be made that opens under two keys, cannot show
two readers two things.
"""

from __future__ import annotations

import hashlib
from typing import NoReturn, Self, SupportsIndex

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.base.errors import DecryptionFailed, IdentityError, UsageError
from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.identity.entropy import Entropy
from shoal.identity.keys import PrivateKey
from shoal.identity.stream_message import CONTENT_BYTES_MAX, ENCRYPTED

GROUP_KEY_BYTES = 32
KEY_ID_BYTES = 16
COUNTER_BYTES = 8
TAG_BYTES = 16
SEALED_OVERHEAD_BYTES = KEY_ID_BYTES + COUNTER_BYTES + 1 + TAG_BYTES

_HEAD_BYTES = KEY_ID_BYTES + COUNTER_BYTES
_NONCE_FRONT = bytes(4)  # a nonce has 12 bytes

_encode = msgspec.msgpack.Encoder().encode


class GroupKey:
    """One key of one publisher in one stream; opens what was sealed with it."""

    __slots__ = ("_aead", "_secret", "id", "publisher", "stream")

    def __init__(self, stream: StreamId, publisher: NodeId, secret: bytes) -> None:
        """Take a 32-byte key; IdentityError for any other length."""
        if len(secret) != GROUP_KEY_BYTES:
            raise IdentityError(f"a group key has {GROUP_KEY_BYTES} bytes, this has {len(secret)}")
        self.stream = stream
        self.publisher = publisher
        self.id = hashlib.sha256(
            b"shoal group key 1\0" + publisher + stream.encode() + secret
        ).digest()[:KEY_ID_BYTES]
        self._secret = secret
        self._aead = AESGCM(secret)

    @classmethod
    def generate(cls, stream: StreamId, publisher: NodeId, entropy: Entropy) -> Self:
        """A new key from the entropy port."""
        return cls(stream, publisher, entropy.token(GROUP_KEY_BYTES))

    @classmethod
    def derived(cls, owner: PrivateKey, first: MessageId) -> Self:
        """The key of a run of messages that is sealed the same whenever it is done: an outbox's.
        Each run has one of its own, by the id of its first message, and counts from 0 on."""
        info = b"shoal derived key 1\0" + _encode(first)
        hkdf = HKDF(hashes.SHA256(), GROUP_KEY_BYTES, None, info)
        return cls(first.stream, owner.address, hkdf.derive(owner.secret_bytes()))

    def open(self, id: MessageId, sealed: bytes) -> tuple[int, bytes]:
        """What the content is, and the content; DecryptionFailed if key, bytes or id differ."""
        if sealed_with(sealed) != self.id:
            raise DecryptionFailed("sealed with another key")
        nonce = _NONCE_FRONT + sealed[KEY_ID_BYTES:_HEAD_BYTES]
        try:
            plain = self._aead.decrypt(nonce, sealed[_HEAD_BYTES:], _encode(id))
        except InvalidTag:
            raise DecryptionFailed("the sealed content, or its place, was changed") from None
        if not plain:
            raise DecryptionFailed("the sealed content does not say what it is")
        return plain[0], plain[1:]

    def secret_bytes(self) -> bytes:
        """The key itself, to be wrapped or kept: keep it out of logs, messages and errors."""
        return self._secret

    def seal_at(self, counter: int, id: MessageId, content_type: int, content: bytes) -> bytes:
        """Seal under a counter; it must never come twice. Sealer counts."""
        count = counter.to_bytes(COUNTER_BYTES, "big")
        plain = bytes((content_type,)) + content
        return self.id + count + self._aead.encrypt(_NONCE_FRONT + count, plain, _encode(id))

    def __repr__(self) -> str:
        """Nothing of the key."""
        return f"GroupKey({self.id.hex()}, {self.stream}, of {show_node_id(self.publisher)})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse pickle and copy: a key must not travel inside some other object."""
        raise TypeError("a GroupKey cannot be pickled or copied: read it where it is kept")


class Sealer:
    """The one who seals with a key, and counts."""

    __slots__ = ("count", "key")

    def __init__(self, key: GroupKey) -> None:
        """Give each key to one Sealer only."""
        self.key = key
        self.count = 0

    def seal(self, id: MessageId, content_type: int, content: bytes) -> tuple[int, bytes]:
        """Content type and content as they travel."""
        if id.stream != self.key.stream or id.publisher != self.key.publisher:
            raise UsageError(f"{id} cannot be sealed with {self.key!r}: it is of another place")
        if len(content) + SEALED_OVERHEAD_BYTES > CONTENT_BYTES_MAX:
            raise UsageError(
                f"{len(content)} bytes of content: in a stream that is encrypted the limit is"
                f" {CONTENT_BYTES_MAX - SEALED_OVERHEAD_BYTES}, split it"
            )
        sealed = self.key.seal_at(self.count, id, content_type, content)
        self.count += 1
        return ENCRYPTED, sealed


def sealed_with(sealed: bytes) -> bytes | None:
    """The id of the key that opens it; None if it is too short for anything sealed."""
    if len(sealed) < SEALED_OVERHEAD_BYTES:
        return None
    return sealed[:KEY_ID_BYTES]
