"""The registry, for the machines of a node: what somebody may do, and what changes.

It answers CheckAccess (`kernel/access.py`), after it has learned the terms of the stream: so a
tracker that admits somebody knows how many neighbours they get. Changes are told to the machines as
they come. The terms of streams that were edited, or made where somebody wants to know of all, are
read meanwhile: whoever makes hundreds in a block keeps no revocation waiting behind them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from shoal.base.errors import (
    ConfigError,
    NotFound,
    NotPermitted,
    RegistryDamaged,
    RegistryUnavailable,
    UsageError,
)
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.base.units import S_NS
from shoal.config.network_file import NetworkFile
from shoal.config.stream_settings import Terms
from shoal.identity import PrivateKey, PublicKey
from shoal.kernel.access import Permission, Tell, Verdict
from shoal.kernel.inputs import AccessChanged
from shoal.node.background import Tasks
from shoal.protocols.streams.config import AccessConfig
from shoal.protocols.streams.permissions import AccessTable
from shoal.registry.config import RegistrySection
from shoal.registry.contract_registry import ContractRegistry, put_public_key
from shoal.registry.opening import open_registry
from shoal.registry.port import EVERYBODY, Answer, Change, Directory, StreamTerms

FROM_THE_BEGINNING = 0
STAND_IN_S = 24 * 3600
READS_AT_ONCE = 64  # a batch of questions to a chain
UNREAD_MAX = 10_000  # streams whose terms wait to be read: as many as are remembered

StreamSeen = Callable[[StreamId], None]
Heard = Callable[[Change], None]

log = logging.getLogger("shoal.registry")


class RegistryRole:
    """One node's registry: its access port, and the source of its streams' terms."""

    def __init__(
        self, registry: ContractRegistry, section: RegistrySection, terms: Terms, node: NodeId
    ) -> None:
        """Use `open`."""
        self.registry = registry
        self.terms = terms
        self._section = section
        self._node = node
        self._tasks = Tasks()
        self._outdated: dict[StreamId, None] = {}  # terms that have not been read again yet
        self._unread: dict[StreamId, None] = {}  # the same, in the order in which they are read
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, network: NetworkFile, key: PrivateKey, node: NodeId) -> RegistryRole | None:
        """The registry that the network file names, if it names one. The key signs what is changed
        in it; it is the node's own, unless that is a spare one (held_key.py)."""
        if network.registry is None:
            return None
        own_key = None if network.node.key is None else key  # another one each time owns nothing
        registry = await open_registry(network.registry, Path(network.folder), own_key)
        try:
            trackers = await registry.nodes(Directory.TRACKERS)
            storage_nodes = await registry.nodes(Directory.STORAGE_NODES)
        except BaseException:
            await registry.close()
            raise
        terms = Terms(network, trackers, storage_nodes)
        return cls(registry, network.registry, terms, node)

    def table(self) -> AccessTable:
        """What one machine remembers of verdicts."""
        return AccessTable(AccessConfig(staleness_ns=int(self._section.staleness_s * S_NS)))

    def start(
        self,
        changed: Callable[[AccessChanged], None],
        stream_seen: StreamSeen | None = None,
        heard: Heard | None = None,
        *,
        history: bool = False,
    ) -> None:
        """Tell of changes from now on; and of every stream that there is, if somebody listens.
        `heard` is told what changed, with history also what changed before."""
        since = None if stream_seen is None and not history else FROM_THE_BEGINNING
        self._tasks.start(self._follow(changed, stream_seen, heard, since))

    async def close(self) -> None:
        """Let go of the chain."""
        await self._tasks.close()
        await self.registry.close()

    # The access port

    def check(self, stream: StreamId, who: NodeId, tell: Tell) -> None:
        """Find out what somebody may do, and tell."""
        self._tasks.start(self._check(stream, who, tell))

    async def _check(self, stream: StreamId, who: NodeId, tell: Tell) -> None:
        try:
            await self.learn(stream)
            verdict = await self.registry.verdict(stream, who)
        except (RegistryUnavailable, RegistryDamaged) as error:
            verdict = Verdict(0, time.time_ns(), str(error))
        except UsageError:  # there is no such stream, nor can there be one of that name
            verdict = Verdict(0, time.time_ns() + int(self._section.staleness_s * S_NS))
        tell(verdict)

    # For the application

    async def learn(self, stream: StreamId) -> StreamTerms:
        """What is decided for a stream; NotFound, RegistryUnavailable."""
        known = self.terms.known(stream)
        if known is not None and stream not in self._outdated:
            return known
        return await self._read(stream)

    async def _read(self, stream: StreamId) -> StreamTerms:
        try:
            terms = await self.registry.stream(stream)
        except NotFound:
            self.terms.learn(stream, None)
            self._outdated.pop(stream, None)
            raise
        self.terms.learn(stream, terms)
        self._outdated.pop(stream, None)
        return terms

    async def find(self, stream: StreamId) -> StreamTerms:
        """The same for one that may have been made a moment ago."""
        try:
            return await self.learn(stream)
        except NotFound:
            await self.registry.refresh()
            return await self.learn(stream)

    async def demand(self, stream: StreamId, kind: Permission) -> None:
        """NotPermitted unless this node may do it; RegistryUnavailable if nobody knows."""
        if self.registry.permitted(stream, self._node, kind) is Answer.YES:
            return
        permissions = await self.registry.permissions(stream, self._node)
        if not permissions.holds(kind, time.time()) and not await self.may(stream, kind):
            raise not_permitted(stream, self._node, kind)

    async def may(self, stream: StreamId, *kinds: Permission) -> bool:
        """Whether this node is allowed one of these, by the newest there is."""
        await self.registry.refresh()
        permissions = await self.registry.permissions(stream, self._node)
        return any(permissions.holds(kind, time.time()) for kind in kinds)

    async def create(self, path: str, terms: StreamTerms, *, public: bool) -> StreamId:
        """Make a stream of this node's key."""
        if self.terms.network.node.key is None:
            raise ConfigError(
                "node.key: a stream in the registry has an owner: make a key with `shoal key new`"
            )
        stream = await self.registry.create(path, terms)
        if public:
            await self.registry.grant(stream, [EVERYBODY], Permission.SUBSCRIBE)
        return stream

    async def stand_in(self, stream: StreamId, owner: NodeId, spare: PublicKey) -> None:
        """This node has a spare key, and a stream is of the key that it stands in for: that one has
        it take part for a day. On a chain, where that costs money and a minute, it has not."""
        if self._section.folder is None or not stream.startswith(f"{show_node_id(owner)}/"):
            return
        kinds = Permission.PUBLISH | Permission.SUBSCRIBE
        permissions = await self.registry.permissions(stream, self._node)
        if not all(permissions.holds(kind, time.time()) for kind in kinds):
            ends_s = int(time.time()) + STAND_IN_S
            await put_public_key(self.registry, spare)
            await self.registry.grant(stream, [self._node], kinds, ends_s)
            # The tracker looks now and then, and would refuse a node of which it knows nothing.
            await asyncio.sleep(2 * self._section.interval_s)

    # Changes

    async def _follow(
        self,
        changed: Callable[[AccessChanged], None],
        stream_seen: StreamSeen | None,
        heard: Heard | None,
        since: int | None,
    ) -> None:
        while True:
            try:
                async for change in self.registry.watch(since):
                    if change.what == "key":
                        continue  # nobody may do anything else than before
                    if change.what in ("directory", "unknown"):
                        with suppress(RegistryUnavailable):
                            listed = await self.registry.nodes(Directory.STORAGE_NODES)
                            self.terms.list_storage(listed)
                    await self._outdate(change, stream_seen)
                    if heard is not None:
                        heard(change)
                    changed(_told(change))
            except RegistryUnavailable as error:
                log.warning("what happened before is not known yet: %s", error)
                await asyncio.sleep(self._section.interval_s)

    async def _outdate(self, change: Change, stream_seen: StreamSeen | None) -> None:
        """Have the terms of a stream read again, if they matter here: others' streams are not
        asked for, unless somebody wants to know of all."""
        stream = change.stream
        if change.what not in ("created", "edited", "deleted") or stream is None:
            return
        if stream_seen is None and self.terms.known(stream) is None:
            return
        self._outdated[stream] = self._unread[stream] = None
        if self._reading is None or self._reading.done():
            self._reading = self._tasks.start(self._read_all(stream_seen))
        if len(self._unread) >= UNREAD_MAX:
            await asyncio.wait([self._reading])

    async def _read_all(self, stream_seen: StreamSeen | None) -> None:
        while self._unread:
            streams = list(islice(self._unread, READS_AT_ONCE))
            for stream in streams:
                del self._unread[stream]
            await asyncio.gather(*[self._read_again(stream, stream_seen) for stream in streams])
            if any(stream in self._unread for stream in streams):
                await asyncio.sleep(self._section.interval_s)  # the chain is away, or busy

    async def _read_again(self, stream: StreamId, stream_seen: StreamSeen | None) -> None:
        try:
            with suppress(NotFound):  # it was deleted
                await self._read(stream)
        except (RegistryUnavailable, RegistryDamaged):
            self._unread[stream] = None
            return
        if stream_seen is not None:
            stream_seen(stream)


def _told(change: Change) -> AccessChanged:
    who = None if change.what != "permissions" or change.who == EVERYBODY else change.who
    return AccessChanged(change.stream, who)


def not_permitted(stream: StreamId, node: NodeId, kind: Permission) -> NotPermitted:
    """The error, with its remedy."""
    id, word = show_node_id(node), str(kind.name).lower()
    return NotPermitted(
        f"{stream}: {id} may not {word}: its owner allows it with"
        f" `shoal stream grant {stream} {word} {id}`"
    )
