"""What is due from time to time: beats of each topic, head records, retention, and the search of a
publisher that lost its memory for what it published."""

from __future__ import annotations

from itertools import islice

from shoal.base.units import MS_NS, S_NS
from shoal.identity import PrivateKey
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.wall_clock import NEVER_NS
from shoal.protocols.dht.commands import Get, GetDone, Put
from shoal.protocols.topics.config import HEADS_IN_RECORD
from shoal.protocols.topics.event_log import Entry
from shoal.protocols.topics.heads import floor_of, heads_of, make_record, own_key
from shoal.protocols.topics.topic import BEAT, HEADS, SYNC, HeldTopics, TopicState

RENEW = "renew"  # the token of a put of somebody else's head record
DAY_NS = 24 * 3600 * S_NS
SETTLES_NS = 3600 * S_NS
"""After the start, and after the clock was set, nothing goes by the time of day alone."""
FLOORS_SETTLE_NS = 30 * S_NS
"""The same, before what a wrong clock has set far ahead is brought back: within a minute of the
clock being right, all is as it would be."""
EARLY_PERCENT = 2
EARLY_TOPICS_MAX = 10_000
"""Events of a topic that may go so in a day, and topics for which that is counted: more than a node
carries."""
RECORDS_MAX = 64  # of others, that are put again in their place


class Upkeep:
    """Looks after the topics of a node."""

    def __init__(self, held: HeldTopics, key: PrivateKey) -> None:
        self._held = held
        self._key = key
        self._config = held.config
        self._since_ns: int | None = None
        """When the first beat was, in monotonic time."""
        self._certain_ahead_ns = NEVER_NS
        """By how much what time it is at least is ahead of that."""
        self._early: dict[Cid, tuple[int, int]] = {}  # since when so many events went of a topic

    def beat(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Greet the neighbours of one topic, and do what else is due."""
        tree = state.tree
        self._look_at_newest(state, now_ns)
        if not tree.entered:
            return self._look_again(state, now_ns)
        busy = len(state.fetches) or state.unpublished or state.to_put
        busy = busy or self._held.publishing.asks(state.id)
        if len(state.cursors) or tree.children or tree.is_author or busy:
            state.used_ns = now_ns
        elif now_ns - state.used_ns > self._config.linger_ns:
            effects = tree.leave(now_ns)
            state.compared = False
            return effects if state.saved else [*effects, *self._held.close(state)]
        effects = [SetTimer((BEAT, state.id), self._config.beat_ns)]
        effects += tree.beat(now_ns)
        effects += self._held.need_absent(state, now_ns)
        effects += self._bring_back(state, now_ns)
        effects += self._expire(state, now_ns)
        effects += self._put_again(state, now_ns)
        if state.may_publish and (state.published is not None or not state.is_open):
            effects += self.look_for_record(state, now_ns)
        if state.published is not None:
            if now_ns - state.record_put_ns >= self._config.keep_alive_ns:
                state.record_due_ns = now_ns
            if state.record_due_ns is not None and now_ns >= state.record_due_ns:
                effects += self._put_record(state, None, now_ns)
        if state.saved and (state.log.floor_ms, state.log.sealed_ms) != state.saved_floors:
            effects += self._held.save(state)
        if tree.is_root:
            effects += self._keep_alive(state, now_ns)
            if not tree.is_author and now_ns - state.watched_ns >= self._config.watch_ns:
                effects += self._held.watch(state, now_ns)
        return [*effects, *self._held.archive.save_numbers()]

    def _look_again(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Forget a topic that the application looked at and did nothing with."""
        linger_ns = self._config.linger_ns
        if state.saved:
            return []
        if self._held.is_idle(state) and now_ns - state.used_ns >= linger_ns:
            return self._held.close(state)
        return [SetTimer((BEAT, state.id), linger_ns)]

    def _expire(self, state: TopicState, now_ns: int) -> list[Effect]:
        age_max_ns = self._config.age_max_ns
        if age_max_ns is None or state.pinned:
            return []
        wall = self._held.wall
        wall_ns = wall.read(now_ns)
        certain_ns = min(now_ns + self._certain_ahead_ns, wall_ns)
        certain_ms, oldest_ms = ((ns - age_max_ns) // MS_NS for ns in (certain_ns, wall_ns))
        effects: list[Effect] = []
        order = state.log.order
        while order and (dated_ms := order[0].dated_by(wall.offset_ns)) < oldest_ms:
            if dated_ms >= certain_ms and not self._may_go_early(state, now_ns):
                break
            effects += self._held.forget(state)
        return effects

    def _look_at_newest(self, state: TopicState, now_ns: int) -> None:
        """What time it is at least: that of the newest event that is found within an hour of the
        start, and what has passed since. A clock that was wrong at the start must not end
        everything, be there events by then or not."""
        if self._since_ns is None:
            self._since_ns = now_ns
        order = state.log.order
        if order and now_ns - self._since_ns < SETTLES_NS:
            wall = self._held.wall
            newest_ns = order[-1].dated_by(wall.offset_ns) * MS_NS
            ahead_ns = min(newest_ns, now_ns, wall.read(now_ns)) - now_ns
            self._certain_ahead_ns = max(self._certain_ahead_ns, ahead_ns)

    def _bring_back(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Floors that lie ahead are of a clock that was wrong. Until it had come as far, nothing
        that was missed would be asked for, and no request be taken."""
        log, wall = state.log, self._held.wall
        ahead_ms = max(log.floor_ms, log.sealed_ms)
        if ahead_ms <= wall.read(now_ns) // MS_NS:
            return []
        assert self._since_ns is not None  # this is a beat
        runs_ns = now_ns - self._since_ns
        if runs_ns < FLOORS_SETTLE_NS or not wall.is_settled(now_ns, FLOORS_SETTLE_NS):
            return []  # perhaps the clock is wrong now
        now_ms = max(wall.read(now_ns), now_ns + self._certain_ahead_ns) // MS_NS
        floor_ms = min([floor_of(now_ms), *state.cursors.floors()])
        log.sealed_ms = min(log.sealed_ms, now_ms)
        log.forgotten_ms = min(log.forgotten_ms, now_ms)
        return self._held.go_back(state, floor_ms, now_ns) if log.floor_ms > now_ms else []

    def _may_go_early(self, state: TopicState, now_ns: int) -> bool:
        """Whether one more may go that is too old by the time of day alone."""
        assert self._since_ns is not None  # this is a beat
        settled = now_ns - self._since_ns >= SETTLES_NS
        if not settled or not self._held.wall.is_settled(now_ns, SETTLES_NS):
            return False
        since_ns, count = self._early.get(state.id, (now_ns, 0))
        if now_ns - since_ns >= DAY_NS:
            since_ns, count = now_ns, 0
        if count >= max(1, (len(state.log.order) + count) * EARLY_PERCENT // 100):
            return False
        self._early.pop(state.id, None)
        self._early[state.id] = since_ns, count + 1
        if len(self._early) > EARLY_TOPICS_MAX:
            del self._early[next(iter(self._early))]
        return True

    def record_timer(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Say in the DHT what the topic ends with here, if we published in it since we said so."""
        return [] if state.record_due_ns is None else self._put_record(state, None, now_ns)

    def lead_to(self, state: TopicState, event: Cid, now_ns: int) -> list[Effect]:
        """Have a record of ours that leads to an event."""
        if state.record and state.log.leads_to(heads_of(state.record)[2], event):
            return []
        return self._put_record(state, event, now_ns)

    def _put_record(self, state: TopicState, event: Cid | None, now_ns: int) -> list[Effect]:
        if self._held.publishing.retired:
            state.record_due_ns = None
            return []  # the newer session of this key has records of its own
        if not self.may_put_record(state):
            state.record_due_ns = now_ns if state.record_due_ns is None else state.record_due_ns
            return self.look_for_record(state, now_ns)
        state.record_due_ns = None
        wall_ms = self._held.wall.read(now_ns) // MS_NS
        state.record_number = max(state.record_number + 1, wall_ms)
        others = [head for head in state.log.heads if head != state.published]
        # A record takes the place of the one before: what that named is followed by what this one
        # names, or named again.
        others += [head for head in state.unknown_heads() if head != state.published]
        heads = others[1 - HEADS_IN_RECORD :]
        if state.published is not None:
            heads.append(state.published)
        if event is not None and not state.log.leads_to(heads, event):
            heads = [event, *heads[1 - HEADS_IN_RECORD :]]  # the tip of an old fork; ours is last
        here, sign = self._key.address, self._key.sign
        key, value = make_record(state.id, state.topic, here, sign, state.record_number, heads)
        state.record = value
        state.record_put_ns = now_ns
        return self._held.storing.put(Cid(key), value)

    def _put_again(self, state: TopicState, now_ns: int) -> list[Effect]:
        """What may not have come into the DHT goes there."""
        effects: list[Effect] = []
        for id in list(islice(state.to_put, self._config.keep_alive_batch)):
            del state.to_put[id]
            entry = state.log.events.get(id)
            if entry is not None:
                effects += self._put(entry, now_ns)
        return effects

    def _put(self, entry: Entry, now_ns: int) -> list[Effect]:
        entry.put_ns = now_ns
        return self._held.storing.put(entry.id, encode_descriptor(entry.event))

    def _keep_alive(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Values of the DHT expire: what is still held here goes there again."""
        here = self._held.here.node
        before_ns = now_ns - self._config.keep_alive_ns
        old = (entry for entry in state.log.events.values() if entry.put_ns < before_ns)
        effects: list[Effect] = []
        for entry in list(islice(old, self._config.keep_alive_batch)):
            effects += self._put(entry, now_ns)
        if state.topic_put_ns < before_ns:
            state.topic_put_ns = now_ns
            effects += self._held.storing.put(state.id, encode_descriptor(state.topic))
            for (key, _), value in state.records.items():
                effects.append(Send(Put(key, value, None, (RENEW, state.id)), (here,)))
        return effects

    # Head records

    def may_put_record(self, state: TopicState) -> bool:
        """Whether our own record may take the place of the one that is in the DHT."""
        return state.synced and state.record_known

    def look_for_record(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Look for our own record. A publisher that looks for what it published does so anyway."""
        if state.record_asked_ns is None:
            state.record_asked_ns = now_ns
        if not state.synced or state.record_known:
            return []
        here = self._held.here.node
        key = own_key(state.id, state.topic, here)
        return [Send(Get(key, (HEADS, state.id), patient=True), (here,))]

    def _record_got(
        self, state: TopicState, answer: GetDone, is_new: bool, now_ns: int
    ) -> list[Effect]:
        """Our own record was looked for. What it names and was never here was published by this
        node all the same: its disk is an older copy, and it does as if it had lost it."""
        if state.record_asked_ns is None:
            state.record_asked_ns = now_ns
        patient = now_ns < state.record_asked_ns + self._config.look_patience_ns
        if answer.alone and patient:
            return []  # nodes have to be found again first: it is looked for at the next beat
        is_new = is_new or not state.record_known  # it may have been here while we were alone
        state.record_known = True
        effects: list[Effect] = []
        if is_new and state.synced and state.may_publish and state.unknown_heads():
            state.synced = False
            state.sync_heads.update(dict.fromkeys(state.record_heads))
            effects += self._held.save(state) if state.saved else []
            effects += self._held.begin_sync(state, now_ns)
        if state.record_due_ns is not None and now_ns >= state.record_due_ns:
            effects += self._put_record(state, None, now_ns)
        return effects

    def heads_got(self, state: TopicState, answer: GetDone, now_ns: int) -> list[Effect]:
        """The DHT has head records, or has not."""
        key, is_new = answer.key, False
        state.looked = True
        for value in answer.values:
            signer, number, heads = heads_of(value)
            if signer == self._held.here.node:
                is_new = number > state.record_number
                if is_new:
                    state.record_number, state.record_heads = number, heads
            elif signer is not None:
                state.records[key, signer] = value
                if len(state.records) > RECORDS_MAX:
                    del state.records[next(iter(state.records))]
            for head in heads:
                if not state.synced:
                    state.sync_heads[head] = None
                if not state.log.knows(head):
                    state.fetches.need(head, None, now_ns)
        effects: list[Effect] = []
        if key == own_key(state.id, state.topic, self._held.here.node):
            effects += self._record_got(state, answer, is_new, now_ns)
        return [*effects, *state.fetches.ask(now_ns), *self._try_sync(state, now_ns)]

    def sync(self, state: TopicState, now_ns: int) -> list[Effect]:
        """A publisher that does not know yet what it published looks again."""
        if state.synced:
            return []
        effects = self._try_sync(state, now_ns)
        if effects or state.synced:
            return effects
        timer = SetTimer((SYNC, state.id), self._config.sync_retry_ns)
        return [timer, *self._held.watch(state, now_ns)]

    def _try_sync(self, state: TopicState, now_ns: int) -> list[Effect]:
        if state.synced:
            return []
        if not self._knows_enough(state) and now_ns < state.sync_until_ns:
            return []
        effects = self._held.publishing.synced(state, now_ns)
        return [*self._held.save(state), *effects] if state.saved else effects

    def _knows_enough(self, state: TopicState) -> bool:
        """Whether the next event of ours can be linked."""
        if state.is_open:  # forks are no harm there
            looked = state.record_known if self._held.archive.restored else state.looked
            return looked and all(state.log.knows(head) for head in state.sync_heads)
        # Records lag behind by some seconds, so a neighbour has to say what its heads come to, too.
        # That there is none, and nothing in the DHT, is not believed at once: nodes have to be
        # found again first.
        found = state.compared and all(_is_ready(state, head) for head in state.sync_heads)
        return found and not state.log.absent and not len(state.fetches)


def _is_ready(state: TopicState, head: Cid) -> bool:
    entry = state.log.events.get(head)
    return state.log.knows(head) if entry is None else entry.ready
