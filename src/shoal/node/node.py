"""One process in the network: keys, links, machines and streams behind one object."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from shoal.base.errors import UsageError
from shoal.base.ids import Contact, MessageId, NodeId, StreamId, parse_stream_id, show_node_id
from shoal.base.log_line_limit import log_of_others
from shoal.base.page_guard import PageGuard
from shoal.base.units import S_NS
from shoal.config.network_file import NetworkFile, Reloaded, compare, load_network_file
from shoal.config.stream_settings import terms_in_file
from shoal.identity import Entropy, PrivateKey, SystemEntropy, show_peer_id
from shoal.identity.message_body import decode_body, split_signed
from shoal.identity.session_record import NO_SESSION, SessionRecord
from shoal.identity.topics.cid import Cid, parse_cid, show_cid
from shoal.identity.topics.descriptors import EventLinking, TopicDescriptor
from shoal.kernel.access import Permission
from shoal.node.assembly import Parts, webrtc_transports
from shoal.node.clock_guard import ClockGuard
from shoal.node.keys.group_keys import NodeKeys
from shoal.node.keys.key_lock import HeldSession, held_key, tls_of
from shoal.node.role_checks import NodeReadiness
from shoal.node.roles.outbox import Delivery, OutboxRole
from shoal.node.roles.registry import RegistryRole
from shoal.node.roles.storage import StorageRole, TopicLogs
from shoal.node.search.announcements import Announcements, PublicStreams
from shoal.node.search.client import Measure, NodeSearch, SearchRole, cached_hosts
from shoal.node.search.documents import NodeDocuments, PublishedDocument, Space
from shoal.node.search.results import (
    CONFIDENCE_DEFAULT,
    QUEUE_HITS_MAX,
    QUEUE_SIGHTINGS_MAX,
    WITHIN_S_DEFAULT,
    FoundDocument,
    Hit,
    Search,
    Sighting,
    Watch,
    found_as,
)
from shoal.node.search.user_connections import Incoming, Peer, UserConnection, UserConnections
from shoal.node.streams.history import HISTORY_EVENTS, NodeHistory
from shoal.node.streams.memberships import Memberships
from shoal.node.streams.publishing import Publishing, UnkeptMessages, unkept_path
from shoal.node.streams.stream import Stream
from shoal.node.streams.subscription import Subscription
from shoal.node.topics.client import NodeTopics
from shoal.node.topics.event import Event
from shoal.node.topics.topic import (
    ANYONE,
    LAST_SEEN,
    AnyCid,
    Peers,
    Topic,
    TopicSettings,
    cid_of_any,
)
from shoal.node.topics.topic import create_topic as make_topic
from shoal.protocols.dht.commands import Meet as MeetDht
from shoal.protocols.search.commands import Meet as MeetSearch
from shoal.protocols.search.commands import OpenSpace
from shoal.protocols.search.documents.document import Kind, Life
from shoal.protocols.search.spaces import DocumentSpace, MatchedSpace, Matcher
from shoal.protocols.streams.commands import EquivocationSeen, PublishAccepted, SetTrackers
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.registry.port import StreamTerms
from shoal.runtime import RuntimeHost
from shoal.runtime.readiness import Readiness
from shoal.transport.port import Credentials, Transport
from shoal.transport.websocket import WebSocketTransport

# Search, as an application uses it: the part of Node that is about documents.


EVERYTHING = "*"


class SearchDoors:
    """What a node in the search network has to offer."""

    def __init__(self, host: RuntimeHost, role: SearchRole, rng: Random) -> None:
        self.door = NodeSearch(host, role, rng)
        self.space = DocumentSpace()
        self.documents = NodeDocuments(self.door, self.space, EVERYTHING)
        self.measure = Measure(self.door)
        self.users = UserConnections(self.door)
        self._announcements = Announcements(self.door, self.documents)
        self._announces = role.section.announce

    def announce_stream(self, id: StreamId, partitions: int) -> None:
        """Have a public stream found, unless the network file says otherwise."""
        if self._announces:
            self._announcements.stream(id, partitions)

    def announce_topic(self, id: Cid, topic: TopicDescriptor | None) -> Awaitable[None] | None:
        """Have a public topic found, unless the network file says otherwise; None: no more."""
        if topic is None:
            return self._announcements.withdraw(show_cid(id))
        return self._announcements.topic(id, topic) if self._announces else None

    def follow(self, registry: RegistryRole, owner: NodeId) -> PublicStreams | None:
        """Have those streams found that the registry shows to everybody, unless the network file
        says otherwise."""
        if not self._announces:
            return None
        streams = PublicStreams(owner, registry, self._announcements)
        self.door.start(streams.run())
        return streams


class Searching:
    """What a node lets an application do in the search network."""

    def __init__(self) -> None:
        self._search: SearchDoors | None = None
        self._closed = False

    async def put(
        self,
        content: Mapping[str, Any],
        *,
        kind: Life = "managed",
        name: str | None = None,
        life: timedelta | float | None = None,
    ) -> PublishedDocument:
        """Have a JSON object found by others, in place of this node's document of the same name;
        without a name it gets one.

        How it is kept: `instant`, not at all, it only meets standing queries; `fading`, by whoever
        it reached; `managed`, the same, as long as this node runs; `durable`, by the network,
        whether this node runs or not. Without a life: for a minute, an hour, always, 30 days.
        """
        if not isinstance(content, Mapping):
            raise UsageError(
                f"a document of type {type(content).__name__}: give a mapping, a JSON object"
            )
        what: Kind = "event" if kind == "instant" else "document"
        return await self.searching.documents.put(content, kind, name, life, what)

    async def delete(self, name: str) -> PublishedDocument:
        """Have this node's document of that name not found any more, by anybody."""
        return await self.searching.documents.delete(name)

    async def get(
        self, name: str, *, owner: str | None = None, within: float = WITHIN_S_DEFAULT
    ) -> FoundDocument:
        """The newest version of a document, by its owner (this node, if none is given) and name."""
        return found_as(FoundDocument, await self.searching.documents.get(name, owner, within))

    def search(
        self,
        query: str,
        *,
        confidence: float = CONFIDENCE_DEFAULT,
        limit: int | None = None,
        within: float = WITHIN_S_DEFAULT,
        queue_max: int = QUEUE_HITS_MAX,
    ) -> Search[Hit]:
        """Documents that match, as they are found, until the search is as sure as it shall be to
        have found each one that is there, or has `limit` of them, or has taken `within` seconds."""
        return Search(
            self.searching.door,
            self.searching.space,
            query,
            Hit,
            confidence=confidence,
            limit=limit,
            within=within,
            queue_max=queue_max,
        )

    def watch(self, query: str, *, queue_max: int = QUEUE_SIGHTINGS_MAX) -> Watch[Sighting]:
        """Documents that match, as they are put from now on."""
        doors = self.searching
        return Watch(doors.door, doors.space, query, Sighting, queue_max=queue_max)

    async def space(self, name: str, matcher: Matcher) -> Space:
        """Have data of our own form found by questions of our own form, by all nodes that open the
        space of this name. It is open until this node's end."""
        door = self.searching.door
        space = MatchedSpace(name, matcher)
        await door.host.issue(door.machine, OpenSpace(space))
        return Space(door, space)

    @property
    def measure(self) -> Measure:
        """Sums, minima and maxima over the whole network, and its size."""
        return self.searching.measure

    def connect(
        self, peer: Peer, type: str, *, addresses: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[UserConnection]:
        """Talk to an application on another node that accepts this type; where it is, if this node
        has not met it."""
        return self.searching.users.connect(peer, type, addresses)

    def accept(self, type: str) -> AbstractAsyncContextManager[Incoming]:
        """Be talked to by applications on other nodes."""
        return self.searching.users.accept(type)

    @property
    def searching(self) -> SearchDoors:
        """The doors to search."""
        if self._closed:
            raise UsageError("this node is closed: open another one")
        if self._search is None:
            raise UsageError("this node is not in the search network: add [search] to its file")
        return self._search


PATIENCE_NS = 2 * S_NS  # a publisher waits this long for stuck neighbours, once


class Node(Searching):
    """A running node. Open it with Node.open; its streams end with it."""

    def __init__(
        self,
        network: NetworkFile,
        key: PrivateKey,
        entropy: Entropy,
        cached: Sequence[Contact] = (),
        registry: RegistryRole | None = None,
        session: HeldSession | None = None,
    ) -> None:
        """`cached` are nodes of the search network that caches name."""
        super().__init__()
        self.network = network
        self.id: NodeId = key.address
        self.home: NodeId = key.address
        """Whose streams "/path" names: the key's that the network file names (held_key.py)."""
        self.addresses: tuple[str, ...] = ()
        self.equivocations = Equivocations()
        """Publishers that signed two messages under one id."""
        self._key = key
        self._entropy = entropy
        rng = Random(entropy.token(16))
        parts = Parts(network, key, entropy, rng, cached, registry)
        self.tracker: Tracker | None = parts.tracker
        self.partitions = parts.partitions
        self._terms = parts.terms
        self.storage: StorageRole | None = parts.storage
        """What makes this node a storage node, if it is one."""
        self.topic_logs: TopicLogs | None = parts.topic_logs
        """The logs of topics that a storage node keeps, if it does."""
        self.outbox: OutboxRole | None = parts.outbox
        """Where Spark queries hand in what they publish, if this node has one."""
        self.registry: RegistryRole | None = registry
        """Who may do what, if the network file names a registry."""
        self.host = RuntimeHost(
            self.id,
            parts.machines,
            parts.codecs,
            rng=rng,
            disk=parts.disk,
            access=registry,
            wanted_back=parts.wanted_back,
            session=NO_SESSION if session is None else session.record,
        )
        """The driver underneath, for gateways and metrics."""
        self.host.listeners.append(self._notified)
        self._parts = parts
        self._checks = NodeReadiness(self.host)
        limit_ns = int(network.node.clock_limit_s * S_NS)
        disk = None if parts.storage is None else parts.storage.disk
        self.clock = ClockGuard(self.host, parts.clocks, limit_ns, disk)
        """Whether the time of day of this node can be believed."""
        self._session = session
        self.host.on_replaced.append(self._session_replaced)
        parts.peers.prefix_of = self.host.prefix_of
        self._streams: StreamNode | None = parts.streams
        self._signaller = parts.signaller
        self._history: NodeHistory | None = None
        self._publishing: Publishing | None = None
        self.keys: NodeKeys | None = None
        """What this node seals and opens with, in a network with a registry."""
        self._memberships = Memberships(self.host, parts.streams, network, registry)
        self._topics: NodeTopics | None = None
        if parts.history is not None:
            self._history = NodeHistory(self.host, parts.history)
            self._publishing = Publishing(
                self.host, lambda: self._memberships.machine, self._history
            )
            if parts.exchange is not None and registry is not None:
                keys = (parts.exchange, self._history, registry.registry, key, entropy)
                self.keys = NodeKeys(self.host, *keys, self._publishing.announce)
                self._history.keys = self._publishing.keys = self.keys
        if parts.topics is not None:
            self._topics = NodeTopics(self.host, parts.topics, key)
        if parts.search is not None:
            self._search = SearchDoors(self.host, parts.search, rng)
            if self._topics is not None:
                self._topics.announce_to_all = self._search.announce_topic

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
        async with held_key(network, entropy) as held:
            registry = await RegistryRole.open(network, held.owner, held.key.address)
            try:
                cached = await cached_hosts(network)
                node = cls(network, held.key, entropy, cached, registry, held.session)
                node.home = held.owner.address
                if node.keys is not None and held.owner is not held.key:
                    node.keys.stand_in_for(held.owner)
                try:
                    await node._start()
                    yield node
                finally:
                    await node.close()
            finally:
                if registry is not None:
                    await registry.close()

    async def _start(self) -> None:
        parts = {
            "tracker": self.tracker,
            "node": self,
            "storage": self.storage,
            "topics": self._topics,
            "search": self._search,
        }
        roles = tuple(name for name, part in parts.items() if part is not None)
        credentials = Credentials(self._key, self._entropy, roles, session=self.host.session)
        transports: list[Transport] = [
            WebSocketTransport(
                credentials,
                self.host,
                tls=tls_of(self.network),
                pages=PageGuard("node", self.network.node.origins, self.network.node.hosts),
            ),
            *webrtc_transports(self.network, credentials, self.host, self._signaller),
        ]
        if self.registry is not None:
            seen = None if self.storage is None else self.storage.stream_changed
            public = None
            if self._search is not None and self.network.node.key is not None:
                public = self._search.follow(self.registry, self.id)
            self.registry.start(
                self.host.access_changed,
                seen,
                None if public is None else public.changed,
                history=public is not None and self._reads_history,
            )
        if self.keys is not None:
            named = self.network.node.key if self.home == self.id else None
            self.keys.start(None if named is None else self.network.path(named))
        self.addresses = await self.host.open(transports, self.network.node.listen)
        if self.storage is not None:
            self._memberships.entering = self.storage.keep
            members = None if self._streams is None else self._memberships
            self.storage.start(self.host, members)
        if self._publishing is not None:
            if self.network.node.key is not None and self.home == self.id:
                self._publishing.unkept.open(unkept_path(self.network.path(self.network.node.key)))
            self._publishing.unkept.start()
        if self.outbox is not None:
            delivery = Delivery(
                self.host, self._memberships.machine, self.history, self._publish_in, self.keys
            )
            self.outbox.start(delivery, self.host, self.clock, self._permit_publishing)
            self.host.readiness.add("outbox", self.outbox.check)
        if self._topics is not None and self.network.topics is not None:
            self._topics.keep(map(parse_cid, self.network.topics.pinned))
        if self._topics is not None and self.topic_logs is not None:
            self.topic_logs.start(self._topics)
        if self._search is not None:
            await self._search.door.begin()
        self._begin_checks()

    @property
    def _reads_history(self) -> bool:
        """Whether the registry is read from its beginning, to find what was made public before. On
        a chain that takes long: not for those who are there for a moment."""
        network = self.network
        return network.registry is not None and (
            network.registry.folder is not None
            or (network.search is not None and not network.search.client)
        )

    def _begin_checks(self) -> None:
        """Say from now on whether each role works."""
        parts, checks = self._parts, self._checks
        if self.tracker is not None:
            checks.tracker(self.addresses)
        if parts.streams is not None:
            checks.streams(parts.streams)
        if parts.topics is not None:
            checks.dht(parts.topics)
        if parts.search is not None:
            checks.search(parts.search)
        if self.registry is not None:
            checks.registry(self.registry)
        if self.storage is not None:
            checks.storage(self.storage)
        self.clock.start()
        checks.start(self.network)

    async def close(self) -> None:
        """Leave every stream, flush, and close every link. Each part is closed also if one fails,
        or if this is cancelled."""
        self._closed = True
        async with AsyncExitStack() as stack:  # which begins with the last
            if self._publishing is not None:
                stack.push_async_callback(self._publishing.unkept.close)
            stack.push_async_callback(self.host.stop)
            stack.push_async_callback(self._memberships.close)
            if self._search is not None:
                stack.push_async_callback(self._search.door.close)
            if self._topics is not None:
                stack.push_async_callback(self._topics.close)
            if self._history is not None:
                stack.callback(self._history.close)
            for part in (self._checks, self.clock, self.keys, self.topic_logs, self.outbox):
                if part is not None:
                    stack.push_async_callback(part.close)

    async def reload(self, network: str | Path | NetworkFile) -> Reloaded:
        """Go on by another version of the network file, as far as that is possible while the node
        runs: trackers, storage nodes, streams, bootstrap nodes, and limits of storage. What is
        wrong with the file is raised, and then nothing is changed."""
        if not isinstance(network, NetworkFile):
            network = load_network_file(network)
        found = compare(self.network, network)
        terms, parts = self._parts.terms, self._parts
        network = found.network
        before, self.network = self.network, network
        terms.take(network)
        self._memberships.network = network
        if parts.streams is not None and {"trackers", "streams"} & set(found.taken):
            trackers = terms.trackers(Contact(self.id))
            await self.host.issue(parts.streams, SetTrackers(trackers))
        if parts.topics is not None and network.bootstrap != before.bootstrap:
            contacts = tuple(entry.contact() for entry in network.bootstrap)
            parts.topics.bootstrap[:] = contacts
            await self.host.issue(parts.topics.dht, MeetDht(contacts))
        if parts.search is not None and network.search_bootstrap != before.search_bootstrap:
            met = tuple(entry.contact() for entry in network.search_bootstrap)
            parts.search.bootstrap[:] = [contact for contact in met if contact.node != self.id]
            await self.host.issue(parts.search.machine, MeetSearch(met))
        if self.storage is not None and network.storage is not None:
            problem = self.storage.reload(network.storage)
            if problem is not None:
                found.restart["storage"] = problem
        self._checks.take(network)
        return Reloaded(tuple(found.taken), tuple(found.restart))

    @property
    def readiness(self) -> Readiness:
        """Whether this node can do its work now: each role that its network file gives it works,
        or says in a sentence why it does not."""
        return self.host.readiness.look()

    @property
    def history(self) -> NodeHistory:
        """What storage nodes keep, for Stream and gateways."""
        self._memberships.machine  # noqa: B018  or it says why there is none
        assert self._history is not None  # it is there if the stream machine is
        return self._history

    # Streams

    async def create_stream(
        self, path: str, *, public: bool = False, terms: StreamTerms | None = None
    ) -> Stream:
        """A stream of our own: its id is our address and the path. In a registry it is new then,
        and ours alone until something is granted; public: everybody may subscribe. Without one,
        anybody who knows the id may do anything. Public streams are found by search, others are
        announced to nobody. What else is decided, terms say, or the network file."""
        if not path.startswith("/"):
            raise UsageError(f"stream path {path!r}: begin with a slash, as in '/city/vehicles'")
        id = parse_stream_id(show_node_id(self.home) + path)
        if self.registry is not None:
            terms = terms or terms_in_file(self.network, id)
            await self.registry.create(path, terms, public=public)
        elif terms is not None:
            raise UsageError("terms are kept in a registry: add [registry], or use [[streams]]")
        stream = await self._opened(id)
        if public and self.registry is None and self._search is not None:
            self._search.announce_stream(id, self.partitions.count(id))
        return stream

    async def open_stream(self, id: str) -> Stream:
        """Somebody's stream, by its full id, or our own by its path. Nobody is told of it."""
        if id.startswith("/"):
            id = show_node_id(self.home) + id
        return await self._opened(parse_stream_id(id))

    async def join(self, id: str) -> None:
        """Help to carry a stream without listening to it."""
        await self._memberships.stay_in((await self.open_stream(id)).id)

    async def publish(
        self, stream: StreamId, content: bytes, content_type: int, partition: int, copies: int = 0
    ) -> MessageId:
        """Send one message, and have so many storage nodes keep it; used by Stream.publish."""
        self.host.demand_session()
        # Storage nodes that are known take a durable message though the tracker is silent: the
        # others get it when that answers.
        await self._publish_in(stream, anyway=bool(copies and self._terms.storage_of(stream)))
        await self.host.wait_for_room(PATIENCE_NS)
        self._memberships.machine  # noqa: B018  or it says why there is none
        assert self._publishing is not None  # it is there if the stream machine is
        return await self._publishing.publish(stream, content, content_type, partition, copies)

    async def retry(self, message: MessageId) -> None:
        """Return when a durable message that was published before has its copies; used by
        Stream.retry."""
        self._memberships.machine  # noqa: B018  or it says why there is none
        assert self._publishing is not None  # it is there if the stream machine is
        await self._publishing.unkept.retry(message)

    @property
    def unkept(self) -> UnkeptMessages | None:
        """Durable messages of this node that wait for storage nodes, if it can publish."""
        return None if self._publishing is None else self._publishing.unkept

    async def attach(self, stream: StreamId, subscription: Subscription) -> None:
        """Begin to feed a subscription; used by Stream.subscribe."""
        if self.registry is not None:
            await self.registry.demand(stream, Permission.SUBSCRIBE)
        await self._memberships.enter(stream, subscription)

    async def detach(self, stream: StreamId, subscription: Subscription) -> None:
        """Stop feeding a subscription; the last one to go takes the node out of the stream, unless
        it publishes there."""
        await self._memberships.exit(stream, subscription)

    @property
    def knows_trackers(self) -> bool:
        """Whether it can take part in streams."""
        return self._streams is not None

    def degree(self, stream: StreamId) -> int:
        """Neighbours that this node sends a stream's data to."""
        state = self._memberships.machine.streams.get(stream)
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
        public: bool = False,
    ) -> Topic:
        """A durable topic of our own, in which this node is until its end. Publishers are this
        node alone, shoal.ANYONE, or a list of peer ids; the others may ask, unless `requests` is
        shoal.NOBODY or a list without them. A public topic is found by search, by its name;
        others are found by their CID alone."""
        settings = TopicSettings(publishers, requests, linking, sub_topics)
        announce = self.topics.announce_to_all
        if public and announce is None:
            raise UsageError("public: search finds it, and this node has none: add [search]")
        topic = await make_topic(self.topics, name, settings)
        if public and announce is not None:
            announce(topic.id, topic.descriptor)
        return topic

    async def topic(self, cid: AnyCid) -> Topic:
        """Somebody's durable topic, or our own, by its CID."""
        id = cid_of_any("cid", cid)
        found = await self.topics.find(id)
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

    def _session_replaced(self, newer: SessionRecord) -> None:
        """A newer session of our key runs: write nothing under its name any more. What this node
        holds it still tells to those who ask it."""
        self.host.readiness.add("identity", self.host.session_problem)
        if self._session is not None:
            self._session.replaced(newer)
        problem = self.host.session_problem() or ""
        if self.storage is not None:
            self.storage.replaced(problem)
        if self._topics is not None:
            self._topics.retire(problem)

    async def _publish_in(self, stream: StreamId, *, anyway: bool = False) -> None:
        """Be in a stream until the end, as a publisher."""
        await self._permit_publishing(stream)
        await self._memberships.stay_in(stream, anyway=anyway)

    async def _permit_publishing(self, stream: StreamId) -> None:
        """NotPermitted, or NotFound, unless this node may publish in a stream, whose terms are
        known from now on."""
        if self.registry is not None:
            await self.registry.find(stream)
            await self.registry.demand(stream, Permission.PUBLISH)

    async def _opened(self, id: StreamId) -> Stream:
        if self.registry is not None:
            await self.registry.find(id)
            if self.id != self.home:
                await self.registry.stand_in(id, self.home, self._key.public)
        return Stream(self, id)

    def _notified(self, event: Any) -> None:
        if self.keys is not None and self.keys.heard(event):
            return
        if type(event) is PublishAccepted:
            if self._publishing is not None:
                self._publishing.heard(event)
        elif type(event) is EquivocationSeen:
            self.equivocations.seen(event)
        elif type(event) in HISTORY_EVENTS:
            event.token.heard(event)
        else:
            self._memberships.heard(event)


# Publishers that contradict themselves: counted, logged, and the newest proofs kept.


PROOFS_MAX = 16  # two messages each, of half a megabyte at most

log_others = log_of_others("shoal.node")


class Equivocations:
    """What a node knows of publishers that signed two messages under one id."""

    def __init__(self) -> None:
        self.count = 0
        """Ids with two messages, since this node was opened."""
        self.proofs: deque[EquivocationSeen] = deque(maxlen=PROOFS_MAX)
        """The newest ones: whoever checks both signatures knows too."""

    def seen(self, event: EquivocationSeen) -> None:
        """One more."""
        self.count += 1
        self.proofs.append(event)
        id = decode_body(event.first).id
        log_others.warning(
            "%s signed two messages as %s %d/%d-%d of chain %s: %s is taken, %s is not",
            show_node_id(NodeId(id.publisher)),
            event.stream,
            id.partition,
            id.timestamp_ms,
            id.sequence,
            id.chain,
            _digest(event.first),
            _digest(event.second),
        )


def _digest(signed: bytes) -> str:
    """Tells two bodies apart for a reader of the log."""
    return hashlib.sha256(split_signed(signed)[1]).hexdigest()[:16]
