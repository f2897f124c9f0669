"""Events of this node, and of those who ask it to publish theirs.

A publisher links an event, signs it, and has it on disk before anybody hears of it: so a crash
never makes it say two things after one. Whoever may not publish asks up the tree, again and again,
until its event comes; publishers know an event by its core, and publish it once. A root that may
not publish either, since others are named or the author is gone, asks down: where the last news
came from, or everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import (
    EventDescriptor,
    EventLinking,
    EventMetadata,
    may_request,
)
from shoal.identity.topics.event_signatures import core_cid, publish_event, sign_event
from shoal.kernel.effects import CancelTimer, Effect, Notify, Send, SetTimer
from shoal.kernel.records import EventPublished, Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.topics.archive import Archive
from shoal.protocols.topics.commands import EventAccepted, PublishRefused
from shoal.protocols.topics.config import TOPICS_MAX, TopicsConfig
from shoal.protocols.topics.event_log import Entry
from shoal.protocols.topics.messages import PublishAnswer, RequestToPublish, Rpc, say, stamp

if TYPE_CHECKING:
    from shoal.protocols.topics.topic import TopicState

PUBLISH = "publish"  # the token of a write that an event of ours waits for
PARENT: Hashable = object()  # the token of a search for an event that others shall follow
REQUEST = "request"  # the timer of a request that is not answered
AUTHORS_MAX = 10_000  # whose rate is remembered

Placed: TypeAlias = "Callable[[TopicState, Entry, bytes, int], list[Effect]]"
"""An event of ours is on disk: take it in, pass it on, have it stored."""


class _Unpublished(msgspec.Struct):
    """An event of ours on its way to the disk."""

    entry: Entry
    block: bytes
    token: Hashable
    asker: NodeId | None
    """Who asked for it; None: our own application."""


class _Orphan(msgspec.Struct):
    """An event of ours whose parent is looked for."""

    event: EventDescriptor
    token: Hashable
    asker: NodeId | None


class _Request(msgspec.Struct):
    """A request of ours."""

    topic: Cid
    event: EventDescriptor
    parent: Cid | None
    token: Hashable
    until_ns: int
    again: bool = False
    """It was sent before."""


class _Route(msgspec.Struct):
    """A request of somebody else on its way."""

    asker: NodeId
    passed_ns: int


class Publishing:
    """Events between an application and the log."""

    def __init__(
        self,
        key: PrivateKey,
        archive: Archive,
        placed: Placed,
        config: TopicsConfig,
        wall: WallClock,
    ) -> None:
        self._wall = wall
        self.peer_id = bytes(key.public.peer_id)
        self._key = key
        self._archive = archive
        self._placed = placed
        self._config = config
        self.retired = ""
        """Why nothing is published here any more, if so."""
        self._unpublished: dict[Cid, _Unpublished] = {}
        self._orphans: dict[Cid, list[_Orphan]] = {}  # by their parents
        self._cores: dict[Cid, None] = {}  # of all those
        self._waiting: dict[Cid, list[tuple[EventDescriptor, Cid | None, Hashable]]] = {}
        self._requests: dict[Cid, _Request] = {}
        self._routes: dict[Cid, _Route] = {}  # by core
        self._quota = RateLimit(config.request_burst, config.request_refill_ns, AUTHORS_MAX)
        self._spread = RateLimit(config.spread_burst, config.spread_refill_ns, TOPICS_MAX)

    # Our own application

    def publish(
        self, state: TopicState, payload: bytes, parent: Cid | None, token: Hashable, now_ns: int
    ) -> list[Effect]:
        """The application wants an event in a topic."""
        problem = self._problem(state, parent)
        if problem:
            return [Notify(PublishRefused(state.id, problem, token))]
        wall_ms, before_ms = self._wall.read(now_ns) // MS_NS, state.created_ms
        # Two with the same content and moment would be one. If the last one was stamped far ahead,
        # by a clock that was wrong, whatever came after it would be refused until then.
        latest_ms = self._wall.latest(now_ns) // MS_NS
        ahead = before_ms - latest_ms > self._config.future_ms // 2
        state.created_ms = wall_ms if ahead else max(before_ms + 1, wall_ms)
        metadata = EventMetadata(state.created_ms)
        event = sign_event(EventDescriptor(state.id, self.peer_id, payload, metadata), self._key)
        if not state.may_publish:
            return self._request(state, event, parent, token, now_ns)
        if not state.synced:
            self._waiting.setdefault(state.id, []).append((event, parent, token))
            return []
        return self._place_after(state, event, parent, token, None, now_ns)

    def retire(self, reason: str) -> list[Effect]:
        """Publish nothing more. What waits for a sync or a parent is refused; what is on its way to
        the disk was signed before."""
        self.retired = reason
        effects: list[Effect] = []
        for topic, waiting in self._waiting.items():
            effects += [Notify(PublishRefused(topic, reason, token)) for _, _, token in waiting]
        self._waiting.clear()
        for core, request in self._requests.items():
            effects.append(CancelTimer((REQUEST, core)))
            effects.append(Notify(PublishRefused(request.topic, reason, request.token)))
        self._requests.clear()
        return effects

    def synced(self, state: TopicState, now_ns: int) -> list[Effect]:
        """A publisher knows again what it published: what waited for that goes on."""
        state.synced = True
        state.find_published(self.peer_id)
        effects: list[Effect] = []
        for event, parent, token in self._waiting.pop(state.id, ()):
            effects += self._place_after(state, event, parent, token, None, now_ns)
        return effects

    def _problem(self, state: TopicState, parent: Cid | None) -> str:
        if self.retired:
            return self.retired
        if not state.may_publish and not state.may_request:
            name = state.topic.name
            return f"this node may neither publish in {name!r} nor ask others to: see its author"
        if parent is None:
            return ""
        if state.topic.metadata.event_linking is EventLinking.LAST_SEEN:
            return "this topic links events to the last one seen: leave the parent out"
        return ""

    # Placing

    def _place_after(
        self,
        state: TopicState,
        signed: EventDescriptor,
        parent: Cid | None,
        token: Hashable,
        asker: NodeId | None,
        now_ns: int,
    ) -> list[Effect]:
        """Give an event its place, once the one that it shall follow is here."""
        core = core_cid(signed)
        if self.retired:
            return [self._refusal(state.id, core, self.retired, token, asker, now_ns)]
        if parent is None or state.log.knows(parent):
            return self._place(state, signed, parent, token, asker, now_ns)
        if sum(map(len, self._orphans.values())) >= self._config.orphans_max:
            problem = "too many events wait for the ones that they follow: wait a little"
            return [self._refusal(state.id, core, problem, token, asker, now_ns)]
        self._orphans.setdefault(parent, []).append(_Orphan(signed, token, asker))
        self._cores[core] = None
        state.fetches.need(parent, asker, now_ns, vital=True)
        state.fetches.need(parent, None, now_ns, PARENT)
        return state.fetches.ask(now_ns)

    def parent_looked_for(self, state: TopicState, parent: Cid, now_ns: int) -> list[Effect]:
        """An event that others shall follow is here, or nobody has it."""
        effects: list[Effect] = []
        for orphan in self._orphans.pop(parent, ()):
            signed, token, asker = orphan.event, orphan.token, orphan.asker
            if state.log.knows(parent) and not self.retired:
                effects += self._place(state, signed, parent, token, asker, now_ns)
                continue
            core = core_cid(signed)
            del self._cores[core]
            problem = f"nobody has an event {show_cid(parent)} of this topic: check the parent"
            problem = self.retired or problem
            effects.append(self._refusal(state.id, core, problem, token, asker, now_ns))
        return effects

    def _place(
        self,
        state: TopicState,
        signed: EventDescriptor,
        parent: Cid | None,
        token: Hashable,
        asker: NodeId | None,
        now_ns: int,
    ) -> list[Effect]:
        """Link, sign, and write."""
        if state.topic.metadata.event_linking is EventLinking.LAST_SEEN:
            parent = state.last
        event = publish_event(signed, self._key, parent)
        block = encode_descriptor(event)
        id, core = cid_of(block), core_cid(event)
        number, effects = self._archive.add(block, (PUBLISH, state.id, id))
        entry = Entry(id, event, core, now_ns, number)
        self._unpublished[id] = _Unpublished(entry, block, token, asker)
        self._cores[core] = None
        state.unpublished.append(id)
        return effects if self._archive.disk else self.written(state, id, now_ns)

    def written(self, state: TopicState, id: Cid, now_ns: int) -> list[Effect]:
        """An event of ours is on disk: now it exists."""
        done = self._unpublished.pop(id, None)
        if done is None:
            return []  # one before it failed
        state.unpublished.remove(id)
        entry = done.entry
        self._cores.pop(entry.core, None)
        effects: list[Effect] = [EventPublished(state.id, id, len(entry.event.payload))]
        effects += self._placed(state, entry, done.block, now_ns)
        return [*effects, *self._answer(state, done, now_ns)]

    def failed(self, state: TopicState, id: Cid, reason: str, now_ns: int) -> list[Effect]:
        """The disk refused an event; those that follow it go with it."""
        effects: list[Effect] = []
        if id not in state.unpublished:
            return effects
        at = state.unpublished.index(id)
        lost, state.unpublished[at:] = state.unpublished[at:], []
        problem = f"the disk refused it: {reason}"[:200]
        for each in lost:
            done = self._unpublished.pop(each)
            self._cores.pop(done.entry.core, None)
            effects += self._archive.remove(done.entry.number)
            core, token, asker = done.entry.core, done.token, done.asker
            effects.append(self._refusal(state.id, core, problem, token, asker, now_ns))
        return effects

    def _refusal(
        self,
        topic: Cid,
        core: Cid,
        problem: str,
        token: Hashable,
        asker: NodeId | None,
        now_ns: int,
    ) -> Effect:
        if asker is None:
            return Notify(PublishRefused(topic, problem, token))
        return self._refuse(asker, topic, core, problem, now_ns)

    def _answer(self, state: TopicState, done: _Unpublished, now_ns: int) -> list[Effect]:
        if done.asker is None:
            return [Notify(EventAccepted(done.entry.id, done.entry.event, done.token))]
        answer = PublishAnswer(state.id, done.entry.core, done.entry.id, stamp(now_ns))
        return [say(done.asker, answer)]

    # Requests

    def _request(
        self,
        state: TopicState,
        event: EventDescriptor,
        parent: Cid | None,
        token: Hashable,
        now_ns: int,
    ) -> list[Effect]:
        core = core_cid(event)
        until_ns = now_ns + self._config.request_patience_ns
        self._requests[core] = _Request(state.id, event, parent, token, until_ns)
        return self.ask(state, core, now_ns)

    def asks(self, topic: Cid) -> bool:
        """Whether a request of ours is not answered."""
        return any(request.topic == topic for request in self._requests.values())

    def topic_of(self, core: Cid) -> Cid | None:
        """The topic of a request of ours that is not answered."""
        request = self._requests.get(core)
        return None if request is None else request.topic

    def ask(self, state: TopicState, core: Cid, now_ns: int) -> list[Effect]:
        """Send a request towards a publisher, again and again."""
        request = self._requests[core]
        if now_ns >= request.until_ns:
            del self._requests[core]
            seconds = self._config.request_patience_ns / 1e9
            problem = f"no publisher answered within {seconds:g} s: is one of them in the topic?"
            return [Notify(PublishRefused(state.id, problem, request.token))]
        timer = SetTimer((REQUEST, core), self._config.request_retry_ns)
        peers = self._towards_publisher(state, None, request.again, now_ns)
        request.again = request.again or bool(peers)
        message = RequestToPublish(request.event, stamp(now_ns), request.parent)
        return [timer, Send(Rpc((message,)), peers)] if peers else [timer]

    def ask_again(self, state: TopicState, now_ns: int) -> list[Effect]:
        """There is a parent to ask."""
        effects: list[Effect] = []
        for core in [core for core, one in self._requests.items() if one.topic == state.id]:
            effects += self.ask(state, core, now_ns)
        return effects

    def requested(
        self,
        state: TopicState,
        peer: NodeId,
        event: EventDescriptor,
        parent: Cid | None,
        now_ns: int,
    ) -> list[Effect]:
        """A neighbour wants an event published; its signature holds."""
        core = core_cid(event)
        known = state.log.of_core(core)
        if known is not None:
            return [say(peer, PublishAnswer(state.id, core, known, stamp(now_ns)))]
        if core in self._cores:
            return []  # on its way already
        if not may_request(state.topic, event.author):
            return [Rejected(peer, "may-not-request")]
        if not state.may_publish or self.retired:
            message = RequestToPublish(event, stamp(now_ns), parent)
            return self._pass_on(state, peer, core, message, now_ns)
        if not state.synced:
            return []  # it asks again
        linking = state.topic.metadata.event_linking
        problem = ""
        if event.metadata.created_ms < state.log.sealed_ms or state.log.knows(core):
            problem = "this event is too old: it may have been published before"
        elif event.metadata.created_ms > self._wall.read(now_ns) // MS_NS + self._config.future_ms:
            problem = "this event is dated ahead of the publisher's clock: set the author's"
        elif parent is not None and linking is EventLinking.LAST_SEEN:
            problem = "this topic links events to the last one seen: leave the parent out"
        elif not self._quota.allow(event.author, now_ns):
            problem = "too many requests of this author: wait a little"
        if problem:
            return [self._refuse(peer, state.id, core, problem, now_ns)]
        return self._place_after(state, event, parent, None, peer, now_ns)

    def _pass_on(
        self, state: TopicState, peer: NodeId, core: Cid, message: RequestToPublish, now_ns: int
    ) -> list[Effect]:
        before = self._routes.get(core)
        if before is not None and now_ns < before.passed_ns + self._config.request_retry_ns // 2:
            return []  # nobody asks again so soon: it went round a loop in the tree
        peers = self._towards_publisher(state, peer, before is not None, now_ns)
        if not peers:
            return []  # nobody to ask: the asker will try again
        self._routes.pop(core, None)
        self._routes[core] = _Route(peer, now_ns)
        if len(self._routes) > self._config.requests_max:
            del self._routes[next(iter(self._routes))]
        return [Send(Rpc((message,)), peers)]

    def _towards_publisher(
        self, state: TopicState, asker: NodeId | None, again: bool, now_ns: int
    ) -> tuple[NodeId, ...]:
        """Up the tree; from the root, or if it comes from above, down: where the last news came
        from, or to all children, if that is not known or did not help."""
        parent = state.tree.parent
        if parent is not None and parent != asker:
            return (parent,)
        below = tuple([child for child in state.tree.children if child != asker])
        there = tuple([child for child in below if child == state.publisher_at])
        if below and (again or not there) and self._spread.allow(state.id, now_ns):
            return below
        return there

    def answered(
        self, state: TopicState, peer: NodeId, answer: PublishAnswer, now_ns: int
    ) -> list[Effect]:
        """A request was answered. What was published comes by itself, or is asked for; a refusal
        goes to whoever asked. Of those that were all asked any could refuse in the place of a
        publisher: only one that news comes from is believed."""
        known = peer in (state.tree.parent, state.publisher_at)
        if not state.tree.is_neighbour(peer) or (answer.event is None and not known):
            return [Rejected(peer, "not-a-parent")]
        request = self._requests.get(answer.core)
        route = self._routes.get(answer.core)
        effects: list[Effect] = [] if route is None else [say(route.asker, answer)]
        if answer.event is None:
            self._routes.pop(answer.core, None)
        if request is None:
            return effects
        if answer.event is not None:
            if not state.log.knows(answer.event):
                state.fetches.need(answer.event, peer, now_ns)
            return effects
        del self._requests[answer.core]
        return [*effects, Notify(PublishRefused(state.id, answer.reason, request.token))]

    def arrived(self, entry: Entry) -> list[Effect]:
        """An event is part of a topic now: perhaps one that we asked for."""
        self._routes.pop(entry.core, None)
        request = self._requests.pop(entry.core, None)
        if request is None:
            return []
        return [Notify(EventAccepted(entry.id, entry.event, request.token))]

    def _refuse(self, peer: NodeId, topic: Cid, core: Cid, problem: str, now_ns: int) -> Effect:
        return say(peer, PublishAnswer(topic, core, None, stamp(now_ns), problem))
