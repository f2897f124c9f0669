"""One topic at one node: its events, its tree, who listens, and what is looked for."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from functools import partial
from random import Random

import msgspec

from shoal.base.errors import BadSignature, MalformedMessage
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import decode_descriptor, encode_descriptor
from shoal.identity.topics.descriptors import (
    Descriptor,
    EventDescriptor,
    TopicDescriptor,
    is_allowed,
    is_chain,
    is_the_only_publishers,
    may_publish,
    may_request,
)
from shoal.identity.topics.event_signatures import claims, core_cid
from shoal.kernel.effects import Effect, Notify, Send, SetTimer, Verify
from shoal.kernel.inputs import Verified
from shoal.kernel.records import Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.dht.commands import Get
from shoal.protocols.topics.archive import ARCHIVE, SETTLED_MAX, Archive, StoredTopic
from shoal.protocols.topics.commands import EventFound
from shoal.protocols.topics.config import (
    CARRIED_BYTES_MAX,
    CARRIED_SHARES,
    NAMED_MAX,
    TOPICS_MAX,
    TopicsConfig,
)
from shoal.protocols.topics.event_log import Entry, TopicLog
from shoal.protocols.topics.fetching import Fetches
from shoal.protocols.topics.heads import digest, floor_of, keys_of, own_key
from shoal.protocols.topics.messages import Digest, PublishEvent, Rpc, stamp
from shoal.protocols.topics.publishing import PARENT, Publishing
from shoal.protocols.topics.replication import PUTS_NS, Storing
from shoal.protocols.topics.subscriptions import Cursors
from shoal.protocols.topics.tree import Here, Links, Tree

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


# The topics of one node, and what happens to an event that is good.


BEAT = "beat"  # the timer of what is due from time to time in one topic
COMPARE = "compare"  # the timer of a greeting between two beats
RECORD = "record"  # the timer of our head record, after something was published
SYNC = "sync"  # the timer of a publisher that does not know yet what it published
HEADS = "heads"  # the token of a search for head records


class HeldTopics:
    """Topics that this node knows, and the parts that they share."""

    def __init__(
        self, key: PrivateKey, rng: Random, config: TopicsConfig, archive: Archive
    ) -> None:
        self.wall = WallClock()
        self.states: dict[Cid, TopicState] = {}
        self.here = Here(key.address)
        self.config = config
        self.links = Links()
        self.archive = archive
        self.intake = Intake(config)
        self.storing = Storing(key.address, self._not_stored)
        self.publishing = Publishing(key, archive, self._publish, config, self.wall)
        self.congested: dict[NodeId, None] = {}
        """Peers whose queues are full: they are told what they missed when there is room."""
        self.carried = Carried()
        self.bytes = 0
        """Of all events."""
        self.rng = rng
        self.pins: dict[Cid, None] = {}
        """Topics that are kept whatever the limits say, once they are here."""

    def open(self, id: Cid, topic: TopicDescriptor, floor_ms: int) -> TopicState:
        """Hold one more topic."""
        peer_id, here, links, config = self.publishing.peer_id, self.here, self.links, self.config
        state = TopicState(
            *(id, topic, peer_id, here, links, self.intake, floor_ms, self.rng, config, self.wall)
        )
        self.states[id] = state
        state.pinned = id in self.pins
        return state

    def save(self, state: TopicState) -> list[Effect]:
        """Keep a topic on disk."""
        log = state.log
        block, settled = encode_descriptor(state.topic), list(log.settled)[-SETTLED_MAX:]
        floors = log.floor_ms, log.sealed_ms
        stored = StoredTopic(block, floors[0], state.pinned, settled, state.synced, floors[1])
        state.saved, state.saved_floors = True, floors
        self.carried.remove(state.id)
        return [*self.archive.save_topic(state.id, stored), *self._save_topics()]

    def _save_topics(self) -> list[Effect]:
        return self.archive.save_topics([one.id for one in self.states.values() if one.saved])

    def close(self, state: TopicState) -> list[Effect]:
        """Forget a topic that nobody here needs."""
        del self.states[state.id]
        # Should only the first of this be written, the start does the rest.
        effects = (
            [*self._save_topics(), *self.archive.remove_topic(state.id)] if state.saved else []
        )
        for entry in state.log.events.values():
            effects += self.archive.remove(entry.number)
        self.bytes -= state.log.bytes
        self.carried.remove(state.id)
        return effects

    def is_idle(self, state: TopicState) -> bool:
        """Whether nobody needs a topic. Where we published, or pinned, it is kept."""
        in_use = state.tree.entered or len(state.cursors) or len(state.fetches)
        ours = state.tree.is_author or state.pinned or state.published is not None
        waits = state.unpublished or self.publishing.asks(state.id)
        return not (in_use or ours or waits)

    def make_place(self) -> list[Effect]:
        """Let go of the topics that were used longest ago, if there are too many for one more."""
        too_many = len(self.states) - len(self.carried) - TOPICS_MAX + 1
        if too_many <= 0:
            return []
        idle = [one for one in self.states.values() if self.is_idle(one)]
        idle.sort(key=lambda one: one.used_ns)
        return [effect for state in idle[:too_many] for effect in self.close(state)]

    def enter(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Be in the tree of a topic."""
        state.used_ns = now_ns
        if state.tree.entered:
            return []
        effects: list[Effect] = [SetTimer((BEAT, state.id), self._first_beat())]
        if not state.synced:
            effects += self.begin_sync(state, now_ns)
        return [*effects, *state.tree.enter(now_ns)]

    def begin_sync(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Look for what our next event follows, for a while."""
        config = self.config
        patience_ns = config.look_patience_ns if state.is_open else config.sync_patience_ns
        state.sync_until_ns = now_ns + patience_ns
        timer = SetTimer((SYNC, state.id), config.sync_retry_ns)
        return [timer, *self.watch(state, now_ns)]

    def watch(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Look for the head records of a topic."""
        state.watched_ns = now_ns
        keys = dict.fromkeys(keys_of(state.id, state.topic), False)
        if state.may_publish:  # our next record takes the place of the newest that is found
            keys[own_key(state.id, state.topic, self.here.node)] = True
        return [
            Send(Get(key, (HEADS, state.id), patient), (self.here.node,))
            for key, patient in keys.items()
        ]

    def _first_beat(self) -> int:
        return int(self.config.beat_ns * self.rng.uniform(0.5, 1.0))

    # Events

    def read(self, number: int, block: bytes, now_ns: int) -> list[Effect]:
        """An event that was on disk."""
        event = decode_descriptor(block)
        assert isinstance(event, EventDescriptor)  # nothing else is written there
        state = self.states.get(event.topic)
        if state is None:
            return self.archive.remove(number)  # it was carried for others
        log, id = state.log, cid_of(block)
        put_ns = now_ns - self.config.keep_alive_ns // 2  # half of its life may be over
        entry = Entry(id, event, core_cid(event), now_ns, number, put_ns=put_ns)
        log.add(entry)
        self.bytes += entry.size
        return []

    def admit(
        self,
        state: TopicState,
        peer: NodeId,
        id: Cid,
        event: EventDescriptor,
        block: bytes,
        asked: bool,
        now_ns: int,
    ) -> list[Effect]:
        """Take an event that somebody brought, if it is good. The caller asks for what is missed
        then: what comes next may be just that."""
        if not is_allowed(state.topic, event):
            return [Rejected(peer, "not-allowed"), *self._not_good(state, id, now_ns)]
        then = partial(self._admitted, state, peer, id, event, block, asked)
        if id in state.log.absent and is_the_only_publishers(state.topic, event):
            return then(now_ns)  # an event that its publisher signed names it
        return self.intake.check(
            peer,
            id,
            event,
            lambda now_ns: [*then(now_ns), *state.fetches.ask(now_ns)],
            now_ns,
            partial(self._not_good, state, id),
        )

    def _not_good(self, state: TopicState, id: Cid, now_ns: int) -> list[Effect]:
        """An event is not what it seems. Its name stands for these bytes, so nobody has better
        ones, and nobody need wait for it."""
        if self.states.get(state.id) is not state:
            return []
        return self.give_up(state, id, state.fetches.came(id), now_ns)

    def give_up(
        self, state: TopicState, id: Cid, tokens: tuple[Hashable, ...], now_ns: int
    ) -> list[Effect]:
        """Go on without an event; tell those who waited for it."""
        effects = [*found(id, None, tokens), *state.cursors.missing(id)]
        effects += self.parent_looked_for(state, id, tokens, now_ns)
        if id in state.log.absent:
            effects += self.made_ready(state, state.log.give_up(id), now_ns)
        return effects

    def _admitted(
        self,
        state: TopicState,
        peer: NodeId,
        id: Cid,
        event: EventDescriptor,
        block: bytes,
        asked: bool,
        now_ns: int,
    ) -> list[Effect]:
        if state.has(id) or self.states.get(state.id) is not state:
            return []
        entry = Entry(id, event, core_cid(event), now_ns, asked=asked)
        entry.source = None if peer == self.here.node else peer
        return self._take(state, entry, block, now_ns)

    def _take(self, state: TopicState, entry: Entry, block: bytes, now_ns: int) -> list[Effect]:
        """Hold an event that is good, tell it, pass it on."""
        for_log = not entry.asked or state.fetches.for_log(entry.id)
        if not entry.asked:
            state.log.heard(entry)
            state.publisher_at = entry.source
        tokens = state.fetches.came(entry.id)
        effects = found(entry.id, entry.event, tokens)
        effects += self._keep(state, entry, block, for_log, now_ns)
        return [*effects, *self.parent_looked_for(state, entry.id, tokens, now_ns)]

    def parent_looked_for(
        self, state: TopicState, id: Cid, tokens: tuple[Hashable, ...], now_ns: int
    ) -> list[Effect]:
        """A search is over; perhaps somebody here wants to publish after that event."""
        return self.publishing.parent_looked_for(state, id, now_ns) if PARENT in tokens else []

    def _keep(
        self, state: TopicState, entry: Entry, block: bytes, for_log: bool, now_ns: int
    ) -> list[Effect]:
        if state.cursors.waiting(entry.id):
            self.reach_behind(state, entry)
            for_log = True
        if state.log.knows(entry.id) or not (for_log or state.log.follows(entry.id)):
            return []  # an application asked for it, or it came along with such a one
        entry.put_ns = now_ns  # by its publisher
        entry.number, stored = self.archive.add(block, ARCHIVE)
        return [*stored, *self._add(state, entry, now_ns)]

    def _publish(self, state: TopicState, entry: Entry, block: bytes, now_ns: int) -> list[Effect]:
        """An event of ours is on disk: it exists."""
        entry.put_ns = now_ns
        state.published = entry.id
        effects: list[Effect] = []
        if state.record_due_ns is None:
            state.record_due_ns = now_ns + self.config.record_ns
            effects.append(SetTimer((RECORD, state.id), self.config.record_ns))
        state.log.see(entry)
        # Others need not wait for what we miss: they may have it.
        effects += [*self._forward(state, entry, now_ns), *self._add(state, entry, now_ns)]
        return [*effects, *self.storing.put(entry.id, block)]

    def _not_stored(self, id: Cid) -> None:
        """A put was given up before its time: an event is put again later."""
        for state in self.states.values():
            if id in state.log.events:
                state.to_put[id] = None

    def _add(self, state: TopicState, entry: Entry, now_ns: int) -> list[Effect]:
        ready = state.log.add(entry)
        state.cursors.arrived(entry)
        self.bytes += entry.size
        parent = entry.event.parent
        # It may have come along, and its signature be under way.
        if parent is not None and parent in state.log.absent and parent not in self.intake:
            state.fetches.need(parent, entry.source, now_ns)
        effects = self.publishing.arrived(entry)
        effects += self.made_ready(state, ready, now_ns)
        return [*effects, *self.make_room(now_ns)]

    def made_ready(self, state: TopicState, ready: list[Entry], now_ns: int) -> list[Effect]:
        """Pass events on, and tell them."""
        if not ready:
            return []
        effects: list[Effect] = []
        for each in ready:
            # News is passed on once what it follows is here, so that whoever lacks that can ask for
            # it. What was missed is compared: it may be too old to be told to everybody.
            if not each.asked and not each.forwarded:
                effects += self._forward(state, each, now_ns)
        if any(each.asked for each in ready):
            effects += self._compare_soon(state)
        return [*effects, *state.cursors.tell(now_ns)]

    def _compare_soon(self, state: TopicState) -> list[Effect]:
        if state.comparing:
            return []
        state.comparing = True
        return [SetTimer((COMPARE, state.id), self.config.compare_ns)]

    def compare(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Neighbours may lack what was found here."""
        state.comparing = False
        neighbours = state.tree.neighbours
        return [Send(Rpc((state.greet(now_ns),)), neighbours)] if neighbours else []

    def _forward(self, state: TopicState, entry: Entry, now_ns: int) -> list[Effect]:
        """Send an event to all neighbours but the one that it came from."""
        entry.forwarded = True
        congested = self.congested
        peers = tuple(
            [one for one in state.tree.neighbours if one != entry.source and one not in congested]
        )
        if not peers:
            return []
        return [Send(Rpc((PublishEvent(entry.event, stamp(now_ns)),)), peers)]

    def go_back(self, state: TopicState, floor_ms: int, now_ns: int) -> list[Effect]:
        """Be interested in what is older, too."""
        if floor_ms >= state.log.floor_ms or now_ns < state.went_back_ns + self.config.beat_ns:
            return []
        state.went_back_ns = now_ns
        state.cursors.before_rewind()
        state.log.lower_floor(floor_ms)
        effects = self.need_absent(state, now_ns)
        return [*effects, *state.cursors.tell(now_ns), *self._compare_soon(state)]

    def reach_behind(self, state: TopicState, start: Entry) -> None:
        """Be interested in what led to an event that subscriptions begin after, and in what is
        beside it: where events fork, some of that was told before, and some was not."""
        log = state.log
        floor_ms = floor_of(start.created_ms - self.config.overlap_ms)
        for cursor in state.cursors.waiting(start.id):
            cursor.floor_ms = floor_ms
        was_let_go = start.id not in log.events and log.knows(start.id)
        if floor_ms < log.floor_ms or was_let_go:
            state.cursors.before_rewind()
            log.lower_floor(min(floor_ms, log.floor_ms))

    def need_absent(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Look for every event that others follow, or that a subscription begins after."""
        for id in state.log.absent:
            if id not in self.intake:
                state.fetches.need(id, None, now_ns)
        for id in state.cursors.starts():
            if id not in state.log.events and id not in self.intake:
                state.fetches.need(id, None, now_ns, vital=True)
        return state.fetches.ask(now_ns)

    def forget(self, state: TopicState) -> list[Effect]:
        """Let go of the oldest event of a topic."""
        entry = state.log.forget_oldest(self.wall.offset_ns)
        if entry is None:
            return []
        self.bytes -= entry.size
        return self.archive.remove(entry.number)

    def make_room(self, now_ns: int) -> list[Effect]:
        """Let go of the oldest events of the largest topic, as long as there are too many; of what
        is carried for others first."""
        effects: list[Effect] = []
        while self.bytes > self.config.events_bytes_max:
            states = [one for one in self.states.values() if len(one.log) and not one.pinned]
            if not states:
                break
            largest = max(states, key=lambda one: (not one.saved, one.log.bytes))
            if largest.log.order:
                effects += self.forget(largest)
                continue
            # All of it waits for what came before: there is no room to go back that far.
            for id in list(largest.log.absent):
                effects += self.made_ready(largest, largest.log.give_up(id), now_ns)
        return effects


def found(id: Cid, event: EventDescriptor | None, tokens: tuple[Hashable, ...]) -> list[Effect]:
    """An event that applications asked for is here, or nobody has it."""
    return [Notify(EventFound(id, event, token)) for token in tokens if token is not PARENT]


# Topics that are carried for others: how much memory they take, and whose they are.
#
# A peer has a topic carried by joining with it. None has more than its share of the room, so that
# few large topics, or many small ones, of one peer do not keep out those of others.


# What a topic costs in memory besides the bytes of its descriptor, by tracemalloc: its log, its
# tree and the rest of its state; and each peer or sub-topic that it lists.
STATE_BYTES = 8_000
LISTED_BYTES = 150


def size_of(topic: TopicDescriptor) -> int:
    """About how much memory a topic takes without its events."""
    lists = (
        topic.sub_topics,
        topic.metadata.allowed_publishers.peers,
        topic.metadata.request_to_publish.peers,
    )
    return STATE_BYTES + len(encode_descriptor(topic)) + LISTED_BYTES * sum(map(len, lists))


class Carried:
    """Who had us carry what."""

    def __init__(self) -> None:
        self.bytes = 0
        self._topics: dict[Cid, tuple[NodeId, int]] = {}
        self._bytes_of: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, id: Cid, peer: NodeId, size: int) -> bool:
        """Whether there is room for a topic of this peer's; then it is taken."""
        used = self._bytes_of.get(peer, 0) + size
        if self.bytes + size > CARRIED_BYTES_MAX or used > CARRIED_BYTES_MAX // CARRIED_SHARES:
            return False
        self._topics[id] = (peer, size)
        self._bytes_of[peer] = used
        self.bytes += size
        return True

    def remove(self, id: Cid) -> None:
        """A topic is not carried any more, or not only carried."""
        peer, size = self._topics.pop(id, (None, 0))
        if peer is None:
            return
        self.bytes -= size
        self._bytes_of[peer] -= size
        if not self._bytes_of[peer]:
            del self._bytes_of[peer]


# What peers bring is checked before it is believed: events, requests, topics.
#
# Signatures are checked off the machine. Meanwhile the same thing is not checked twice, and a join
# waits for the topic that came with it.


WAITING_MAX = 256  # peers that wait for one topic

Then = Callable[[int], list[Effect]]


class _Check(msgspec.Struct):
    peer: NodeId
    id: Cid
    left: int
    then: dict[NodeId, Then]
    """By who wants it; more than one for a topic that several join."""
    otherwise: Then
    valid: bool = True


class Intake:
    """Signatures under way."""

    def __init__(self, config: TopicsConfig) -> None:
        self._config = config
        self._token = 0
        self._checks: dict[int, _Check] = {}
        self._ids: dict[Cid, int] = {}

    def __contains__(self, id: object) -> bool:
        """Whether a descriptor is being checked."""
        return id in self._ids

    def check(
        self,
        peer: NodeId,
        id: Cid,
        descriptor: Descriptor,
        then: Then,
        now_ns: int,
        otherwise: Then = lambda now_ns: [],
    ) -> list[Effect]:
        """Go on with a descriptor if all who have to have signed it, or else go on without it."""
        if id in self._ids:
            return []
        if len(self._checks) >= self._config.checks_max:
            return [Rejected(peer, "busy")]
        try:
            wanted = claims(descriptor)
        except (BadSignature, MalformedMessage):
            return [Rejected(peer, "bad-signature"), *otherwise(now_ns)]
        self._token += 1
        self._checks[self._token] = _Check(peer, id, len(wanted), {peer: then}, otherwise)
        self._ids[id] = self._token
        return [Verify(claim.signer, claim.signed, self._token) for claim in wanted]

    def add(self, id: Cid, peer: NodeId, then: Then) -> list[Effect]:
        """Go on with this once a descriptor that is being checked turns out to be good: the last
        word of each peer."""
        waiting = self._checks[self._ids[id]].then
        if peer not in waiting and len(waiting) >= WAITING_MAX:
            return [Rejected(peer, "busy")]
        waiting[peer] = then
        return []

    def verified(self, event: Verified, now_ns: int) -> list[Effect]:
        """A signature was checked."""
        token = event.token
        assert isinstance(token, int)  # they are all made here
        check = self._checks[token]
        check.left -= 1
        check.valid = check.valid and event.valid
        if check.left:
            return []
        del self._checks[token], self._ids[check.id]
        if not check.valid:
            return [Rejected(check.peer, "bad-signature"), *check.otherwise(now_ns)]
        effects: list[Effect] = []
        for then in check.then.values():
            effects += then(now_ns)
        return effects
