"""The keys of a node's streams: what it seals with, what it opens with, and where they rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import DecryptionFailed, MalformedMessage
from shoal.base.ids import KEYS_PARTITION, StreamId
from shoal.identity import Entropy, PrivateKey
from shoal.identity.group_key import GroupKey, Sealer
from shoal.identity.group_key_file import group_key_path
from shoal.identity.stream_message import ENCRYPTED
from shoal.node.history import NodeHistory
from shoal.node.key_finding import FoundOrNot, KeyFinder
from shoal.node.key_publishing import KeyPublisher
from shoal.node.key_store import KeyStore
from shoal.node.messages import BROKEN, NO_KEY, Unreadable
from shoal.protocols.streams.commands import MessageArrived, MessageTaken
from shoal.protocols.streams.keys.commands import KeyFound, KeyNotFound
from shoal.protocols.streams.keys.machine import KeyExchange
from shoal.protocols.streams.keys.ring import KeyRing
from shoal.protocols.streams.keys.waiting import key_of
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.registry.client import ContractRegistry
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
