"""Who may read a stream, and the public keys that its keys are wrapped for.

A list in the contract names every address that was ever given something in a stream; what each of
them may do now is asked as always. An address is the hash of a public key, and does not give it
away: whoever grants, or has the key, puts it into the contract, which checks that it is the right
one. A registry that was made before these lists knows of nobody: its readers ask for keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from shoal.base.errors import MalformedMessage, RegistryRefused
from shoal.base.ids import NodeId, StreamId, parse_node_id, show_node_id
from shoal.identity import PublicKey
from shoal.kernel.access import Permission
from shoal.registry.client import ContractRegistry
from shoal.registry.port import EVERYBODY, FOREVER, WHOM_MAX

POINT_HALF_BYTES = 32


class StreamReader(msgspec.Struct, frozen=True):
    """Somebody who may read a stream."""

    node: NodeId
    until_s: int
    """When that ends; FOREVER: never."""
    public: PublicKey | None = None
    """If it is known."""


class Audience(msgspec.Struct, frozen=True):
    """Who may read a stream now."""

    is_public: bool
    """Everybody may: nobody is listed."""
    until_s: int
    """If it is public: when that ends."""
    readers: tuple[StreamReader, ...] = ()


async def audience(registry: ContractRegistry, stream: StreamId) -> Audience:
    """Everybody, or these; RegistryUnavailable."""
    now_s = time.time()
    public = await registry.permissions(stream, EVERYBODY)
    if public.holds(Permission.SUBSCRIBE, now_s):
        return Audience(True, public.expiry_s(Permission.SUBSCRIBE))
    ends_s = {parse_node_id(stream.partition("/")[0]): FOREVER}
    listed = await members(registry, stream)
    for begin in range(0, len(listed), WHOM_MAX):
        some = listed[begin : begin + WHOM_MAX]
        found = await asyncio.gather(*(registry.permissions(stream, who) for who in some))
        for who, permissions in zip(some, found, strict=True):
            if permissions.holds(Permission.SUBSCRIBE, now_s):
                ends_s[who] = permissions.expiry_s(Permission.SUBSCRIBE)
    keys = await public_keys(registry, list(ends_s))
    readers = (StreamReader(who, end_s, keys.get(who)) for who, end_s in ends_s.items())
    return Audience(False, FOREVER, tuple(readers))


async def members(registry: ContractRegistry, stream: StreamId) -> list[NodeId]:
    """Every address that was given something in a stream, now or in the past."""
    owner, _, path = stream.partition("/")
    found: list[NodeId] = []
    while True:
        try:
            page = await registry.ask("members", parse_node_id(owner), path, len(found))
        except RegistryRefused:
            return found  # an older contract
        found += page
        if len(page) < WHOM_MAX:
            return found


async def public_keys(
    registry: ContractRegistry, whom: Sequence[NodeId]
) -> dict[NodeId, PublicKey]:
    """The keys of those whose key is known."""
    found: dict[NodeId, PublicKey] = {}
    for begin in range(0, len(whom), WHOM_MAX):
        some = whom[begin : begin + WHOM_MAX]
        try:
            points = await registry.ask("public_keys", some)
        except RegistryRefused:
            return found  # an older contract
        for who, (x, y) in zip(some, points, strict=True):
            key = _key_at(x, y)
            if key is not None and key.address == who:
                found[who] = key
    return found


async def put_public_key(registry: ContractRegistry, key: PublicKey) -> None:
    """Make a key known, unless it is."""
    if key.address in await public_keys(registry, [key.address]):
        return
    try:
        await registry.do("put_public_key", *key.coordinates())
    except RegistryRefused as error:
        raise RegistryRefused(
            f"the public key of {show_node_id(key.address)} is not taken ({error}): a registry of"
            " an older Shoal has no room for it"
        ) from error


def _key_at(x: int, y: int) -> PublicKey | None:
    if not (x or y):
        return None
    try:
        point = x.to_bytes(POINT_HALF_BYTES, "big") + y.to_bytes(POINT_HALF_BYTES, "big")
        return PublicKey.from_bytes(b"\x04" + point)
    except MalformedMessage:
        return None  # a hash that happens to be an address, and no key
