"""How a node is reached."""

from __future__ import annotations

from typing import Annotated

import msgspec

from shoal.base.ids import WireNodeId

ADDRESSES_MAX = 4  # a node listens on a few addresses; more is an attempt to make us dial for it
ADDRESS_CHARS_MAX = 256

Address = Annotated[str, msgspec.Meta(max_length=ADDRESS_CHARS_MAX)]


class Contact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node and the addresses at which it can be dialled (none: it can only dial out)."""

    node: WireNodeId
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=ADDRESSES_MAX)] = ()
