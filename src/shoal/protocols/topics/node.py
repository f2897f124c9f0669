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

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.identity import PrivateKey
from shoal.identity.topics.canonical import decode_descriptor
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.kernel.contact import ADDRESSES_MAX
from shoal.kernel.effects import Effect, Notify
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
from shoal.protocols.dht.commands import FindDone, GetDone, PutDone
from shoal.protocols.topics.application import FETCH, TOPIC, Application, event_in
from shoal.protocols.topics.archive import ARCHIVE, Archive, StoredTopic
from shoal.protocols.topics.commands import CommandRefused
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.fetches import GET, WANT
from shoal.protocols.topics.held import BEAT, COMPARE, HEADS, RECORD, SYNC, HeldTopics, found
from shoal.protocols.topics.leads import LEAD, Leads
from shoal.protocols.topics.messages import Rpc
from shoal.protocols.topics.peers import Peers
from shoal.protocols.topics.publishing import REQUEST
from shoal.protocols.topics.state import TopicState
from shoal.protocols.topics.storing import PUT
from shoal.protocols.topics.tree import JOIN, say
from shoal.protocols.topics.upkeep import RENEW, Upkeep

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
