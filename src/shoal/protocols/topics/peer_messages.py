"""What peers say, one method for each message.

Neighbours in a tree may send its events, and compare heads. Somebody who believes to be one, and is
not, is told so. Whoever wants events that are here gets them, whether it is a neighbour or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shoal.base.containers import RateLimit
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import descriptor_cid, encode_descriptor
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.identity.topics.event_signatures import is_signed_by_a_key
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.topics.config import HEADS_MAX, MESSAGES_MAX, RPC_BYTES_MAX, TopicsConfig
from shoal.protocols.topics.event_log import Entry
from shoal.protocols.topics.heads import differing, floor_of
from shoal.protocols.topics.messages import (
    Digest,
    Heads,
    JoinTopic,
    Lacks,
    LeaveTopic,
    NewTopic,
    Path,
    PublishAnswer,
    PublishEvent,
    Redirect,
    RequestToPublish,
    Rpc,
    Want,
    say,
    stamp,
)
from shoal.protocols.topics.topic import HeldTopics, TopicState, size_of

PEERS_MAX = 10_000  # whose rate is remembered


class Peers:
    """Reads RPCs."""

    def __init__(self, held: HeldTopics) -> None:
        config = held.config
        self._held = held
        self._wants = RateLimit(config.want_burst, config.want_refill_ns, PEERS_MAX)
        self._heads = RateLimit(config.compare_burst, config.compare_refill_ns, PEERS_MAX)
        self._compared: dict[Cid, None] = {}  # topics of which that RPC brought a digest
        self._behind: dict[Cid, None] = {}  # parents of events of the RPC that is being read
        self._topics: dict[Cid, TopicDescriptor] = {}  # that it brought along

    def read(self, peer: NodeId, rpc: Rpc, now_ns: int) -> list[Effect]:
        """Take an RPC apart."""
        effects: list[Effect] = []
        touched: dict[Cid, TopicState] = {}
        self._compared.clear()
        self._behind.clear()
        self._topics.clear()
        for message in rpc.messages:
            if isinstance(message, NewTopic):
                effects += self._new_topic(peer, message.topic, now_ns)
                continue
            topic = _topic_of(message)
            state = self._held.states.get(topic)
            if state is None:
                effects += self._of_unknown_topic(peer, topic, message, now_ns)
                continue
            touched[topic] = state
            if state.tree.is_neighbour(peer):
                state.tree.heard(peer, now_ns)
            effects += _READERS[type(message)](self, state, peer, message, now_ns)
        for state in touched.values():
            effects += state.fetches.ask(now_ns)
        return effects

    # Topics

    def _new_topic(self, peer: NodeId, topic: TopicDescriptor, now_ns: int) -> list[Effect]:
        """A topic comes before the join that needs it, and is forgotten unless one does."""
        id = descriptor_cid(topic)
        if id in self._held.states:
            return []
        if not is_signed_by_a_key(topic):
            return [Rejected(peer, "bad-signature")]
        self._topics[id] = topic
        return self._held.intake.check(peer, id, topic, lambda now_ns: [], now_ns)

    def _of_unknown_topic(
        self, peer: NodeId, topic: Cid, message: Any, now_ns: int
    ) -> list[Effect]:
        held = self._held
        match message:
            case JoinTopic() if topic in held.intake:
                descriptor = self._topics.get(topic)
                if descriptor is None:
                    return [Rejected(peer, "unknown-topic")]
                then = partial(self._first_join, topic, descriptor, peer, message)
                return held.intake.add(topic, peer, then)
            case Want():
                return [say(peer, Lacks(topic, message.events, stamp(now_ns)))]
            case Digest() | Path() | PublishEvent() | JoinTopic():
                # It takes us for a neighbour: perhaps we were one before a crash.
                return [say(peer, LeaveTopic(topic, stamp(now_ns)))]
            case _:
                return [Rejected(peer, "unknown-topic")]

    def _first_join(
        self, id: Cid, topic: TopicDescriptor, peer: NodeId, message: JoinTopic, now_ns: int
    ) -> list[Effect]:
        """Carry a topic for others."""
        state = self._held.states.get(id)
        if state is None:
            if not self._held.carried.add(id, peer, size_of(topic)):
                return [Rejected(peer, "too-many-topics")]
            state = self._held.open(id, topic, floor_of(self._held.wall.read(now_ns) // MS_NS))
        return self._on_join(state, peer, message, now_ns)

    # The tree

    def _on_join(
        self, state: TopicState, peer: NodeId, message: JoinTopic, now_ns: int
    ) -> list[Effect]:
        if not self._may_compare(state, peer, now_ns):
            return [Rejected(peer, "rate-limited")]
        effects = state.tree.joined(peer, message.addresses, now_ns)
        return [*effects, *self._held.enter(state, now_ns)] if state.tree.children else effects

    def _on_leave(
        self, state: TopicState, peer: NodeId, message: LeaveTopic, now_ns: int
    ) -> list[Effect]:
        state.fetches.lost(peer, now_ns)
        return state.tree.left(peer, now_ns)

    def _on_path(self, state: TopicState, peer: NodeId, message: Path, now_ns: int) -> list[Effect]:
        before = state.tree.parent
        effects = state.tree.path_told(peer, message.path, now_ns)
        if effects is None:
            return self._stranger(state, peer, now_ns)
        if state.tree.parent not in (None, before):
            effects += self._held.publishing.ask_again(state, now_ns)
        return effects

    def _on_redirect(
        self, state: TopicState, peer: NodeId, message: Redirect, now_ns: int
    ) -> list[Effect]:
        effects = state.tree.redirected(peer, message.contacts, now_ns)
        return [Rejected(peer, "unasked-answer")] if effects is None else effects

    def _stranger(self, state: TopicState, peer: NodeId, now_ns: int) -> list[Effect]:
        if peer == state.tree.asked:
            return []  # it takes us in; its answer to the join is on the way
        return [say(peer, LeaveTopic(state.id, stamp(now_ns))), Rejected(peer, "no-neighbour")]

    # Events

    def _on_event(
        self, state: TopicState, peer: NodeId, message: PublishEvent, now_ns: int
    ) -> list[Effect]:
        event = message.event
        if event.parent is not None:
            self._behind[event.parent] = None
        block = encode_descriptor(event)
        id = cid_of(block)
        if state.has(id) or id in self._held.intake:
            state.fetches.overlapped()
            return []
        asked = id in self._behind or state.asked_for(id)
        if not (asked or state.tree.is_neighbour(peer)):
            return self._stranger(state, peer, now_ns)
        problem = "" if asked else self._no_news(state, event.metadata.created_ms, now_ns)
        if problem:
            return [Rejected(peer, problem)]
        return self._held.admit(state, peer, id, event, block, asked, now_ns)

    def _no_news(self, state: TopicState, created_ms: int, now_ns: int) -> str:
        """Why an event that nobody asked for is not taken; if it is real, and not past, it is
        found when heads are compared."""
        now_ms, config = self._held.wall.read(now_ns) // MS_NS, self._held.config
        if created_ms > now_ms + config.future_ms:
            return "future"
        old = created_ms < now_ms - config.news_age_ms
        return "past" if old and created_ms < state.log.floor_ms else ""

    def _on_want(self, state: TopicState, peer: NodeId, message: Want, now_ns: int) -> list[Effect]:
        if not self._wants.allow(peer, now_ns):
            return [Rejected(peer, "rate-limited")]
        if peer in self._held.congested:
            return []  # it has not read what it asked for before
        return answer_want(state, peer, message, self._held.config, now_ns)

    def _on_lacks(
        self, state: TopicState, peer: NodeId, message: Lacks, now_ns: int
    ) -> list[Effect]:
        state.fetches.lacked(peer, message.events, now_ns)
        return []

    # Heads

    def _on_digest(
        self, state: TopicState, peer: NodeId, message: Digest, now_ns: int
    ) -> list[Effect]:
        if not state.tree.is_neighbour(peer):
            return self._stranger(state, peer, now_ns)
        if state.id in self._compared or not self._may_compare(state, peer, now_ns):
            return [Rejected(peer, "rate-limited")]
        self._compared[state.id] = None
        state.compared = True
        effects: list[Effect] = []
        if peer in state.tree.children:
            # What a child is interested in must come by way of its parents.
            effects += self._held.go_back(
                state, max(message.floor_ms, state.log.forgotten_ms), now_ns
            )
        if peer in self._held.congested:
            return effects  # it is told when it compares again
        heads, floor_ms = state.log.heads, state.log.floor_ms
        now_ms = message.stamp.created_ms
        named = differing(heads, floor_ms, message.spans, message.floor_ms, now_ms)
        for part in _parts(state.answer_of(named, peer), HEADS_MAX):
            effects.append(say(peer, Heads(state.id, part, stamp(now_ns))))
        return effects

    def _may_compare(self, state: TopicState, peer: NodeId, now_ns: int) -> bool:
        """Whether a peer may have us go through all heads of a topic once more."""
        heads = 1 + len(state.log.heads)
        return self._heads.allow(peer, now_ns, min(heads, self._held.config.compare_burst))

    def _on_heads(
        self, state: TopicState, peer: NodeId, message: Heads, now_ns: int
    ) -> list[Effect]:
        if not state.tree.is_neighbour(peer):
            return self._stranger(state, peer, now_ns)
        for id in message.events:
            if not state.log.knows(id) and id not in self._held.intake:
                state.fetches.need(id, peer, now_ns)  # or not, if too many are looked for
        return []

    # Requests to publish

    def _on_request(
        self, state: TopicState, peer: NodeId, message: RequestToPublish, now_ns: int
    ) -> list[Effect]:
        event = message.event
        if event.publisher is not None:
            return [Rejected(peer, "not-allowed")]
        if not state.tree.is_neighbour(peer):
            return self._stranger(state, peer, now_ns)
        id = descriptor_cid(event)
        publishing = self._held.publishing
        then = partial(publishing.requested, state, peer, event, message.parent)
        return self._held.intake.check(peer, id, event, then, now_ns)

    def _on_answer(
        self, state: TopicState, peer: NodeId, message: PublishAnswer, now_ns: int
    ) -> list[Effect]:
        return self._held.publishing.answered(state, peer, message, now_ns)


def _topic_of(message: Any) -> Cid:
    topic: Cid = (
        message.event.topic if type(message) in (PublishEvent, RequestToPublish) else message.topic
    )
    return topic


def _parts(ids: Sequence[Cid], size: int) -> list[tuple[Cid, ...]]:
    return [tuple(ids[at : at + size]) for at in range(0, len(ids), size)]


_READERS: dict[type, Callable[[Peers, TopicState, NodeId, Any, int], list[Effect]]] = {
    JoinTopic: Peers._on_join,
    LeaveTopic: Peers._on_leave,
    Path: Peers._on_path,
    Redirect: Peers._on_redirect,
    PublishEvent: Peers._on_event,
    Want: Peers._on_want,
    Lacks: Peers._on_lacks,
    Digest: Peers._on_digest,
    Heads: Peers._on_heads,
    RequestToPublish: Peers._on_request,
    PublishAnswer: Peers._on_answer,
}

# Answering those who miss events: what they asked for, and what lies behind it.


ASKED_BYTES_MAX = 2 * RPC_BYTES_MAX  # of events that were named; the asker asks again for the rest


def answer_want(
    state: TopicState, peer: NodeId, want: Want, config: TopicsConfig, now_ns: int
) -> list[Effect]:
    """What was named, each with what lies behind it."""
    held = state.log.events
    found: dict[Cid, Entry] = {}
    lacking: list[Cid] = []
    size = 0
    for id in want.events:
        entry = held.get(id)
        if entry is None:
            lacking.append(id)
        elif size < ASKED_BYTES_MAX:
            found[id] = entry
            size += entry.size
    known = set(want.known)
    room = min(want.behind, config.want_batch)
    room_bytes = config.want_bytes
    ordered: dict[Cid, Entry] = {}
    for id, entry in found.items():
        ordered.setdefault(id, entry)
        parent = entry.event.parent
        while parent is not None and room > 0 and parent not in known and parent not in ordered:
            behind = held.get(parent)
            if behind is None or behind.size > room_bytes:
                break
            ordered[parent] = behind
            room -= 1
            room_bytes -= behind.size
            parent = behind.event.parent
    effects = _in_rpcs(peer, list(ordered.values()), now_ns)
    if lacking:
        effects.append(say(peer, Lacks(state.id, tuple(lacking), stamp(now_ns))))
    return effects


def _in_rpcs(peer: NodeId, entries: list[Entry], now_ns: int) -> list[Effect]:
    effects: list[Effect] = []
    batch: list[PublishEvent] = []
    size = 0
    now = stamp(now_ns)
    for entry in entries:
        # An entry's size counts what it costs in memory, which is more than its bytes.
        grown = size + entry.size
        if batch and (len(batch) == MESSAGES_MAX or grown > RPC_BYTES_MAX):
            effects.append(Send(Rpc(tuple(batch)), (peer,)))
            batch, grown = [], entry.size
        batch.append(PublishEvent(entry.event, now))
        size = grown
    if batch:
        effects.append(Send(Rpc(tuple(batch)), (peer,)))
    return effects
