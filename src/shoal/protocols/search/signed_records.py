"""Signed address records: where a node says that it can be dialled.

SplitEdge, Redirect, MergeEdge and bubbles make others dial somebody. A record in them is signed by
whom it names: nobody can send the network to a third party, only to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.base.ids import ADDRESSES_MAX, Address, Contact, Count, NodeId, WireNodeId
from shoal.base.units import MS_NS
from shoal.identity import SIGNATURE_BYTES, PrivateKey
from shoal.protocols.search.config import (
    BUBBLE_ID_BYTES,
    INT32_MAX,
    INT32_MIN,
    NONCE_BYTES,
    WAY_BYTES,
)

Addresses = Annotated[tuple[Address, ...], Meta(max_length=ADDRESSES_MAX)]
Signature = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class _Body(msgspec.Struct, frozen=True, array_like=True, tag="shoal/search/address/1", gc=False):
    """What is signed. The tag keeps the signature from meaning anything else."""

    node: WireNodeId
    addresses: Addresses
    made_ms: Count


class AddressRecord(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A node, its addresses, and when it said so. Believed once its signature was checked."""

    node: WireNodeId
    addresses: Addresses
    made_ms: Count
    signature: Signature

    @property
    def contact(self) -> Contact:
        """How the node is reached."""
        return Contact(self.node, self.addresses)

    @property
    def body(self) -> bytes:
        """The bytes that the node signs."""
        return _encode(_Body(self.node, self.addresses, self.made_ms))

    @property
    def signed(self) -> bytes:
        """Signature and body, as Verify takes them; the signer is the node."""
        return self.signature + self.body


_encode = msgspec.msgpack.Encoder().encode


def sign_address(key: PrivateKey, addresses: Sequence[str], now_ns: int) -> AddressRecord:
    """A record of the key's own node, made now."""
    listed, made_ms = tuple(addresses), now_ns // MS_NS
    signature = key.sign(_encode(_Body(key.address, listed, made_ms)))
    return AddressRecord(key.address, listed, made_ms, signature)


# Bubble headers: who started a bubble, how large it may grow and how long it lives.
#
# Whoever relays a bubble divides it: size, start and end change at every hop and nobody signs them.
# What must not change is signed by the origin: total, type, expiry, payload, and the address that
# the answers go to. A relay that put an older address of the origin there, where somebody else
# listens today, would turn the answers against a third party.


Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
BubbleKind = Annotated[int, Meta(ge=INT32_MIN, le=INT32_MAX)]
BubbleSize = Annotated[int, Meta(ge=1, le=INT32_MAX)]

_ID_DOMAIN = b"shoal/search/bubble\0"


class _HeaderBody(
    msgspec.Struct, frozen=True, array_like=True, tag="shoal/search/header/1", gc=False
):
    """What is signed. The signer's id follows from the signature."""

    kind: BubbleKind
    total: BubbleSize
    expires_ms: Count
    nonce: Nonce
    payload_sha256: bytes
    addresses: Addresses
    made_ms: Count


class BubbleHeader(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """The origin of a bubble and its signature. Whoever has checked that needs no check of the
    origin's record to believe its addresses; only to pass the record on by itself."""

    origin: AddressRecord
    nonce: Nonce
    expires_ms: Count
    signature: Signature

    @property
    def way(self) -> bytes:
        """What decides, at each node, which neighbours a bubble goes to. Bubbles of one origin
        whose nonces begin alike take the same ways: so a new version finds the old ones."""
        return self.origin.node + self.nonce[:WAY_BYTES]

    def signed(self, kind: int, total: int, payload: bytes) -> bytes:
        """Signature and body, as Verify takes them; the signer is the origin's node."""
        return self.signature + _body(
            self.origin, kind, total, self.expires_ms, self.nonce, payload
        )


def sign_header(
    key: PrivateKey,
    origin: AddressRecord,
    *,
    kind: int,
    total: int,
    payload: bytes,
    nonce: bytes,
    expires_ms: int,
) -> BubbleHeader:
    """The header of a new bubble, by the node that the origin's record names."""
    if key.address != origin.node:
        raise UsageError(f"the record names {origin.node.hex()}: sign with its key, not another")
    body = _body(origin, kind, total, expires_ms, nonce, payload)
    return BubbleHeader(origin, nonce, expires_ms, key.sign(body))


def bubble_id(origin: NodeId, kind: int, total: int, nonce: bytes, payload: bytes) -> bytes:
    """What tells one bubble from another. The nonce lets a node ask the same thing twice."""
    fixed = origin + kind.to_bytes(4, signed=True) + total.to_bytes(4) + nonce
    return sha256(_ID_DOMAIN + fixed + payload).digest()[:BUBBLE_ID_BYTES]


def _body(
    origin: AddressRecord, kind: int, total: int, expires_ms: int, nonce: bytes, payload: bytes
) -> bytes:
    digest = sha256(payload).digest()
    return _encode(
        _HeaderBody(kind, total, expires_ms, nonce, digest, origin.addresses, origin.made_ms)
    )
