"""What a node seals with in the streams that it publishes to: nothing in those that everybody may
read, else a key of its own that only those can have who may read now.

The registry is watched. When somebody may read no longer, the next key is made at once, and what is
published from then on is sealed with it; when somebody new may read, or a reader's public key comes
to be known, that one is given the keys of this process. While the registry is out of reach, the
readers that were known count, each until its own end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import time_ns

import msgspec

from shoal.base.errors import RegistryUnavailable, ShoalError
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import Entropy, PublicKey
from shoal.identity.group_key import GroupKey, Sealer, encode_announcements, wrap_key
from shoal.node.background import Tasks
from shoal.protocols.streams.keys.key_ring import Reader, Sealing, ToWrap
from shoal.registry.contract_registry import Audience, ContractRegistry, audience
from shoal.registry.port import Change

log = logging.getLogger("shoal.keys")

UNKEPT_MAX = 32  # announcements that are held for a storage node: 3.5 MB
OUTAGE_S = 2.0  # between looks at a registry that is out of reach

Announce = Callable[[StreamId, bytes], Awaitable[bytes]]


class _Published(msgspec.Struct, eq=False):
    """A stream that this node publishes to."""

    sealing: Sealing
    lock: asyncio.Lock
    audience: Audience | None = None
    changes: int = 1
    """Of the registry, that may concern it."""
    known: int = 0
    """So many of them are taken into account."""
    refreshing: bool = False
    unkept: list[bytes] = []
    """Announcements of which nobody knows whether a storage node has them."""


class KeyPublisher:
    """The keys of a node's own messages."""

    def __init__(
        self,
        node: NodeId,
        registry: ContractRegistry,
        entropy: Entropy,
        announce: Announce,
        made: Callable[[GroupKey], None],
        met: Mapping[NodeId, PublicKey],
    ) -> None:
        """`announce` publishes to the keys of a stream, and gives what was signed; `made` hears of
        every new key; `met` are public keys that the registry may lack."""
        self._node = node
        self._registry = registry
        self._entropy = entropy
        self._announce = announce
        self._made = made
        self._met = met
        self._streams: dict[StreamId, _Published] = {}
        self._tasks = Tasks()

    def start(self) -> None:
        """Watch the registry."""
        self._tasks.start(self._watch())

    async def close(self) -> None:
        """Watch no longer."""
        await self._tasks.close()

    async def sealer(self, stream: StreamId) -> Sealer | None:
        """What the next message is sealed with: its key is announced. None: everybody may read.
        RegistryUnavailable, if it is not known who may."""
        published = self._streams.get(stream)
        if published is None:
            sealing = Sealing(stream, self._node, self._entropy)
            published = self._streams[stream] = _Published(sealing, asyncio.Lock())
        if published.lock.locked() or _is_due(published):
            async with published.lock:
                if _is_due(published):
                    await self._prepare(stream, published)
        assert published.audience is not None  # or _prepare has raised
        return None if published.audience.is_public else published.sealing.sealer

    async def announce(self, key: GroupKey) -> list[bytes] | None:
        """Give a key of the outbox to all readers of its stream: what was signed, which is the
        caller's to have kept. None if everybody may read."""
        stream = key.stream
        if await self.sealer(stream) is None:
            return None
        published = self._streams[stream]
        assert published.audience is not None  # there is a sealer
        readers = self._readers(published.audience)[: published.sealing.config.readers_max]
        wraps = [ToWrap(key, reader.public) for reader in readers if reader.public is not None]
        signed = [await self._announce(stream, content) for content in await self._wrapped(wraps)]
        self._made(key)
        return signed

    def unkept(self, stream: StreamId) -> list[bytes]:
        """Announcements that storage nodes may not have; it is the caller's to have them kept."""
        published = self._streams.get(stream)
        if published is None:
            return []
        unkept, published.unkept = published.unkept, []
        return unkept

    # Steps

    async def _prepare(self, stream: StreamId, published: _Published) -> None:
        """Have the key in use be one that its readers know of, and nobody else."""
        changes = published.changes
        try:
            published.audience = await audience(self._registry, stream)
        except RegistryUnavailable:
            if published.audience is None or published.audience.is_public:
                raise
            self._tasks.start(self._look_again(stream, published))
        if published.audience.is_public:
            published.sealing.forget()
        else:
            await self._give_keys(stream, published, published.audience)
        published.known = changes

    async def _give_keys(self, stream: StreamId, published: _Published, found: Audience) -> None:
        sealing = published.sealing
        before = sealing.sealer
        wraps = sealing.prepare(self._readers(found), time_ns())
        sealer = sealing.sealer
        assert sealer is not None  # prepared
        try:
            for content in await self._wrapped(wraps):
                published.unkept.append(await self._announce(stream, content))
        except BaseException:
            sealing.forget()  # who was told is not known: all of them are told again
            raise
        if sealer is not before:
            self._made(sealer.key)
        del published.unkept[:-UNKEPT_MAX]

    def _readers(self, found: Audience) -> list[Reader]:
        return [
            Reader(one.node, one.public or self._met.get(one.node), one.until_s * S_NS)
            for one in found.readers
        ]

    async def _wrapped(self, wraps: list[ToWrap]) -> list[bytes]:
        """Announcements, made in a thread: 1,000 readers take a tenth of a second."""
        if not wraps:
            return []
        entropy = self._entropy
        made = await asyncio.to_thread(lambda: [wrap_key(*one, entropy) for one in wraps])
        return encode_announcements(made)

    async def _watch(self) -> None:
        async for change in self._registry.watch():
            for stream, published in self._streams.items():
                if _concerns(change, stream):
                    published.changes += 1
                    if published.sealing.sealer is not None and not published.refreshing:
                        published.refreshing = True
                        self._tasks.start(self._refresh(stream, published))

    async def _look_again(self, stream: StreamId, published: _Published) -> None:
        """The registry is out of reach: until it is back, no message waits for it."""
        while True:
            await asyncio.sleep(OUTAGE_S)
            with suppress(RegistryUnavailable):
                await self._registry.refresh()
                break
        published.changes += 1
        if not published.refreshing:
            published.refreshing = True
            await self._refresh(stream, published)

    async def _refresh(self, stream: StreamId, published: _Published) -> None:
        """Whoever is new gets the keys, and whoever is out is left out, also if nothing is
        published for a while. Of many changes at once, most are taken into account together."""
        try:
            while published.known != published.changes:
                await self.sealer(stream)
        except ShoalError as error:
            log.warning("%s: keys are announced with the next message: %s", stream, error)
        finally:
            published.refreshing = False


def _is_due(published: _Published) -> bool:
    found = published.audience
    if found is None or published.known != published.changes:
        return True
    now_ns = time_ns()
    return now_ns >= found.until_s * S_NS if found.is_public else published.sealing.is_due(now_ns)


def _concerns(change: Change, stream: StreamId) -> bool:
    return change.what in ("unknown", "key") or change.stream == stream
