"""What a node asks of its key exchange, and what it is told."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shoal.base.ids import NodeId, StreamId


class FindKey(msgspec.Struct, frozen=True, gc=False):
    """Ask others for a key: answered by KeyFound or KeyNotFound."""

    stream: StreamId
    publisher: NodeId
    key: bytes


class KeyFound(msgspec.Struct, frozen=True, gc=False):
    """Told: the key is in the ring."""

    token: Hashable


class KeyNotFound(msgspec.Struct, frozen=True, gc=False):
    """Told: nobody gave it to us."""

    token: Hashable
