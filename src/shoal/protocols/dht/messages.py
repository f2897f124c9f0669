"""Messages of the DHT: four questions and their answers.

What comes off a link is untrusted, however well it decodes. A question says where its sender can
be dialled, for the routing table; who it is, the link has proven.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import ADDRESSES_MAX, Address, Contact, Count
from shoal.protocols.dht.config import KEY_BYTES_MAX, VALUE_BYTES_MAX, VALUES_MAX, K
from shoal.protocols.dht.key_space import WireDhtId

Addresses = Annotated[tuple[Address, ...], Meta(max_length=ADDRESSES_MAX)]
Contacts = Annotated[tuple[Contact, ...], Meta(max_length=K)]
Key = Annotated[bytes, Meta(min_length=1, max_length=KEY_BYTES_MAX)]
Value = Annotated[bytes, Meta(min_length=1, max_length=VALUE_BYTES_MAX)]
Reason = Annotated[str, Meta(max_length=32)]


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Are you there?"""

    request: Count
    sender: Addresses


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Yes."""

    request: Count


class FindNode(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Whom do you know nearest to this place?"""

    request: Count
    sender: Addresses
    target: WireDhtId


class Nodes(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Those."""

    request: Count
    contacts: Contacts


class FindValue(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """What do you hold under this key, and whom do you know nearest to this place?"""

    request: Count
    sender: Addresses
    target: WireDhtId
    """The key's place, or one beside it, if somebody crowds that."""
    key: Key


class Values(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """That, and those."""

    request: Count
    values: Annotated[tuple[Value, ...], Meta(max_length=VALUES_MAX)]
    contacts: Contacts


class StoreValue(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Hold this for so long."""

    request: Count
    sender: Addresses
    key: Key
    value: Value
    life_s: Count
    cached: bool
    """A copy along the path of a lookup: the first to go."""


class ValueStored(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """I do; or not, and the reason: "invalid", "older", "full", "busy"."""

    request: Count
    refused: Reason


QUESTIONS = (Ping, FindNode, FindValue, StoreValue)
ANSWERS = (Pong, Nodes, Values, ValueStored)

Question = Ping | FindNode | FindValue | StoreValue
Answer = Pong | Nodes | Values | ValueStored
