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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn, Self, SupportsIndex

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from shoal.base.errors import (
    DecryptionFailed,
    IdentityError,
    KeystoreError,
    MalformedMessage,
    NotFound,
    UsageError,
)
from shoal.base.ids import MessageId, NodeId, StreamId, WireNodeId, WireStreamId, show_node_id
from shoal.base.units import MIB
from shoal.identity.entropy import Entropy
from shoal.identity.keys import PrivateKey, PublicKey
from shoal.identity.keystore import CIPHER_KEY_BYTES, Cipher, read_private, replace_private
from shoal.identity.message_body import CONTENT_BYTES_MAX, ENCRYPTED

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


# A group key on its way to one reader: sealed for the reader's public key.
#
# ECIES on secp256k1: an ephemeral key, its Diffie-Hellman secret with the reader's key,
# HKDF-SHA256, AES-256-GCM. Ephemeral point (33) || sealed key (32) || tag (16). Stream, publisher,
# key id and reader are the associated data. The secret is used once, so the nonce is zero.
#
# A publisher announces a key as messages of the stream itself, each with up to WRAPS_MAX of these.


POINT_BYTES = 33
WRAP_BYTES = POINT_BYTES + GROUP_KEY_BYTES + TAG_BYTES
WRAPS_MAX = 1024  # in one message: about 110 KB

_NONCE = bytes(12)

KeyId = Annotated[bytes, Meta(min_length=KEY_ID_BYTES, max_length=KEY_ID_BYTES)]
WrapBytes = Annotated[bytes, Meta(min_length=WRAP_BYTES, max_length=WRAP_BYTES)]


class Wrap(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A key for one reader."""

    reader: WireNodeId
    key: KeyId
    sealed: WrapBytes


class Announcement(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    tag="shoal/keys/1",
    forbid_unknown_fields=True,
    gc=False,
):
    """The content of a message that hands out keys of its publisher."""

    wraps: Annotated[tuple[Wrap, ...], Meta(max_length=WRAPS_MAX)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Announcement)


def wrap_key(key: GroupKey, reader: PublicKey, entropy: Entropy) -> Wrap:
    """Seal a key for a reader."""
    ephemeral = PrivateKey.generate(entropy)
    point = ephemeral.public.to_bytes()
    cipher = _cipher(ephemeral, reader, point, reader)
    associated = _associated(key.stream, key.publisher, key.id, reader.address)
    sealed = point + cipher.encrypt(_NONCE, key.secret_bytes(), associated)
    return Wrap(reader.address, key.id, sealed)


def unwrap_key(
    stream: StreamId, publisher: NodeId, key_id: bytes, sealed: bytes, reader: PrivateKey
) -> GroupKey:
    """The key; DecryptionFailed if it is not that key, or was sealed for somebody else."""
    try:
        ephemeral = PublicKey.from_bytes(sealed[:POINT_BYTES])
        cipher = _cipher(reader, ephemeral, sealed[:POINT_BYTES], reader.public)
        associated = _associated(stream, publisher, key_id, reader.address)
        secret = cipher.decrypt(_NONCE, sealed[POINT_BYTES:], associated)
    except (MalformedMessage, InvalidTag):
        raise DecryptionFailed("a wrapped key that was changed, or is for another reader") from None
    if len(secret) != GROUP_KEY_BYTES:
        raise DecryptionFailed(f"a wrapped key of {len(secret)} bytes")
    key = GroupKey(stream, publisher, secret)
    if key.id != key_id:
        raise DecryptionFailed(f"another key than {key_id.hex()} is wrapped under its name")
    return key


def encode_announcements(wraps: Sequence[Wrap]) -> list[bytes]:
    """The contents of as many messages as it takes."""
    return [
        _encoder.encode(Announcement(tuple(wraps[begin : begin + WRAPS_MAX])))
        for begin in range(0, len(wraps), WRAPS_MAX)
    ]


def decode_announcement(content: bytes) -> Announcement:
    """What a publisher announces; MalformedMessage if it is nothing."""
    try:
        return _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(str(error)) from error


def _cipher(ours: PrivateKey, theirs: PublicKey, point: bytes, reader: PublicKey) -> AESGCM:
    info = b"shoal wrapped key 1\0" + point + reader.to_bytes()
    return AESGCM(
        HKDF(hashes.SHA256(), GROUP_KEY_BYTES, None, info).derive(ours.shared_secret(theirs))
    )


def _associated(stream: StreamId, publisher: NodeId, key_id: bytes, reader: NodeId) -> bytes:
    return publisher + key_id + reader + stream.encode()


# The group keys that a node holds, in a file beside its keystore.
#
# A line of text with the format's number, then one seal of AES-256-GCM over all keys, under a key
# derived from the node's private key. The line and the node's address are the associated data. The
# file is replaced as a whole: what it holds is what it held before or all of the new. It spares
# asking; whoever loses it finds the keys at storage nodes again, as far as they are kept there.


GROUP_KEYS_FORMAT = 1
GROUP_KEYS_MAX = 4096  # the oldest are let go
SUFFIX = ".streams"

_LINE = b"shoal group keys "
_FILE_BYTES_MAX = 4 * MIB  # of 4,096 keys in streams with the longest names, a third of it


class _Kept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    stream: WireStreamId
    publisher: WireNodeId
    secret: Annotated[bytes, Meta(min_length=GROUP_KEY_BYTES, max_length=GROUP_KEY_BYTES)]


_file_decoder = msgspec.msgpack.Decoder(list[_Kept])


def group_key_path(keystore: Path) -> Path:
    """Where the group keys of a keystore's owner are."""
    return keystore.with_name(keystore.name + SUFFIX)


def read_group_keys(path: Path, owner: PrivateKey) -> list[GroupKey]:
    """All of them, oldest first; none if there is no file; KeystoreError if it is unusable."""
    try:
        data = read_private(path, _FILE_BYTES_MAX)
    except NotFound:
        return []
    line, newline, sealed = data.partition(b"\n")
    number = line.removeprefix(_LINE)
    if not newline or not line.startswith(_LINE) or not number.isdigit() or len(number) > 9:
        raise KeystoreError(f"{path} holds no group keys: move it away, a new one will be made")
    if int(number) > GROUP_KEYS_FORMAT:
        raise KeystoreError(
            f"{path} has format {int(number)}, this Shoal reads up to {GROUP_KEYS_FORMAT}:"
            " upgrade Shoal"
        )
    try:
        kept = _file_decoder.decode(_file_cipher(owner).open(sealed, _file_associated(line, owner)))
    except (DecryptionFailed, msgspec.MsgspecError):
        raise KeystoreError(
            f"{path} was not written by {show_node_id(owner.address)}, or is damaged: restore a"
            " backup, or move it away; what storage nodes keep of the keys is found again"
        ) from None
    return [GroupKey(one.stream, one.publisher, one.secret) for one in kept]


def write_group_keys(
    path: Path, keys: Sequence[GroupKey], owner: PrivateKey, entropy: Entropy
) -> None:
    """Replace the file, durably; of more than fit, the last ones are kept."""
    kept = [_Kept(k.stream, k.publisher, k.secret_bytes()) for k in keys[-GROUP_KEYS_MAX:]]
    line = _LINE + str(GROUP_KEYS_FORMAT).encode()
    sealed = _file_cipher(owner).seal(_encoder.encode(kept), _file_associated(line, owner), entropy)
    replace_private(path, line + b"\n" + sealed, unique=entropy.token(8).hex())


def _file_cipher(owner: PrivateKey) -> Cipher:
    info = b"shoal group keys at rest 1"
    return Cipher(HKDF(hashes.SHA256(), CIPHER_KEY_BYTES, None, info).derive(owner.secret_bytes()))


def _file_associated(line: bytes, owner: PrivateKey) -> bytes:
    return line + b"\0" + owner.address
