"""Where nodes and values lie: 256-bit ids, and the XOR of two as their distance.

A node's place is a hash of its id, which is itself made from its key: whoever wants another place
needs another key. A value's place is a hash of its key.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from random import Random
from typing import Annotated, NewType

from msgspec import Meta

from shoal.base.ids import NodeId

DhtId = NewType("DhtId", int)

ID_BITS = 256
ID_BYTES = ID_BITS // 8
SPACE = 1 << ID_BITS

WireDhtId = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]


@lru_cache(maxsize=65_536)
def id_of_node(node: NodeId) -> DhtId:
    """The place of a node."""
    return DhtId(int.from_bytes(hashlib.sha256(b"shoal/dht/node\0" + node).digest()))


def id_of_key(key: bytes) -> DhtId:
    """The place of a value."""
    return DhtId(int.from_bytes(hashlib.sha256(b"shoal/dht/key\0" + key).digest()))


def id_of_wire(raw: bytes) -> DhtId:
    """An id as messages carry it."""
    return DhtId(int.from_bytes(raw))


def wire_of_id(id: DhtId) -> bytes:
    """An id for a message."""
    return id.to_bytes(ID_BYTES)


def common_bits(a: DhtId, b: DhtId) -> int:
    """How many leading bits two ids share."""
    return ID_BITS - (a ^ b).bit_length()


def sibling(id: DhtId, depth: int, rng: Random) -> DhtId:
    """A random place that shares exactly `depth` leading bits with an id."""
    rest = ID_BITS - depth - 1
    return DhtId(((id >> rest ^ 1) << rest) | rng.getrandbits(rest) if rest else id ^ 1)
