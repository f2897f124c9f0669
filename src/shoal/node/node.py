"""One process in the network: keys, links, machines and streams behind one object."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from shoal.base.errors import UsageError
from shoal.base.ids import (
    STREAM_ID_CHARS_MAX,
    MessageId,
    NodeId,
    StreamId,
    show_node_id,
)
from shoal.base.units import S_NS
from shoal.identity import Entropy, PrivateKey, SystemEntropy, open_keystore
from shoal.kernel.contact import Contact
from shoal.kernel.machine import Machine
from shoal.node.network_file import NetworkFile, load_network_file
from shoal.node.stream import Stream
from shoal.node.subscription import Subscription
from shoal.protocols.streams.commands import (
    JoinStream,
    LeaveStream,
    MessageArrived,
    Publish,
    PublishAccepted,
    StreamReady,
)
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.random_policy import RandomPolicy
from shoal.protocols.streams.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.runtime import RuntimeHost
from shoal.transport.port import Credentials
from shoal.transport.websocket import WebSocketTransport

JOIN_TIMEOUT_S = 15.0  # dialling a tracker, being taken in, opening links: well within this
PATIENCE_NS = 2 * S_NS  # a publisher waits this long for stuck neighbours, once


class Node:
    """A running node. Open it with Node.open; its streams end with it."""

    def __init__(self, network: NetworkFile, key: PrivateKey, entropy: Entropy) -> None:
        self.network = network
        self.id: NodeId = key.address
        self.addresses: tuple[str, ...] = ()
        self.tracker: Tracker | None = None
        self._key = key
        self._entropy = entropy
        self._rng = Random(entropy.token(16))
        self._streams: StreamNode | None = None
        self._host: RuntimeHost
        self._subscriptions: dict[StreamId, list[Subscription]] = {}
        self._ready: dict[StreamId, asyncio.Event] = {}
        self._accepted: MessageId | None = None

    # Life

    @classmethod
    @asynccontextmanager
    async def open(
        cls, network: str | Path | NetworkFile, *, entropy: Entropy | None = None
    ) -> AsyncIterator[Node]:
        """Start a node from a network file (or one read before), and stop it at the end."""
        entropy = entropy or SystemEntropy()
        if not isinstance(network, NetworkFile):
            network = load_network_file(network)
        key = await asyncio.to_thread(_key, network, entropy)
        node = cls(network, key, entropy)
        try:
            await node._start()
            yield node
        finally:
            await node.close()

    async def _start(self) -> None:
        network = self.network
        machines: list[Machine] = []
        if network.tracker is not None:
            degree = network.tracker.degree
            seed = self._rng.getrandbits(64)
            self.tracker = Tracker(lambda stream: RandomPolicy(degree, Random(f"{seed}{stream}")))
            machines.append(self.tracker)
        if network.trackers or network.tracker is not None:
            chain = self._entropy.token(8).hex()
            tracker = network.tracker_of(Contact(self.id))
            self._streams = StreamNode(Contact(self.id), tracker, self._key.sign, chain, self._rng)
            machines.append(self._streams)
        roles = ("tracker", "node") if self.tracker is not None else ("node",)
        self._host = RuntimeHost(self.id, machines, [StreamsCodec()], rng=self._rng)
        self._host.listeners.append(self._notified)
        transport = WebSocketTransport(
            Credentials(self._key, self._entropy, roles), self._host, tls=_tls(network)
        )
        self.addresses = await self._host.open([transport], network.node.listen)

    async def close(self) -> None:
        """Leave every stream, flush, and close every link."""
        if not hasattr(self, "_host"):
            return
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.close()
        if self._streams is not None and self._streams.streams:
            for stream in list(self._streams.streams):
                self._host.command(self._streams, LeaveStream(stream))
        await self._host.stop()

    # Streams

    async def create_stream(self, path: str) -> Stream:
        """A stream of our own: its id is our address and the path."""
        if not path.startswith("/"):
            raise UsageError(f"stream path {path!r}: begin with a slash, as in '/city/vehicles'")
        return Stream(self, _stream_id(show_node_id(self.id) + path))

    async def open_stream(self, id: str) -> Stream:
        """Somebody's stream, by its full id, or our own by its path."""
        if id.startswith("/"):
            return await self.create_stream(id)
        return Stream(self, _stream_id(id))

    async def join(self, id: str) -> None:
        """Help to carry a stream without listening to it."""
        await self._join((await self.open_stream(id)).id, subscribe=False)

    async def publish(
        self, stream: StreamId, content: bytes, content_type: int, partition: int
    ) -> MessageId:
        """Send one message; used by Stream.publish."""
        streams = self._stream_machine()
        if stream not in streams.streams:
            await self._join(stream, subscribe=False)
        await self._host.wait_for_room(PATIENCE_NS)
        self._host.command(streams, Publish(stream, content, content_type, partition))
        accepted, self._accepted = self._accepted, None
        if accepted is None:
            raise UsageError(f"{stream}: the message was not accepted; see the log")
        return accepted

    async def attach(self, stream: StreamId, subscription: Subscription) -> None:
        """Begin to feed a subscription; used by Stream.subscribe."""
        self._subscriptions.setdefault(stream, []).append(subscription)
        try:
            await self._join(stream, subscribe=True)
        except BaseException:
            self._subscriptions[stream].remove(subscription)
            raise

    async def detach(self, stream: StreamId, subscription: Subscription) -> None:
        """Stop feeding a subscription."""
        left = self._subscriptions.get(stream, [])
        if subscription in left:
            left.remove(subscription)

    async def _join(self, stream: StreamId, *, subscribe: bool) -> None:
        streams = self._stream_machine()
        ready = self._ready.setdefault(stream, asyncio.Event())
        self._host.command(streams, JoinStream(stream, subscribe))
        try:
            await asyncio.wait_for(ready.wait(), JOIN_TIMEOUT_S)
        except TimeoutError:
            raise UsageError(
                f"{stream}: no answer from tracker {show_node_id(self._tracker_id())} within "
                f"{JOIN_TIMEOUT_S:.0f} s: is it running, at the address in the network file?"
            ) from None

    def degree(self, stream: StreamId) -> int:
        """Neighbours that this node sends a stream's data to."""
        state = self._stream_machine().streams.get(stream)
        return 0 if state is None else len(state.channel.active)

    def _notified(self, event: Any) -> None:
        if type(event) is MessageArrived:
            for subscription in self._subscriptions.get(event.message.id.stream, ()):
                subscription.push(event)
        elif type(event) is PublishAccepted:
            self._accepted = event.id
        elif type(event) is StreamReady:
            self._ready.setdefault(event.stream, asyncio.Event()).set()

    def _stream_machine(self) -> StreamNode:
        if self._streams is None:
            raise UsageError("this node knows no tracker: add [[trackers]] to its network file")
        return self._streams

    def _tracker_id(self) -> NodeId:
        return self.network.tracker_of(Contact(self.id)).node

    @property
    def host(self) -> RuntimeHost:
        """The driver underneath, for gateways and metrics."""
        return self._host


def _stream_id(text: str) -> StreamId:
    owner, slash, path = text.partition("/")
    if not (slash and path and owner) or len(text) > STREAM_ID_CHARS_MAX:
        raise UsageError(
            f"stream id {text!r}: write the owner's address, a slash and a path, "
            f"{STREAM_ID_CHARS_MAX} characters at most"
        )
    return StreamId(text)


def _key(network: NetworkFile, entropy: Entropy) -> PrivateKey:
    if network.node.key is None:
        return PrivateKey.generate(entropy)
    return open_keystore(network.path(network.node.key), network.passphrase())


def _tls(network: NetworkFile) -> ssl.SSLContext | None:
    if network.node.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(network.path(network.node.certificate))
    return context
