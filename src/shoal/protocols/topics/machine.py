"""The topics machine: signed, content-addressed events, kept and passed on so that none is lost.

Theory of operation. Each topic has a tree (`tree.py`), along which events are pushed, and a log
(`log.py`), which puts them in order. What the tree lost is noticed in two ways: an event follows
one that is not here, or a neighbour's heads differ from ours (`digests.py`). Then it is fetched
(`fetches.py`), from neighbours or from the DHT, where every publisher has its events stored
(`storing.py`). `publishing.py` makes events, `intake.py` checks those of others, `cursors.py` tells
the application, `archive.py` keeps everything on disk, `upkeep.py` does what is due from time to
time. What a peer should not have sent is counted (Rejected) and changes nothing.

The machine has no table of nodes of its own: it asks the DHT machine of the same node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from random import Random
from typing import Any

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.ids import ADDRESSES_MAX, NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptor_codec import decode_descriptor, encode_descriptor
from shoal.identity.topics.descriptors import EventDescriptor, TopicDescriptor, check_payload
from shoal.identity.topics.event_signatures import is_signed_by_a_key, signatures_hold
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    Loaded,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
    Started,
    Stored,
    StoreFailed,
    TimerFired,
    Verified,
)
from shoal.kernel.records import Rejected
from shoal.protocols.dht.commands import FindDone, Get, GetDone, PutDone
from shoal.protocols.topics.archive import ARCHIVE, Archive, StoredTopic
from shoal.protocols.topics.commands import (
    BEGINNING,
    LIVE,
    AddTopic,
    AwaitStored,
    AwaitTopicStored,
    CommandRefused,
    EventFound,
    EventStored,
    Fetch,
    FindTopic,
    Grant,
    Pin,
    Publish,
    PublishRefused,
    Retire,
    Start,
    Subscribe,
    TopicFound,
    Unsubscribe,
)
from shoal.protocols.topics.config import AWAITING_MAX, SUBSCRIPTIONS_MAX, TopicsConfig
from shoal.protocols.topics.fetching import GET, WANT
from shoal.protocols.topics.heads import floor_of, own_key
from shoal.protocols.topics.maintenance import RENEW, Upkeep
from shoal.protocols.topics.messages import Rpc, say
from shoal.protocols.topics.peer_messages import Peers
from shoal.protocols.topics.publishing import REQUEST
from shoal.protocols.topics.replication import LEAD, PUT, Leads
from shoal.protocols.topics.subscriptions import Cursor
from shoal.protocols.topics.topic import (
    BEAT,
    COMPARE,
    HEADS,
    NEW_MS,
    RECORD,
    SYNC,
    HeldTopics,
    TopicState,
    found,
)
from shoal.protocols.topics.tree import JOIN

# Timers and tokens that name a topic
OF_TOPICS = (BEAT, COMPARE, RECORD, LEAD, SYNC, JOIN, WANT, GET, HEADS)
EARLY_MAX = 10_000  # inputs that wait until the disk was read


class TopicNode:
    """One node's part in topics."""

    accepts = (Rpc, FindDone, GetDone, PutDone)

    def __init__(
        self,
        key: PrivateKey,
        rng: Random,
        config: TopicsConfig | None = None,
        addresses: tuple[str, ...] = (),
        disk: bool = True,
    ) -> None:
        """The addresses are told to others besides those that the driver listens on. Without disk
        everything is in memory only."""
        self.node: NodeId = key.address
        self.config = config or TopicsConfig()
        archive = Archive(self._topic_read, self._event_read, self._all_read, disk)
        self._held = HeldTopics(key, rng, self.config, archive)
        self._held.here.addresses = addresses
        self.wall = self._held.wall
        self._peers = Peers(self._held)
        self._upkeep = Upkeep(self._held, key)
        self._leads = Leads(self._held)
        self._application = Application(self._held, self._upkeep, self._leads)
        of, upkeep, application = self._of, self._upkeep, self._application
        # By the first part of a timer's key, and of a token that the DHT gives back.
        self._timers: dict[str, Callable[[Any, int], list[Effect]]] = {
            BEAT: lambda topic, now_ns: upkeep.beat(of(topic), now_ns),
            COMPARE: lambda topic, now_ns: self._held.compare(of(topic), now_ns),
            RECORD: lambda topic, now_ns: upkeep.record_timer(of(topic), now_ns),
            LEAD: lambda topic, now_ns: self._leads.look(of(topic), now_ns),
            SYNC: self._sync_timer,
            JOIN: lambda topic, now_ns: of(topic).tree.timed_out(now_ns),
            WANT: self._want_timer,
            REQUEST: self._request_timer,
            PUT: lambda id, now_ns: self._held.storing.again(id),
        }
        self._answers: dict[str, Callable[..., list[Effect]]] = {
            JOIN: lambda m, topic, local, now_ns: of(topic).tree.found(m.contacts, local, now_ns),
            GET: lambda m, topic, id, now_ns: self._event_got(of(topic), id, m.values, now_ns),
            HEADS: lambda m, topic, now_ns: self._heads_got(of(topic), m, now_ns),
            TOPIC: lambda m, id, now_ns: application.topic_got(id, m.values, now_ns),
            FETCH: lambda m, id, now_ns: application.event_got(id, m.values),
            RENEW: lambda m, topic, now_ns: [],
            PUT: lambda m, id, number, now_ns: self._held.storing.done(
                id, number, m.replicas, m.over
            ),
        }
        self._early: deque[Input] | None = deque()
        """What came before the disk was read; None since it was."""

    @property
    def topics(self) -> dict[Cid, TopicState]:
        """The topics that this node knows."""
        return self._held.states

    def state_bytes(self) -> int:
        """About how much memory its topics and events take."""
        return self._held.bytes + sum(state.size for state in self._held.states.values())

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """Take one fact."""
        if self._early is None or isinstance(event, Started | Loaded):
            return self._handle(event, now_ns)
        if len(self._early) < EARLY_MAX or isinstance(event, CommandIssued):
            self._early.append(event)
            return []
        return []  # a peer's: it will ask again

    def _handle(self, event: Input, now_ns: int) -> list[Effect]:
        match event:
            case MessageReceived(peer, message):
                return self._message(peer, message, now_ns)
            case Verified():
                return self._held.intake.verified(event, now_ns)
            case TimerFired(key):
                return self._timer(key, now_ns)
            case Stored(token):
                return self._stored(token, now_ns)
            case StoreFailed(token, reason):
                return self._store_failed(token, reason, now_ns)
            case Loaded():
                return self._held.archive.loaded(event, now_ns)
            case CommandIssued(command, token):
                return self._application.handle(command, token, now_ns)
            case LinkOpened(peer):
                return self._link_opened(peer, now_ns)
            case LinkClosed(peer) | LinkFailed(peer):
                return self._link_lost(peer, now_ns)
            case SendQueueHigh(peer):
                self._held.congested[peer] = None
                return []
            case SendQueueLow(peer):
                return self._has_room(peer, now_ns)
            case Started(addresses):
                here = self._held.here
                every = dict.fromkeys((*addresses, *here.addresses))
                here.addresses = tuple(every)[:ADDRESSES_MAX]
                return self._held.archive.start(now_ns)
        raise UsageError(f"no such input: {event!r}")

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        for state in self._held.states.values():
            state.check_invariants()

    # The disk

    def _topic_read(self, id: Cid, stored: StoredTopic, now_ns: int) -> list[Effect]:
        topic = decode_descriptor(stored.block)
        assert isinstance(topic, TopicDescriptor)  # nothing else is written there
        state = self._held.open(id, topic, stored.floor_ms)
        state.pinned = state.pinned or stored.pinned
        state.saved = True
        state.synced = stored.synced and not (self._held.archive.restored and state.may_publish)
        state.log.sealed_ms = max(state.log.sealed_ms, stored.sealed_ms)
        for settled in stored.settled:
            state.log.settle(Cid(settled))
        return []

    def _event_read(self, number: int, block: bytes, now_ns: int) -> list[Effect]:
        return self._held.read(number, block, now_ns)

    def _all_read(self, now_ns: int) -> list[Effect]:
        early, self._early = self._early or deque[Input](), None
        effects: list[Effect] = []
        if self._held.archive.restored:
            for state in self._held.states.values():
                effects += self._held.save(state)
            effects += self._held.archive.settle_restored()
        for state in self._held.states.values():
            state.begin_at_oldest()
            state.recall(self._held.publishing.peer_id, now_ns)
            # The root of its tree, or a publisher whose last event nobody else may have.
            if state.tree.is_author or state.to_put:
                effects += self._held.enter(state, now_ns)
        for event in early:
            try:
                effects += self._handle(event, now_ns)
            except UsageError as error:
                assert isinstance(event, CommandIssued)  # nothing else raises
                effects.append(Notify(CommandRefused(str(error), event.token)))
        return effects

    def _stored(self, token: Any, now_ns: int) -> list[Effect]:
        if token == ARCHIVE:
            return []
        _, topic, id = token  # see PUBLISH
        return self._held.publishing.written(self._of(topic), id, now_ns)

    def _store_failed(self, token: Any, reason: str, now_ns: int) -> list[Effect]:
        if token == ARCHIVE:
            return []  # it is in memory, and will be asked for again after a crash
        _, topic, id = token  # see PUBLISH
        return self._held.publishing.failed(self._of(topic), id, reason, now_ns)

    # Links

    def _link_opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for topic in self._held.links.opened(peer):
            effects += self._of(topic).tree.link_opened(peer, now_ns)
        return effects

    def _link_lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        self._held.congested.pop(peer, None)
        for topic in self._held.links.lost(peer):
            state = self._of(topic)
            state.fetches.lost(peer, now_ns)
            effects += [*state.tree.left(peer, now_ns), *state.fetches.ask(now_ns)]
        return effects

    def _has_room(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A neighbour that was not sent events compares heads, and asks for what it missed."""
        self._held.congested.pop(peer, None)
        return [
            say(peer, state.greet(now_ns))
            for state in self._held.states.values()
            if state.tree.is_neighbour(peer)
        ]

    # Messages

    def _message(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        if type(message) is Rpc:
            return self._peers.read(peer, message, now_ns)
        if peer != self.node:
            return [Rejected(peer, "not-ours")]
        kind, *about = message.token
        if kind in OF_TOPICS and about[0] not in self._held.states:
            return []  # it was carried for others, and is forgotten
        return self._answers[kind](message, *about, now_ns)

    def _event_got(
        self, state: TopicState, id: Cid, values: tuple[bytes, ...], now_ns: int
    ) -> list[Effect]:
        event = event_in(values)
        if event is None or event.topic != state.id or state.has(id):
            effects = self._not_in_dht(state, id, now_ns)
            if event is not None and event.topic != state.id:
                effects += state.cursors.missing(id, event.topic)
            return effects
        # Whoever named it may have put it there, too: it is checked as if a peer had brought it.
        effects = self._held.admit(state, self.node, id, event, values[0], True, now_ns)
        if id in state.fetches and id not in self._held.intake:
            effects += self._not_in_dht(state, id, now_ns)  # too many are being checked
        return [*effects, *state.fetches.ask(now_ns)]

    def _not_in_dht(self, state: TopicState, id: Cid, now_ns: int) -> list[Effect]:
        tokens = state.fetches.not_in_dht(id, now_ns)
        nothing = found(id, None, tokens)
        return [*nothing, *self._held.parent_looked_for(state, id, tokens, now_ns)]

    def _heads_got(self, state: TopicState, answer: GetDone, now_ns: int) -> list[Effect]:
        effects = self._upkeep.heads_got(state, answer, now_ns)
        effects += self._application.await_again(state, now_ns)
        return [*effects, *self._leads.found(state)]

    def _sync_timer(self, topic: Any, now_ns: int) -> list[Effect]:
        state = self._of(topic)
        effects = self._upkeep.sync(state, now_ns)
        return [*effects, *self._application.await_again(state, now_ns)]

    def _timer(self, key: Any, now_ns: int) -> list[Effect]:
        kind, about = key  # they are all made like this
        if kind in OF_TOPICS and about not in self._held.states:
            return []  # it was carried for others, and is forgotten
        return self._timers[kind](about, now_ns)

    def _request_timer(self, core: Cid, now_ns: int) -> list[Effect]:
        topic = self._held.publishing.topic_of(core)
        if topic is None:
            return []  # it was answered
        return self._held.publishing.ask(self._of(topic), core, now_ns)

    def _want_timer(self, topic: Cid, now_ns: int) -> list[Effect]:
        state = self._of(topic)
        hopeless, effects = state.fetches.tick(now_ns)
        for id, tokens in hopeless.items():
            effects += self._held.give_up(state, id, tokens, now_ns)
        return effects

    def _of(self, topic: Hashable) -> TopicState:
        assert isinstance(topic, bytes)  # tokens and timers are made here
        return self._held.states[Cid(topic)]


# What the application asks for, one method for each command.


TOPIC = "topic"  # the token of a search for a topic
FETCH = "fetch"  # the token of a search for an event


class Application:
    """Handles commands."""

    def __init__(self, held: HeldTopics, upkeep: Upkeep, leads: Leads) -> None:
        self._held = held
        self._leads = leads
        self._upkeep = upkeep
        self._subscriptions: dict[Hashable, Cid] = {}
        self._looking: dict[Cid, list[tuple[Any, Hashable]]] = {}
        """Commands that wait for their topic."""
        self._fetching: dict[Cid, list[Hashable]] = {}

    def handle(self, command: Any, token: Hashable, now_ns: int) -> list[Effect]:
        """Take one command."""
        if isinstance(command, Publish):
            check_payload(command.payload)  # before anything changes, or waits for its topic
        match command:
            case AddTopic(topic):
                return self._add(topic, now_ns)
            case FindTopic(id) | Subscribe(id) | Publish(id):
                return self._with_topic(id, command, token, now_ns)
            case Grant(subscription, events):
                state = self._state_of(subscription)
                return [] if state is None else state.cursors.grant(subscription, events, now_ns)
            case Unsubscribe(subscription):
                return self._unsubscribe(subscription, now_ns)
            case AwaitStored(event, replicas):
                return self._await_stored(event, replicas, token, now_ns)
            case AwaitTopicStored(topic, replicas):
                block = encode_descriptor(topic)
                id = cid_of(block)
                return self._held.storing.wait(id, {id: block}, replicas, token)
            case Fetch():
                return self._fetch(command, token, now_ns)
            case Pin(id, pinned):
                return self._pin(id, pinned)
            case Retire(reason):
                return self._held.publishing.retire(reason)
        raise UsageError(f"no command of topics: {command!r}")

    # Topics

    def _add(self, topic: TopicDescriptor, now_ns: int) -> list[Effect]:
        held = self._held
        if topic.author != held.publishing.peer_id or not signatures_hold(topic):
            raise UsageError(f"topic {topic.name!r} is not signed by this node: sign it first")
        block = encode_descriptor(topic)
        id = cid_of(block)
        state = held.states.get(id)
        if state is None:
            state = held.open(id, topic, 0)
            wall_ms = held.wall.read(now_ns) // MS_NS
            age_ms = wall_ms - topic.metadata.created_ms
            # Nobody has published in a new one. In an old one we may have, and lost our memory;
            # also if it seems to be of the future, for then our clock is behind.
            state.synced = state.record_known = abs(age_ms) < NEW_MS
            if not state.synced:
                state.log.sealed_ms = floor_of(wall_ms)
        effects = [*held.save(state), *held.enter(state, now_ns)]
        return [*effects, *held.storing.put(id, block)]

    def _with_topic(self, id: Cid, command: Any, token: Hashable, now_ns: int) -> list[Effect]:
        """Do what needs a topic, once it is known."""
        state = self._held.states.get(id)
        if state is not None:
            return self._found(state, command, token, now_ns)
        waiting = self._looking.setdefault(id, [])
        waiting.append((command, token))
        if len(waiting) > 1:
            return []
        return [Send(Get(id, (TOPIC, id)), (self._held.here.node,))]

    def topic_got(self, id: Cid, values: tuple[bytes, ...], now_ns: int) -> list[Effect]:
        """The DHT has a topic, or has not."""
        waiting = self._looking.pop(id, [])
        topic = _topic_in(values)
        if topic is None:
            return [effect for one in waiting for effect in _unknown(id, *one)]
        state = self._held.states.get(id)
        effects: list[Effect] = []
        if state is None:
            effects += self._held.make_place()
            state = self._held.open(id, topic, floor_of(self._held.wall.read(now_ns) // MS_NS))
        for command, token in waiting:
            effects += self._found(state, command, token, now_ns)
        if not state.tree.entered:  # it was looked at only, so far
            effects.append(SetTimer((BEAT, id), self._held.config.linger_ns))
        return effects

    def _found(self, state: TopicState, command: Any, token: Hashable, now_ns: int) -> list[Effect]:
        match command:
            case FindTopic():
                state.used_ns = now_ns
                return [Notify(TopicFound(state.id, state.topic, token))]
            case Subscribe():
                return self._subscribe(state, command, token, now_ns)
            case _:
                state.used_ns = now_ns
                looks = state.is_open and state.synced and state.knows_nothing(now_ns)
                if looks:
                    state.synced = False
                effects = self._held.publishing.publish(
                    state, command.payload, command.parent, token, now_ns
                )
                # An accepted event outlives a crash only together with its topic.
                needless = state.saved or not (state.may_publish or state.may_request)
                saved = [] if needless else self._held.save(state)
                if looks and state.tree.entered:
                    effects += self._held.begin_sync(state, now_ns)
                return [*saved, *self._held.enter(state, now_ns), *effects]

    # Subscriptions

    def _subscribe(
        self, state: TopicState, command: Subscribe, token: Hashable, now_ns: int
    ) -> list[Effect]:
        if token in self._subscriptions or len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise UsageError(
                f"subscription {token!r}: a name of its own is needed for each, and there are at"
                f" most {SUBSCRIPTIONS_MAX}"
            )
        self._subscriptions[token] = state.id
        effects: list[Effect] = [Notify(TopicFound(state.id, state.topic, token))]
        self._begin(state, Cursor(token, command.credit, 0), command.start, now_ns)
        effects += [*self._held.save(state), *self._held.enter(state, now_ns)]
        if command.start != LIVE:
            effects += self._held.watch(state, now_ns)  # the tree may have lost the last event
        for other in self._held.states.values():
            if command.start in other.log.events and other is not state:
                assert isinstance(command.start, bytes)  # an event, and not of this topic
                effects += state.cursors.missing(Cid(command.start), other.id)
        effects += self._held.need_absent(state, now_ns)
        return [*effects, *state.cursors.tell(now_ns)]

    def _begin(self, state: TopicState, cursor: Cursor, start: Start, now_ns: int) -> None:
        """Go to where a subscription starts."""
        log, cursors = state.log, state.cursors
        if start == LIVE:
            cursor.at = log.order_from + len(log.order)
            cursor.since_ns = now_ns
            cursor.floor_ms = floor_of(self._held.wall.read(now_ns) // MS_NS)
            if not state.tree.entered:
                log.raise_floor(cursor.floor_ms)
        elif start == BEGINNING:
            if log.floor_ms or log.settled:
                cursors.before_rewind()
                log.lower_floor(0)
            cursor.at = log.order_from
        else:
            assert isinstance(start, bytes)  # the only other kind
            cursor.after, cursor.waits = Cid(start), True
        cursors.add(cursor)
        if cursor.after in log.events:
            self._held.reach_behind(state, log.events[cursor.after])

    def _unsubscribe(self, subscription: Hashable, now_ns: int) -> list[Effect]:
        state = self._state_of(subscription)
        if state is None:
            for waiting in self._looking.values():
                waiting[:] = [
                    (command, token)
                    for command, token in waiting
                    if token != subscription or not isinstance(command, Subscribe)
                ]
            return []
        del self._subscriptions[subscription]
        state.cursors.remove(subscription)
        state.used_ns = now_ns
        return []

    def _state_of(self, subscription: Hashable) -> TopicState | None:
        topic = self._subscriptions.get(subscription)
        return None if topic is None else self._held.states[topic]

    # Events

    def _await_stored(
        self, event: Cid, replicas: int, token: Hashable, now_ns: int
    ) -> list[Effect]:
        """An event is safe when it is in the DHT, and something there leads to it."""
        publishing = self._held.publishing
        for state in self._held.states.values():
            entry = state.log.events.get(event)
            if entry is not None:
                if not (state.may_publish and (state.record or not publishing.retired)):
                    return self._leads.wait(state, entry, replicas, token, now_ns)
                if not self._upkeep.may_put_record(state):
                    if len(state.awaiting) >= AWAITING_MAX:
                        return [Notify(EventStored(event, 0, token))]
                    state.awaiting.append((event, replicas, token))
                    return self._upkeep.look_for_record(state, now_ns)
                effects = self._upkeep.lead_to(state, event, now_ns)
                record = Cid(own_key(state.id, state.topic, self._held.here.node))
                blocks = {event: encode_descriptor(entry.event), record: state.record}
                return [*effects, *self._held.storing.wait(event, blocks, replicas, token)]
        return [Notify(EventStored(event, 0, token))]

    def await_again(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Our own head record may be put now."""
        if not state.awaiting or not self._upkeep.may_put_record(state):
            return []
        waiting, state.awaiting = state.awaiting, []
        effects: list[Effect] = []
        for event, replicas, token in waiting:
            effects += self._await_stored(event, replicas, token, now_ns)
        return effects

    def _fetch(self, command: Fetch, token: Hashable, now_ns: int) -> list[Effect]:
        id = command.event
        for state in self._held.states.values():
            entry = state.log.events.get(id)
            if entry is not None:
                return [Notify(EventFound(id, entry.event, token))]
        state_of = None if command.topic is None else self._held.states.get(command.topic)
        if state_of is not None and state_of.tree.entered:
            state_of.fetches.need(id, None, now_ns, token)
            return state_of.fetches.ask(now_ns)
        waiting = self._fetching.setdefault(id, [])
        waiting.append(token)
        return [] if len(waiting) > 1 else [Send(Get(id, (FETCH, id)), (self._held.here.node,))]

    def event_got(self, id: Cid, values: tuple[bytes, ...]) -> list[Effect]:
        """The DHT has an event, or has not."""
        event = event_in(values)
        return [Notify(EventFound(id, event, token)) for token in self._fetching.pop(id, ())]

    def _pin(self, id: Cid, pinned: bool) -> list[Effect]:
        self._held.pins.pop(id, None)
        if pinned:
            self._held.pins[id] = None
        state = self._held.states.get(id)
        if state is None:
            return []
        state.pinned = pinned
        return self._held.save(state)


def event_in(values: tuple[bytes, ...]) -> EventDescriptor | None:
    """The event that the DHT returned: it has the CID that was asked for."""
    found = _descriptor(values)
    return found if isinstance(found, EventDescriptor) else None


def _topic_in(values: tuple[bytes, ...]) -> TopicDescriptor | None:
    found = _descriptor(values)
    if not isinstance(found, TopicDescriptor) or not is_signed_by_a_key(found):
        return None
    return found


def _descriptor(values: tuple[bytes, ...]) -> EventDescriptor | TopicDescriptor | None:
    try:
        return decode_descriptor(values[0]) if values else None
    except MalformedMessage:
        return None


def _unknown(id: Cid, command: Any, token: Hashable) -> list[Effect]:
    if isinstance(command, Publish):
        return [Notify(PublishRefused(id, f"nobody knows a topic {show_cid(id)}", token))]
    return [Notify(TopicFound(id, None, token))]
