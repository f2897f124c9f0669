"""The topics of one node, and what happens to an event that is good."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from random import Random

from shoal.base.ids import NodeId
from shoal.identity import PrivateKey
from shoal.identity.topics.canonical import decode_descriptor, encode_descriptor
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptors import EventDescriptor, TopicDescriptor
from shoal.identity.topics.signing import core_cid
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.kernel.records import Rejected
from shoal.kernel.wall import WallClock
from shoal.protocols.dht.commands import Get
from shoal.protocols.topics.archive import ARCHIVE, SETTLED_MAX, Archive, StoredTopic
from shoal.protocols.topics.carried import Carried
from shoal.protocols.topics.commands import EventFound
from shoal.protocols.topics.config import TOPICS_MAX, TopicsConfig
from shoal.protocols.topics.digests import floor_of
from shoal.protocols.topics.head_records import keys_of, own_key
from shoal.protocols.topics.intake import Intake
from shoal.protocols.topics.links import Links
from shoal.protocols.topics.log import Entry
from shoal.protocols.topics.messages import PublishEvent, Rpc
from shoal.protocols.topics.publishing import PARENT, Publishing
from shoal.protocols.topics.state import TopicState, is_allowed, is_the_only_publishers
from shoal.protocols.topics.storing import Storing
from shoal.protocols.topics.tree import Here, stamp

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
