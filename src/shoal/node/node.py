"""One process in the network: keys, links, machines and streams behind one object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, NodeId, StreamId, parse_stream_id, show_node_id
from shoal.base.units import S_NS
from shoal.identity import Entropy, PrivateKey, SystemEntropy, show_peer_id
from shoal.kernel.contact import Contact
from shoal.node.credentials import key_of, tls_of
from shoal.node.equivocations import Equivocations
from shoal.node.history import HISTORY_EVENTS, NodeHistory
from shoal.node.network_file import NetworkFile, load_network_file
from shoal.node.outbox_delivery import Delivery
from shoal.node.outbox_role import OutboxRole
from shoal.node.parts import Parts
from shoal.node.search_role import cached_hosts
from shoal.node.searching import SearchDoors, Searching
from shoal.node.storage_role import StorageRole
from shoal.node.stream import Stream
from shoal.node.subscription import Subscription
from shoal.node.topic import ANYONE, LAST_SEEN, AnyCid, Peers, Topic, TopicSettings, cid_of_any
from shoal.node.topic import create_topic as make_topic
from shoal.node.topic_events import Event
from shoal.node.topics import NodeTopics
from shoal.protocols.streams.commands import (
    EquivocationSeen,
    JoinStream,
    LeaveStream,
    MessageArrived,
    Publish,
    PublishAccepted,
    StreamReady,
)
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.tracker import Tracker
from shoal.protocols.topics.cid import parse_cid
from shoal.protocols.topics.descriptors import EventLinking
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


class Node(Searching):
    """A running node. Open it with Node.open; its streams end with it."""

    def __init__(
        self,
        network: NetworkFile,
        key: PrivateKey,
        entropy: Entropy,
        cached: Sequence[Contact] = (),
    ) -> None:
        """`cached` are nodes of the search network that caches name."""
        super().__init__()
        self.network = network
        self.id: NodeId = key.address
        self.addresses: tuple[str, ...] = ()
        self.equivocations = Equivocations()
        """Publishers that signed two messages under one id."""
        self._key = key
        self._entropy = entropy
        rng = Random(entropy.token(16))
        parts = Parts(network, key, entropy, rng, cached)
        self.tracker: Tracker | None = parts.tracker
        self.partitions = parts.partitions
        self.storage: StorageRole | None = parts.storage
        """What makes this node a storage node, if it is one."""
        self.outbox: OutboxRole | None = parts.outbox
        """Where Spark queries hand in what they publish, if this node has one."""
        self.host = RuntimeHost(self.id, parts.machines, parts.codecs, rng=rng, disk=parts.disk)
        """The driver underneath, for gateways and metrics."""
        self.host.listeners.append(self._notified)
        self._streams: StreamNode | None = parts.streams
        self._history: NodeHistory | None = None
        self._memberships: dict[StreamId, _Membership] = {}
        self._topics: NodeTopics | None = None
        if parts.history is not None:
            self._history = NodeHistory(self.host, parts.history)
        if parts.topics is not None:
            self._topics = NodeTopics(self.host, parts.topics, key)
        if parts.search is not None:
            self._search = SearchDoors(self.host, parts.search, rng)
            if self._topics is not None:
                self._topics.on_topic = self._search.announce_topic

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
        key = await key_of(network, entropy)
        node = cls(network, key, entropy, await cached_hosts(network))
        try:
            await node._start()
            yield node
        finally:
            await node.close()

    async def _start(self) -> None:
        parts = {
            "tracker": self.tracker,
            "node": self,
            "storage": self.storage,
            "topics": self._topics,
            "search": self._search,
        }
        roles = tuple(name for name, part in parts.items() if part is not None)
        credentials = Credentials(self._key, self._entropy, roles)
        transport = WebSocketTransport(credentials, self.host, tls=tls_of(self.network))
        self.addresses = await self.host.open([transport], self.network.node.listen)
        if self.storage is not None:
            self.storage.start(self.host, None if self._streams is None else self._keep_stream)
        if self.outbox is not None:
            delivery = Delivery(self.host, self._stream_machine(), self.history, self._stay_in)
            self.outbox.start(delivery, self.host.now_ns)
        if self._topics is not None and self.network.topics is not None:
            self._topics.keep(map(parse_cid, self.network.topics.pinned))
        if self._search is not None:
            await self._search.door.begin()

    async def close(self) -> None:
        """Leave every stream, flush, and close every link."""
        self._closed = True
        if self.outbox is not None:
            await self.outbox.close()
        if self._history is not None:
            self._history.close()
        if self._topics is not None:
            await self._topics.close()
        if self._search is not None:
            await self._search.door.close()
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
        return self._opened(parse_stream_id(show_node_id(self.id) + path))

    async def open_stream(self, id: str) -> Stream:
        """Somebody's stream, by its full id, or our own by its path."""
        if id.startswith("/"):
            return await self.create_stream(id)
        return self._opened(parse_stream_id(id))

    async def join(self, id: str) -> None:
        """Help to carry a stream without listening to it."""
        await self._stay((await self.open_stream(id)).id)

    async def publish(
        self, stream: StreamId, content: bytes, content_type: int, partition: int, copies: int = 0
    ) -> MessageId:
        """Send one message, and have so many storage nodes keep it; used by Stream.publish."""
        await self._stay_in(stream)
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

    # Topics

    @property
    def peer_id(self) -> str:
        """How topics name this node: as an author, and as one who may publish."""
        return show_peer_id(self._key.public.peer_id)

    async def create_topic(
        self,
        name: str,
        *,
        publishers: Peers | None = None,
        requests: Peers = ANYONE,
        linking: EventLinking = LAST_SEEN,
        sub_topics: Mapping[str, AnyCid | Topic] | None = None,
    ) -> Topic:
        """A durable topic of our own, in which this node is until its end. Publishers are this
        node alone, shoal.ANYONE, or a list of peer ids; the others may ask, unless `requests` is
        shoal.NOBODY or a list without them."""
        settings = TopicSettings(publishers, requests, linking, sub_topics)
        return await make_topic(self.topics, name, settings)

    async def topic(self, cid: AnyCid) -> Topic:
        """Somebody's durable topic, or our own, by its CID."""
        id = cid_of_any("cid", cid)
        found = await self.topics.find(id)
        self.topics.on_topic(id, found)
        return Topic(self.topics, id, found)

    async def fetch_event(self, cid: AnyCid) -> Event:
        """An event of whichever topic, by its CID."""
        return await self.topics.fetch(cid_of_any("cid", cid))

    @property
    def topics(self) -> NodeTopics:
        """The door to topics, for Topic."""
        if self._closed:
            raise UsageError("this node is closed: open another one")
        if self._topics is None:
            raise UsageError("this node is not in the DHT: add [dht] to its network file")
        return self._topics

    # Steps

    def _opened(self, id: StreamId) -> Stream:
        if self._search is not None:
            self._search.announce_stream(id, self.partitions.count(id))
        return Stream(self, id)

    async def _stay(self, stream: StreamId) -> None:
        """Be in a stream until the end."""
        await self._enter(stream, None)
        membership = self._memberships[stream]
        if membership.stays:
            await self._exit(stream, None)  # somebody else was faster
        membership.stays = True

    async def _stay_in(self, stream: StreamId) -> None:
        """The same, if it is not so already."""
        membership = self._memberships.get(stream)
        if membership is None or not membership.stays:
            await self._stay(stream)

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
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await membership.ready.wait()
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
