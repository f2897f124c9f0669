"""A group key on its way to one reader: sealed for the reader's public key.

ECIES on secp256k1: an ephemeral key, its Diffie-Hellman secret with the reader's key, HKDF-SHA256,
AES-256-GCM. Ephemeral point (33) || sealed key (32) || tag (16). Stream, publisher, key id and
reader are the associated data. The secret is used once, so the nonce is zero.

A publisher announces a key as messages of the stream itself, each with up to WRAPS_MAX of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from shoal.base.errors import DecryptionFailed, MalformedMessage
from shoal.base.ids import NodeId, StreamId, WireNodeId
from shoal.identity.entropy import Entropy
from shoal.identity.group_key import GROUP_KEY_BYTES, KEY_ID_BYTES, TAG_BYTES, GroupKey
from shoal.identity.keys import PrivateKey, PublicKey

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
