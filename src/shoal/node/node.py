"""One process in the network: keys, links, machines and streams behind one object."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from shoal.base.errors import ConfigError, UsageError, WrongPassphrase
from shoal.base.ids import MessageId, NodeId, StreamId, parse_stream_id, show_node_id
from shoal.base.units import S_NS
from shoal.identity import Entropy, PrivateKey, SystemEntropy, open_keystore
from shoal.kernel.codec import Codec
from shoal.kernel.contact import Contact
from shoal.kernel.machine import Machine
from shoal.node.equivocations import Equivocations
from shoal.node.history import HISTORY_EVENTS, NodeHistory
from shoal.node.network_file import NetworkFile, load_network_file
from shoal.node.partitions import Partitions
from shoal.node.storage_role import StorageRole
from shoal.node.stream import Stream
from shoal.node.subscription import Subscription
from shoal.protocols.streams.aware_policy import AwarePolicy
from shoal.protocols.streams.commands import (
    EquivocationSeen,
    JoinStream,
    LeaveStream,
    MessageArrived,
    Publish,
    PublishAccepted,
    StreamReady,
)
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.wire import HistoryCodec
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.random_policy import RandomPolicy
from shoal.protocols.streams.ring import TrackerRing
from shoal.protocols.streams.topology import TopologyPolicy
from shoal.protocols.streams.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.runtime import RuntimeHost
from shoal.transport.port import Credentials
from shoal.transport.websocket import WebSocketTransport

JOIN_TIMEOUT_S = 15.0  # dialling a tracker, being taken in, opening links: well within this
PATIENCE_NS = 2 * S_NS  # a publisher waits this long for stuck neighbours, once


class _Membership(msgspec.Struct, eq=False):
    """Why this node is in a stream."""

    ready: asyncio.Event
    users: int = 0
    """Subscriptions, whoever waits to be taken in, and one more if it stays."""
    stays: bool = False
    """It publishes, or was asked to carry the stream: until the node's end."""
    subscriptions: list[Subscription] = []


class _Receipt(msgspec.Struct, eq=False):
    """The token of a Publish: what the machine said to it."""

    id: MessageId | None = None
    signed: bytes = b""


class Node:
    """A running node. Open it with Node.open; its streams end with it."""

    def __init__(self, network: NetworkFile, key: PrivateKey, entropy: Entropy) -> None:
        self.network = network
        self.id: NodeId = key.address
        self.addresses: tuple[str, ...] = ()
        self.tracker: Tracker | None = None
        self.partitions = Partitions(network)
        self.equivocations = Equivocations()
        """Publishers that signed two messages under one id."""
        self.host: RuntimeHost
        """The driver underneath, for gateways and metrics."""
        self._key = key
        self._entropy = entropy
        self._rng = Random(entropy.token(16))
        self._trackers = network.trackers_of(Contact(self.id))
        self._streams: StreamNode | None = None
        self._history: NodeHistory | None = None
        self._memberships: dict[StreamId, _Membership] = {}
        self._closed = False
        self.storage: StorageRole | None = None
        """What makes this node a storage node, if it is one."""
        if network.storage is not None:
            self.storage = StorageRole(network, network.storage, self.id, entropy)
        self.host = self._make_host()

    def _make_host(self) -> RuntimeHost:
        machines: list[Machine] = []
        if self.network.tracker is not None:
            policy = partial(_make_policy, self.network, self._rng.getrandbits(64))
            self.tracker = Tracker(policy, storage_of=self.network.storage_of)
            machines.append(self.tracker)
        if self._trackers:
            chain = self._entropy.token(8).hex()
            ring = TrackerRing(self._trackers, self.network.pinned_trackers)
            self._streams = StreamNode(self.id, ring, self._key.sign, chain, self._rng)
            client = HistoryClient(self.id, ring.order, partitions_of=self.partitions.count)
            machines += [self._streams, client]
        disk = None
        if self.storage is not None:
            machines.extend(self.storage.machines)
            disk = self.storage.disk
        codecs: list[Codec] = [StreamsCodec(), HistoryCodec()]
        host = RuntimeHost(self.id, machines, codecs, rng=self._rng, disk=disk)
        host.listeners.append(self._notified)
        if self._streams is not None:
            self._history = NodeHistory(host, client)
        return host

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
        node = cls(network, await _key(network, entropy), entropy)
        try:
            await node._start()
            yield node
        finally:
            await node.close()

    async def _start(self) -> None:
        parts = {"tracker": self.tracker, "node": self, "storage": self.storage}
        roles = tuple(name for name, part in parts.items() if part is not None)
        credentials = Credentials(self._key, self._entropy, roles)
        transport = WebSocketTransport(credentials, self.host, tls=_tls(self.network))
        self.addresses = await self.host.open([transport], self.network.node.listen)
        if self.storage is not None:
            self.storage.start(self.host, None if self._streams is None else self._keep_stream)

    async def close(self) -> None:
        """Leave every stream, flush, and close every link."""
        self._closed = True
        if self._history is not None:
            self._history.close()
        for membership in self._memberships.values():
            membership.ready.set()  # nobody waits for a node that is gone
            for subscription in membership.subscriptions:
                subscription.close()
        try:
            for stream in list(self._memberships):
                await self._leave(stream)
        finally:
            await self.host.stop()

    @property
    def history(self) -> NodeHistory:
        """What storage nodes keep, for Stream and gateways."""
        self._stream_machine()
        assert self._history is not None  # it is there if the stream machine is
        return self._history

    # Streams

    async def create_stream(self, path: str) -> Stream:
        """A stream of our own: its id is our address and the path."""
        if not path.startswith("/"):
            raise UsageError(f"stream path {path!r}: begin with a slash, as in '/city/vehicles'")
        return Stream(self, parse_stream_id(show_node_id(self.id) + path))

    async def open_stream(self, id: str) -> Stream:
        """Somebody's stream, by its full id, or our own by its path."""
        if id.startswith("/"):
            return await self.create_stream(id)
        return Stream(self, parse_stream_id(id))

    async def join(self, id: str) -> None:
        """Help to carry a stream without listening to it."""
        await self._stay((await self.open_stream(id)).id)

    async def publish(
        self, stream: StreamId, content: bytes, content_type: int, partition: int, copies: int = 0
    ) -> MessageId:
        """Send one message, and have so many storage nodes keep it; used by Stream.publish."""
        membership = self._memberships.get(stream)
        if membership is None or not membership.stays:
            await self._stay(stream)
        await self.host.wait_for_room(PATIENCE_NS)
        command, receipt = Publish(stream, content, content_type, partition), _Receipt()
        await self.host.issue(self._stream_machine(), command, receipt)
        assert receipt.id is not None  # the machine says so at once, or raises
        if copies:
            await self.history.keep(stream, receipt.signed, copies)
        return receipt.id

    async def attach(self, stream: StreamId, subscription: Subscription) -> None:
        """Begin to feed a subscription; used by Stream.subscribe."""
        await self._enter(stream, subscription)

    async def detach(self, stream: StreamId, subscription: Subscription) -> None:
        """Stop feeding a subscription; the last one to go takes the node out of the stream, unless
        it publishes there."""
        await self._exit(stream, subscription)

    def degree(self, stream: StreamId) -> int:
        """Neighbours that this node sends a stream's data to."""
        state = self._stream_machine().streams.get(stream)
        return 0 if state is None else len(state.channel.active)

    # Steps

    async def _stay(self, stream: StreamId) -> None:
        """Be in a stream until the end."""
        await self._enter(stream, None)
        membership = self._memberships[stream]
        if membership.stays:
            await self._exit(stream, None)  # somebody else was faster
        membership.stays = True

    async def _enter(self, stream: StreamId, subscription: Subscription | None) -> None:
        """Be in a stream, for one more reason; undone if it does not come to that."""
        streams = self._stream_machine()
        membership = self._memberships.get(stream)
        if membership is None:
            membership = self._memberships[stream] = _Membership(asyncio.Event())
        membership.users += 1
        if subscription is not None:
            membership.subscriptions.append(subscription)
        try:
            await self.host.issue(streams, self._join(stream, subscribe=subscription is not None))
            await asyncio.wait_for(membership.ready.wait(), JOIN_TIMEOUT_S)
            self._stream_machine()
        except TimeoutError:
            await self._exit(stream, subscription)
            raise UsageError(self._no_answer(stream)) from None
        except BaseException:
            await self._exit(stream, subscription)
            raise

    def _keep_stream(self, stream: StreamId) -> None:
        """Be in a stream until the end, for the storage role."""
        membership = self._memberships.setdefault(stream, _Membership(asyncio.Event()))
        membership.users += 1
        self.host.command(self._stream_machine(), self._join(stream, keep=True))

    def _join(self, stream: StreamId, *, subscribe: bool = False, keep: bool = False) -> JoinStream:
        redundant_feeds = self.network.redundant_feeds(stream)
        return JoinStream(stream, subscribe, keep=keep, redundant_feeds=redundant_feeds)

    async def _exit(self, stream: StreamId, subscription: Subscription | None) -> None:
        membership = self._memberships.get(stream)
        if membership is None:
            return  # the node is closed
        if subscription is not None:
            membership.subscriptions.remove(subscription)
        membership.users -= 1
        if not membership.users:
            await self._leave(stream)

    async def _leave(self, stream: StreamId) -> None:
        del self._memberships[stream]
        if self._streams is not None and stream in self._streams.streams:
            await self.host.issue(self._streams, LeaveStream(stream))

    def _notified(self, event: Any) -> None:
        if type(event) is MessageArrived:
            membership = self._memberships.get(event.message.id.stream)
            for subscription in membership.subscriptions if membership is not None else ():
                subscription.push(event)
        elif type(event) is PublishAccepted:
            if isinstance(event.token, _Receipt):
                event.token.id, event.token.signed = event.id, event.signed
        elif type(event) is StreamReady:
            membership = self._memberships.get(event.stream)
            if membership is not None:
                membership.ready.set()
        elif type(event) is EquivocationSeen:
            self.equivocations.seen(event)
        elif type(event) in HISTORY_EVENTS:
            event.token.heard(event)

    def _stream_machine(self) -> StreamNode:
        if self._closed:
            raise UsageError("this node is closed: open another one")
        if self._streams is None:
            raise UsageError("this node knows no tracker: add [[trackers]] to its network file")
        return self._streams

    def _no_answer(self, stream: StreamId) -> str:
        tracker = self._stream_machine().trackers.ring.order(stream)[0].node
        problem = self.host.dial_problem(tracker)
        return (
            f"{stream}: no answer from tracker {show_node_id(tracker)} within "
            f"{JOIN_TIMEOUT_S:g} s{f' ({problem})' if problem else ''}: "
            "is it running, at the address in the network file?"
        )


def _make_policy(network: NetworkFile, seed: int, stream: StreamId) -> TopologyPolicy:
    assert network.tracker is not None  # only a tracker makes policies
    settings = network.stream_settings(stream)
    degree = settings.degree or network.tracker.degree
    aware = (settings.policy or network.tracker.policy) == "aware"
    return (AwarePolicy if aware else RandomPolicy)(degree, Random(f"{seed}{stream}"))


async def _key(network: NetworkFile, entropy: Entropy) -> PrivateKey:
    if network.node.key is None:
        return PrivateKey.generate(entropy)
    path, passphrase = network.path(network.node.key), network.passphrase()
    try:
        # It takes a third of a second of one core, on purpose.
        return await asyncio.to_thread(open_keystore, path, passphrase)
    except WrongPassphrase as error:
        if network.node.passphrase is not None:
            raise
        raise ConfigError(
            f"node.passphrase: {path} needs one: write env:NAME or file:PATH"
        ) from error


def _tls(network: NetworkFile) -> ssl.SSLContext | None:
    if network.node.certificate is None:
        return None
    path = network.path(network.node.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"node.certificate: {path}: {error}: give a PEM file with certificate and key"
        ) from error
    return context
