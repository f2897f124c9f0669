"""Signed address records: where a node says that it can be dialled.

SplitEdge, Redirect, MergeEdge and bubbles make others dial somebody. A record in them is signed by
whom it names: nobody can send the network to a third party, only to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import Count, WireNodeId
from shoal.base.units import MS_NS
from shoal.identity import SIGNATURE_BYTES, PrivateKey
from shoal.kernel.contact import ADDRESSES_MAX, Address, Contact

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
