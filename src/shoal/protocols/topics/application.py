"""What the application asks for, one method for each command."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.units import MS_NS
from shoal.identity.topics.canonical import decode_descriptor, encode_descriptor
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptors import EventDescriptor, TopicDescriptor, check_payload
from shoal.identity.topics.signing import signatures_hold
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.protocols.dht.commands import Get
from shoal.protocols.topics.commands import (
    BEGINNING,
    LIVE,
    AddTopic,
    AwaitStored,
    AwaitTopicStored,
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
from shoal.protocols.topics.config import AWAITING_MAX, SUBSCRIPTIONS_MAX
from shoal.protocols.topics.cursors import Cursor
from shoal.protocols.topics.digests import floor_of
from shoal.protocols.topics.head_records import own_key
from shoal.protocols.topics.held import BEAT, HeldTopics
from shoal.protocols.topics.leads import Leads
from shoal.protocols.topics.state import NEW_MS, TopicState, is_signed_by_a_key
from shoal.protocols.topics.upkeep import Upkeep

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
