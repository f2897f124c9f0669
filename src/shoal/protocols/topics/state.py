"""One topic at one node: its events, its tree, who listens, and what is looked for."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from random import Random

from shoal.base.errors import MalformedMessage
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import (
    EventDescriptor,
    EventLinking,
    PeerList,
    TopicDescriptor,
)
from shoal.identity.topics.signing import signer_of
from shoal.kernel.wall import WallClock
from shoal.protocols.topics.carried import size_of
from shoal.protocols.topics.config import NAMED_MAX, TopicsConfig
from shoal.protocols.topics.cursors import Cursors
from shoal.protocols.topics.digests import digest
from shoal.protocols.topics.fetches import Fetches
from shoal.protocols.topics.links import Links
from shoal.protocols.topics.log import Entry, TopicLog
from shoal.protocols.topics.messages import Digest
from shoal.protocols.topics.storing import PUTS_NS
from shoal.protocols.topics.tree import Here, Tree, stamp

NEW_MS = 60_000  # nobody has published in a topic that was created since then


class TopicState:
    """Everything about one topic."""

    def __init__(
        self,
        id: Cid,
        topic: TopicDescriptor,
        peer_id: bytes,
        here: Here,
        links: Links,
        checking: Container[Cid],
        floor_ms: int,
        rng: Random,
        config: TopicsConfig,
        wall: WallClock | None = None,
    ) -> None:
        self._wall = WallClock() if wall is None else wall
        self.id = id
        self.topic = topic
        self.size = size_of(topic)
        self.pinned = False
        self.saved = False
        """Whether the topic is on disk: others are carried for others only,"""
        self.saved_floors = (0, 0)
        """and with which floors."""
        self.log = TopicLog(floor_ms)
        self.cursors = Cursors(id, self.log, self._wall, is_chain=is_chain(topic))
        self.tree = Tree(id, topic, here, links, self.greet, rng, config)
        self.fetches = Fetches(
            id, here.node, self.log, lambda: self.tree.neighbours, checking, config
        )
        self.may_publish = may_publish(topic, peer_id)
        self.may_request = may_request(topic, peer_id)
        self.synced = not (self.may_publish and topic.metadata.allowed_publishers.enabled)
        """Whether this node may link events: a named publisher that lost its memory must first
        find out what it published, or it would fork its own chain; one of many, what there is."""
        self.sync_until_ns = 0
        self.sync_heads: dict[Cid, None] = {}
        """What head records name."""
        self.looked = False
        """Whether head records were looked for, and the answer came."""
        self.compared = False
        """Whether a neighbour has said what its heads come to."""
        self._named_to: dict[NodeId, int] = {}
        """How many heads, from the newest on, a neighbour was told that may lack more than one
        answer has room for."""
        self.went_back_ns = 0
        """When a child last had us look farther back: once a beat, since it takes some time."""
        self.comparing = False
        """A greeting is due between two beats."""
        self.used_ns = 0
        """When somebody here last had a reason to be in the tree."""
        self.publisher_at: NodeId | None = None
        """The neighbour that brought the last news: on that side there is a publisher."""
        self.unpublished: list[Cid] = []
        """Our own events that are not on disk yet, oldest first."""
        self.created_ms = 0
        """Of our last event: two with the same content and moment would be one."""
        self.published: Cid | None = None
        """The last event that was published here."""
        self.to_put: dict[Cid, None] = {}
        """Events that may not be in the DHT, because a crash or too many others ended their put."""
        self.record_number = 0
        self.record_due_ns: int | None = None
        """When to put our own head record."""
        self.record = b""
        """As it was put last."""
        self.records: dict[tuple[bytes, NodeId], bytes] = {}
        """Those of others that were seen, by key and signer."""
        self.record_known = False
        """Whether our own record in the DHT was looked for: until then none is put."""
        self.record_asked_ns: int | None = None
        """Since when it is looked for."""
        self.record_heads: Sequence[Cid] = ()
        """What our record names in the DHT, as far as this node did not put it."""
        self.awaiting: list[tuple[Cid, int, Hashable]] = []
        """Who waits for replicas of an event, and of a record that cannot be put yet."""
        self.record_put_ns = 0
        """When ours was put,"""
        self.topic_put_ns = 0
        """and when the topic and the records of others were."""
        self.watched_ns = 0

    def greet(self, now_ns: int) -> Digest:
        floor_ms, spans = digest(self.log.heads, self.log.floor_ms, now_ns // MS_NS)
        return Digest(self.id, floor_ms, spans, stamp(now_ns))

    def answer_of(self, heads: Sequence[Cid], peer: NodeId) -> Sequence[Cid]:
        """Those of the heads that a neighbour may lack that one answer names: the newest, and those
        before them the next time, until it was told all of them."""
        told = self._named_to.pop(peer, 0)
        end = len(heads) - told
        if end <= 0:
            told, end = 0, len(heads)
        if end > NAMED_MAX:
            self._named_to[peer] = told + NAMED_MAX
            neighbours = self.tree.neighbours
            self._named_to = {one: at for one, at in self._named_to.items() if one in neighbours}
        return heads[max(0, end - NAMED_MAX) : end]

    @property
    def last(self) -> Cid | None:
        """What the next event of ours follows."""
        if self.unpublished:
            return self.unpublished[-1]
        if self.is_sole_publisher and self.published is not None:
            return self.published  # whatever peers send: ours is one chain
        return self.log.last or self.published or self._newest_head()

    def _newest_head(self) -> Cid | None:
        heads = self.log.heads
        return max(heads, key=lambda id: (heads[id], id), default=None)

    @property
    def is_open(self) -> bool:
        """Whether anyone may publish."""
        return not self.topic.metadata.allowed_publishers.enabled

    @property
    def is_current(self) -> bool:
        """Whether neighbours tell us what is new: we are in the tree, and compared heads."""
        return self.tree.entered and self.compared

    def knows_nothing(self, now_ns: int) -> bool:
        """Whether there may be events in this topic, though none was ever seen here."""
        age_ms = self._wall.read(now_ns) // MS_NS - self.topic.metadata.created_ms
        return self.last is None and not self.looked and abs(age_ms) >= NEW_MS

    @property
    def is_sole_publisher(self) -> bool:
        """Whether nobody but this node gives events their place."""
        allowed = self.topic.metadata.allowed_publishers
        return self.may_publish and allowed.enabled and len(allowed.peers) == 1

    def begin_at_oldest(self) -> None:
        """What the oldest event on disk follows was let go of before a crash."""
        oldest = next(iter(self.log.events.values()), None)
        if oldest is not None and oldest.event.parent is not None:
            self.log.begin_after(oldest.event.parent)

    def recall(self, peer_id: bytes, now_ns: int) -> None:
        """Find out what of the events on disk was published here."""
        own = self._own(peer_id)
        newest = self._newest(own)
        if newest is None:
            return
        self.published = newest.id
        # Whether its head record was put, nobody knows, nor whether it was, and those before it.
        self.record_due_ns = now_ns
        since_ms = newest.created_ms - PUTS_NS // MS_NS
        self.to_put = dict.fromkeys([one.id for one in own if one.created_ms >= since_ms])

    def find_published(self, peer_id: bytes) -> None:
        """All that can be had of what was published here is here: the next event follows the last
        one, also if that is only known by name, from our own head record."""
        newest = self._newest(self._own(peer_id))
        if newest is not None:
            self.published = newest.id
        if self.is_sole_publisher:
            unknown = self.unknown_heads()
            self.published = unknown[-1] if unknown else self.published or self.log.last

    def unknown_heads(self) -> list[Cid]:
        """What our own record in the DHT names, and was never here: we published more than we
        know."""
        return [head for head in self.record_heads if not self.log.knows(head)]

    def _own(self, peer_id: bytes) -> list[Entry]:
        return [one for one in self.log.events.values() if one.event.publisher == peer_id]

    def _newest(self, own: list[Entry]) -> Entry | None:
        # What was fetched from others lies behind what was published, whatever its age.
        heads = self.log.heads
        return max(own, key=lambda one: (one.id in heads, one.created_ms), default=None)

    def has(self, id: Cid) -> bool:
        """Whether an event is of no use: it is here, or was told before and nobody asks for it."""
        return id in self.log.events or (self.log.knows(id) and id not in self.fetches)

    def asked_for(self, id: Cid) -> bool:
        """Whether an event was asked for; others are news."""
        return id in self.fetches or self.log.follows(id)

    def check_invariants(self) -> None:
        """Raise InvariantViolated if a part is in a state that must not exist."""
        self.log.check_invariants()
        self.tree.check_invariants()


def is_chain(topic: TopicDescriptor) -> bool:
    """Whether each event of a topic follows the one before: one publisher gives them their place,
    behind the last one."""
    allowed, linking = topic.metadata.allowed_publishers, topic.metadata.event_linking
    return allowed.enabled and len(allowed.peers) == 1 and linking is EventLinking.LAST_SEEN


def may_publish(topic: TopicDescriptor, peer: bytes) -> bool:
    """Whether a peer may give events their place in a topic."""
    allowed = topic.metadata.allowed_publishers
    return not allowed.enabled or peer in allowed.peers


def may_request(topic: TopicDescriptor, peer: bytes) -> bool:
    """Whether a peer may have its events published by others."""
    requests: PeerList = topic.metadata.request_to_publish
    return requests.enabled and (not requests.peers or peer in requests.peers)


def is_allowed(topic: TopicDescriptor, event: EventDescriptor) -> bool:
    """Whether a published event may be part of a topic."""
    if event.publisher is None or not may_publish(topic, event.publisher):
        return False
    return event.publisher == event.author or may_request(topic, event.author)


def is_the_only_publishers(topic: TopicDescriptor, event: EventDescriptor) -> bool:
    """Whether an event was made and placed by the only one who publishes in a topic: whoever signs
    one that follows it has signed for all of it."""
    allowed = topic.metadata.allowed_publishers
    sole = allowed.enabled and allowed.peers == (event.publisher,)
    return sole and event.author == event.publisher


def is_signed_by_a_key(topic: TopicDescriptor) -> bool:
    """Whether the author is a node that can be found: one that is named by its key."""
    try:
        signer_of(topic.author)
    except MalformedMessage:
        return False
    return True
