"""The keys of a node's streams: what it seals with, what it opens with, and where they rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import DecryptionFailed, KeystoreError, MalformedMessage, ShoalError
from shoal.base.ids import KEYS_PARTITION, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity import Entropy, PrivateKey
from shoal.identity.group_key import (
    GroupKey,
    Sealer,
    group_key_path,
    read_group_keys,
    write_group_keys,
)
from shoal.identity.message_body import ENCRYPTED, Position
from shoal.node.background import Tasks
from shoal.node.keys.key_distribution import KeyPublisher
from shoal.node.streams.history import NodeHistory, merged
from shoal.node.streams.message import BROKEN, NO_KEY, Unreadable
from shoal.protocols.streams.commands import (
    FindKey,
    KeyFound,
    KeyNotFound,
    MessageArrived,
    MessageRange,
    MessageTaken,
    ReadHistory,
)
from shoal.protocols.streams.config import KEY_AGE_NS
from shoal.protocols.streams.keys.key_exchange import KeyExchange
from shoal.protocols.streams.keys.key_ring import KeyRing
from shoal.protocols.streams.keys.sealed_queue import key_of
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.registry.contract_registry import ContractRegistry
from shoal.runtime import RuntimeHost

KEY_EVENTS = (KeyFound, KeyNotFound)
MESSAGE_EVENTS = (MessageArrived, MessageTaken)


class NodeKeys:
    """The door to a node's keys, for its streams."""

    def __init__(
        self,
        host: RuntimeHost,
        exchange: KeyExchange,
        history: NodeHistory,
        registry: ContractRegistry,
        key: PrivateKey,
        entropy: Entropy,
        announce: Callable[[StreamId, bytes], Awaitable[bytes]],
    ) -> None:
        """`announce` publishes to the keys of a stream, and gives what was signed."""
        self.ring: KeyRing = exchange.ring
        self.listeners: dict[Callable[[], None], None] = {}
        """Called when keys have come."""
        self._host = host
        self._readers = [key]
        self._history = history
        self._store = KeyStore(self.ring, key, entropy)
        self._finder = KeyFinder(host, exchange, history, self.took)
        self._publisher = KeyPublisher(
            key.address, registry, entropy, announce, self._made, exchange.met
        )

    def start(self, keystore: Path | None) -> None:
        """The node runs, with a key out of this file; KeystoreError if the file beside it, with
        group keys, is unusable."""
        if keystore is not None:
            self._store.open(group_key_path(keystore))
        self._publisher.start()

    def stand_in_for(self, owner: PrivateKey) -> None:
        """This node has a spare key: what is wrapped for the owner of its streams, it opens."""
        self._readers.append(owner)

    async def close(self) -> None:
        """Keys that have come are on disk."""
        await self._publisher.close()
        await self._finder.close()
        await self._store.close()

    # Publishing

    async def sealer(self, stream: StreamId) -> Sealer | None:
        """What the next message of this node is sealed with; None if everybody may read."""
        return await self._publisher.sealer(stream)

    async def keep(self, stream: StreamId, copies: int) -> None:
        """A message is to be durable: so is its key."""
        for signed in self._publisher.unkept(stream):
            await self._history.keep(stream, signed, copies)

    async def announce(self, key: GroupKey) -> list[bytes] | None:
        """Give a key that was not made here to all readers: what was signed, to be kept by the
        caller. None if everybody may read."""
        return await self._publisher.announce(key)

    # Reading

    def heard(self, event: Any) -> bool:
        """A machine said something; whether it was for this door."""
        if type(event) in MESSAGE_EVENTS and event.message.id.partition == KEYS_PARTITION:
            self.took(event.message)
            return True
        if type(event) not in KEY_EVENTS:
            return False
        if isinstance(event.token, FoundOrNot):
            event.token.heard(event)
        if type(event) is KeyFound:
            self._learned()
        return True

    def took(self, message: VerifiedMessage) -> None:
        """A publisher announces keys."""
        if message.id.partition != KEYS_PARTITION:
            return
        try:
            if sum([self.ring.learn(message, reader) for reader in self._readers]):
                self._learned()
        except MalformedMessage:
            self._host.rejected(message.id.publisher, "no-announcement")

    def awaits(self, key_id: bytes) -> bool:
        """Whether a key is not here, and was not looked for in vain just now."""
        return self.ring.get(key_id) is None and not self._finder.is_given_up(key_id)

    def want(self, message: VerifiedMessage) -> None:
        """Look for the key of a message; listeners hear if it is found."""
        self._finder.want(message)

    async def obtain(self, message: VerifiedMessage) -> None:
        """Return when the key of a message is here, or is not to be had."""
        await self._finder.obtain(message)

    def opened(self, arrived: MessageArrived) -> MessageArrived | Unreadable:
        """A message with its content as it was published, if its key is here."""
        message = arrived.message
        if message.content_type != ENCRYPTED:
            return arrived
        needed = key_of(message)
        key = None if needed is None else self.ring.get(needed)
        if key is None:
            return Unreadable(arrived, BROKEN if needed is None else NO_KEY)
        try:
            content_type, content = key.open(message.id, message.content)
        except DecryptionFailed:
            return Unreadable(arrived, BROKEN)
        plain = msgspec.structs.replace(message, content_type=content_type, content=content)
        return msgspec.structs.replace(arrived, message=plain)

    # Steps

    def _made(self, key: GroupKey) -> None:
        self.ring.add(key)
        self._learned()

    def _learned(self) -> None:
        self._store.changed()
        for listener in list(self.listeners):
            listener()


# The group keys of a node on disk, beside its keystore: read at the start, written a little after
# a key has come.


SETTLE_S = 0.5  # keys come in bursts: whoever reads history gets many at once

log = logging.getLogger("shoal.keys")


class KeyStore:
    """A ring and its file. A node whose key is in no file keeps none."""

    def __init__(self, ring: KeyRing, owner: PrivateKey, entropy: Entropy) -> None:
        self._ring = ring
        self._path: Path | None = None
        self._owner = owner
        self._entropy = entropy
        self._tasks = Tasks()
        self._dirty = False
        self._closed = False

    def open(self, path: Path) -> None:
        """Read the file, and write it from now on; KeystoreError if it is unusable."""
        for key in read_group_keys(path, self._owner):
            self._ring.add(key)
        self._path = path

    def changed(self) -> None:
        """A key has come."""
        if self._path is not None and not self._dirty and not self._closed:
            self._dirty = True
            self._tasks.start(self._write_soon())

    async def close(self) -> None:
        """What has come is on disk; what comes from now on is not kept."""
        self._closed = True
        await self._tasks.close()
        await self._write()

    async def _write_soon(self) -> None:
        await asyncio.sleep(SETTLE_S)
        await self._write()

    async def _write(self) -> None:
        if not self._dirty or self._path is None:
            return
        self._dirty = False
        try:
            await asyncio.to_thread(self._replace, self._path, self._ring.all())
        except KeystoreError as error:
            log.error("group keys are not kept, and have to be asked for again: %s", error)

    def _replace(self, path: Path, keys: list[GroupKey]) -> None:
        """Another process of the same key may have written meanwhile: its keys stay."""
        held = {key.id for key in keys}
        others = [key for key in read_group_keys(path, self._owner) if key.id not in held]
        write_group_keys(path, others + keys, self._owner, self._entropy)


# Looking for a key that a message needs: at storage nodes, where its publisher announced it, and
# among those who may have it.


UNDER_WAY_S = 0.2  # an announcement takes another path than the message behind it
PATIENCE_S = 5.0  # a reader of history waits so long for a key
WITHOUT_S = 30.0  # a key that was not found is not looked for again before
FINDS_MAX = 64
PUBLISHER_FINDS_MAX = 8  # one that names keys which there are not keeps nobody else's from us
NOT_FOUND_MAX = 4096
ROWS_MIN, ROWS_MAX = 128, 4096  # announcements that are read for one key: the next are wanted soon
NEAR_NS = 60 * S_NS  # keys that are used once are announced just before
SLACK_NS = 3600 * S_NS  # between announcing a key and sealing with it, clocks aside

Took = Callable[[VerifiedMessage], None]


class FoundOrNot:
    """The token of a FindKey."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def heard(self, event: Any) -> None:
        """The machine said something; what, the ring shows."""
        self.over.set()


class KeyFinder:
    """Each key is looked for once at a time, and given up for a while if nobody has it."""

    def __init__(
        self, host: RuntimeHost, exchange: KeyExchange, history: NodeHistory, took: Took
    ) -> None:
        """`took` is given the announcements that storage nodes have."""
        self._host = host
        self._exchange = exchange
        self._history = history
        self._took = took
        self._tasks = Tasks()
        self._finds: dict[bytes, asyncio.Event] = {}  # set when it is over
        self._of: dict[NodeId, int] = {}  # how many, of each publisher
        self._reading: dict[tuple[StreamId, NodeId], asyncio.Lock] = {}
        self._not_found: dict[bytes | NodeId, float] = {}  # until when, of keys and publishers

    def want(self, message: VerifiedMessage, delay_s: float = UNDER_WAY_S) -> None:
        """Look for the key of a message, unless that is under way or was in vain."""
        key = key_of(message)
        if key is None or key in self._finds or self.is_given_up(key):
            return
        publisher = message.id.publisher
        of_publisher = self._of.get(publisher, 0)
        full = len(self._finds) >= FINDS_MAX or of_publisher >= PUBLISHER_FINDS_MAX
        if self._exchange.ring.get(key) is None and not full:
            self._of[publisher] = of_publisher + 1
            self._finds[key] = asyncio.Event()
            self._tasks.start(self._find(key, message, delay_s))

    async def obtain(self, message: VerifiedMessage) -> None:
        """Return when the key of a message is here, or is not to be had. A publisher that makes
        readers wait in vain does so once in a while only, whatever keys it names."""
        key = key_of(message)
        if key is None or self._exchange.ring.get(key) is not None:
            return
        publisher = message.id.publisher
        self.want(message, 0.0)
        find = self._finds.get(key)
        if find is None or self.is_given_up(publisher):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await find.wait()
        if self._exchange.ring.get(key) is None:
            self._give_up(publisher)
            self._give_up(key)

    def is_given_up(self, what: bytes) -> bool:
        """Whether a key, or a publisher's keys, were looked for in vain a while ago."""
        return asyncio.get_running_loop().time() < self._not_found.get(what, 0.0)

    async def close(self) -> None:
        """Look for nothing any more."""
        await self._tasks.close()

    # Steps

    async def _find(self, key: bytes, message: VerifiedMessage, delay_s: float) -> None:
        ring = self._exchange.ring
        try:
            await asyncio.sleep(delay_s)
            if ring.get(key) is None:
                await self._ask_all(key, message)
            if ring.get(key) is None:
                self._give_up(key)
        finally:
            self._finds.pop(key).set()
            self._of[message.id.publisher] -= 1
            if not self._of[message.id.publisher]:
                del self._of[message.id.publisher]

    async def _ask_all(self, key: bytes, message: VerifiedMessage) -> None:
        """Return when one way has led to it, or all have ended."""
        ways = self._ask_storage(key, message), self._ask_others(key, message)
        tasks = {asyncio.ensure_future(way) for way in ways}
        try:
            while tasks and self._exchange.ring.get(key) is None:
                _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_others(self, key: bytes, message: VerifiedMessage) -> None:
        token = FoundOrNot()
        command = FindKey(message.id.stream, message.id.publisher, key)
        await self._host.issue(self._exchange, command, token)
        await token.over.wait()

    async def _ask_storage(self, key: bytes, message: VerifiedMessage) -> None:
        """Read what the publisher announced since its last key must have been made, and a reader
        that came later may have been given."""
        stream, publisher = message.id.stream, message.id.publisher
        at_ms = message.id.timestamp_ms
        near, far = at_ms - NEAR_NS // MS_NS, at_ms - (KEY_AGE_NS + SLACK_NS) // MS_NS
        lock = self._reading.setdefault((stream, publisher), asyncio.Lock())
        try:
            async with lock:  # one read finds the keys of many messages
                for what in (
                    MessageRange(Position(max(0, near), 0)),
                    MessageRange(Position(max(0, far), 0), Position(max(0, near), 0)),
                ):
                    with suppress(ShoalError):  # nobody keeps the stream, or answers: others may
                        await self._read(
                            key, ReadHistory(stream, KEYS_PARTITION, what, publisher, insist=True)
                        )
        finally:
            if not lock.locked():
                self._reading.pop((stream, publisher), None)

    async def _read(self, key: bytes, command: ReadHistory) -> None:
        rows, ring = 0, self._exchange.ring
        if ring.get(key) is not None:
            return
        async with self._history.open([command]) as reads:
            async for _, row in merged(reads):
                self._took(row.message)
                rows += 1
                found = ring.get(key) is not None
                if rows >= (ROWS_MIN if found else ROWS_MAX):
                    return

    def _give_up(self, what: bytes) -> None:
        self._not_found.pop(what, None)
        self._not_found[what] = asyncio.get_running_loop().time() + WITHOUT_S
        if len(self._not_found) > NOT_FOUND_MAX:
            del self._not_found[next(iter(self._not_found))]
