"""The door to a node's topics machine: questions with one answer each, and subscriptions.

Every command carries a token that hears what the machine says to it. Who waits is never left
waiting: an answer, the end of the node, or the end of patience comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from shoal.base.errors import NotFound, ShoalError, TopicUnavailable, UsageError
from shoal.base.ids import NodeId, show_node_id
from shoal.base.units import S_NS
from shoal.config.network_file import NetworkFile
from shoal.config.sections import DhtSection, TopicsSection, is_local
from shoal.identity import PrivateKey
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.identity.topics.event_signatures import sign_topic
from shoal.kernel.disk import Disk
from shoal.kernel.machine import Codec, Machine
from shoal.node.background import Tasks
from shoal.node.topics.event import Event, Held, PublishedEvent
from shoal.protocols.dht.commands import DhtReady, Get, GetDone
from shoal.protocols.dht.config import DhtConfig, K
from shoal.protocols.dht.machine import DhtNode
from shoal.protocols.dht.wire import DhtCodec
from shoal.protocols.topics.archive import RESTORED, check_archive
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    AwaitStored,
    AwaitTopicStored,
    CommandRefused,
    EventAccepted,
    EventArrived,
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
    StartMissing,
    Subscribe,
    TopicFound,
    Unsubscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.heads import heads_of, judge_topics, keys_of
from shoal.protocols.topics.machine import TopicNode
from shoal.protocols.topics.wire import TopicsCodec
from shoal.runtime import RuntimeHost
from shoal.storage.key_values import KeyValueDisk, KeyValueFile, space_key

JOIN_TIMEOUT_S = 15.0  # dialling a bootstrap node, and a lookup of our own place
ANSWER_TIMEOUT_S = 180.0  # the machine gives up sooner, on all that others could hold up
PATIENCE_NS = 2 * S_NS  # a publisher waits this long for stuck neighbours, once
KEEP_RETRY_S = 10.0  # a pinned topic that nobody knows is looked for again

A = TypeVar("A")

log = logging.getLogger("shoal.node")


class _Question:
    """The token of a command that has one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def heard(self, event: Any) -> None:
        """The machine, or the DHT, answers."""
        if not self.answer.done():
            self.answer.set_result(event)

    def fail(self, error: ShoalError) -> None:
        """There will be no answer."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Source(_Question):
    """The token of a subscription: its answer says that it began. This one tells nobody; it keeps
    the node in the topic."""

    def __init__(self, topic: Cid) -> None:
        super().__init__()
        self.topic = topic

    def arrived(self, event: EventArrived) -> None:
        """An event."""

    def failed(self, error: ShoalError) -> None:
        """Events do not come, and why."""

    def ended(self) -> None:
        """The node is closed."""


AnnounceTopic = Callable[[Cid, TopicDescriptor | None], Awaitable[None] | None]


class NodeTopics:
    """Topics of one running node."""

    def __init__(self, host: RuntimeHost, role: TopicRole, key: PrivateKey) -> None:
        self.machine = role.machine
        self.author = bytes(key.public.peer_id)
        self._host = host
        self._dht = role.dht
        self._bootstrap = role.bootstrap  # another one after a reload
        self._key = key
        self._ready = asyncio.Event()
        self._questions: dict[_Question, None] = {}
        self._sources: dict[Source, None] = {}
        self._tasks = Tasks()
        self.start = self._tasks.start
        self._closed = False
        self.announce_to_all: AnnounceTopic | None = None
        """Has a topic of ours found by search, in a node with search; no descriptor: no more."""
        host.listeners.append(self._notified)

    # Life

    def keep(self, topics: Iterable[Cid]) -> None:
        """Be in these topics until the end, and keep them whole."""
        for topic in topics:
            self.start(self._keep(topic))

    def retire(self, reason: str) -> None:
        """Publish nothing any more, also for those who ask this node to."""
        self._host.command(self.machine, Retire(reason))

    async def close(self) -> None:
        """Let nobody wait for a node that is gone."""
        self._closed = True
        self._ready.set()
        for question in list(self._questions):
            question.fail(_closed())
        for source in list(self._sources):
            source.ended()
        await self._tasks.close()

    # Topics

    async def find(self, id: Cid) -> TopicDescriptor:
        """The descriptor of a topic."""
        answer = await self._ask(FindTopic(id), f"topic {show_cid(id)}", TopicFound)
        return _known(answer)

    async def add(self, topic: TopicDescriptor) -> tuple[Cid, TopicDescriptor]:
        """Sign a topic of our own and make it known; this node is in it until the end."""
        self._host.demand_session()
        signed = sign_topic(topic, self._key)
        id = cid_of(encode_descriptor(signed))
        await self._when_ready()
        await self._host.issue(self.machine, AddTopic(signed))
        await self.subscribe(Source(id), BEGINNING, credit=0)
        return id, signed

    async def announce(self, meta: Cid, topic: TopicDescriptor) -> None:
        """Tell those who follow the meta topic of a new version, or of the first."""
        await self.publish(meta, encode_descriptor(topic))

    async def topic_stored(self, id: Cid, topic: TopicDescriptor, replicas: int) -> int:
        """Wait until so many others keep a topic."""
        _check_replicas(replicas)
        command = AwaitTopicStored(topic, replicas)
        answer = await self._ask(command, f"the replicas of topic {show_cid(id)}", EventStored)
        return _enough(f"topic {show_cid(id)}", answer.replicas, replicas)

    async def pin(self, topic: Cid, *, pinned: bool) -> None:
        """Keep a topic's events whatever the limits say, or no longer."""
        await self._when_ready()
        await self._host.issue(self.machine, Pin(topic, pinned))

    # Events

    async def publish(
        self, topic: Cid, payload: bytes, parent: Cid | None = None
    ) -> PublishedEvent:
        """Add an event."""
        self._host.demand_session()
        if self._host.check_clock is not None:
            await self._host.check_clock()
        await self._host.wait_for_room(PATIENCE_NS)
        what = f"an event of topic {show_cid(topic)}"
        command = Publish(topic, payload, parent)
        answer: EventAccepted | PublishRefused = await self._ask(
            command, what, EventAccepted, PublishRefused
        )
        if isinstance(answer, PublishRefused):
            raise TopicUnavailable(
                f"topic {show_cid(topic)}: the event was not published: {answer.reason}"
            )
        return PublishedEvent(answer.id, answer.event, self)

    async def stored(self, event: Cid, replicas: int) -> int:
        """Wait until so many others keep an event."""
        _check_replicas(replicas)
        what = f"the replicas of event {show_cid(event)}"
        answer = await self._ask(AwaitStored(event, replicas), what, EventStored)
        return _enough(f"event {show_cid(event)}", answer.replicas, replicas)

    async def fetch(self, event: Cid, topic: Cid | None = None) -> Event:
        """An event by its CID."""
        found = await self._ask(Fetch(event, topic), f"event {show_cid(event)}", EventFound)
        if found.event is None:
            raise NotFound(
                f"event {show_cid(event)}: nobody who can be reached has it: check the CID; it may"
                " be older than what its keepers keep"
            )
        return Event(event, found.event)

    def held(self, id: Cid) -> Held:
        """What this node holds of a topic now."""
        state = self.machine.topics.get(id)
        if state is None:
            return Held(set(), [], {}, is_current=False)
        events = state.log.events
        heads = [Event(head, events[head].event) for head in state.log.heads]
        return Held(set(events), heads, state.log.followed(), state.is_current)

    async def recorded(self, id: Cid, topic: TopicDescriptor) -> list[Cid]:
        """The heads that publishers speak of in the DHT."""
        heads: dict[Cid, None] = {}
        for key in keys_of(id, topic):
            what = f"the head records of topic {show_cid(id)}"
            found = await self._ask(Get(key, patient=True), what, GetDone, machine=self._dht)
            for value in found.values:
                heads.update(dict.fromkeys(heads_of(value)[2]))
        return list(heads)

    # Subscriptions

    async def subscribe(self, source: Source, start: Start, credit: int | None) -> TopicDescriptor:
        """Have a source told events, so many at first."""
        self._sources[source] = None
        try:
            command = Subscribe(source.topic, start, credit)
            what = f"topic {show_cid(source.topic)}"
            return _known(await self._ask(command, what, TopicFound, token=source))
        except BaseException:
            await self.unsubscribe(source)
            raise

    def waits_for(self, source: Source) -> Cid | None:
        """The event that a source begins after, as long as it is looked for."""
        state = self.machine.topics.get(source.topic)
        return None if state is None else state.cursors.waits_for(source)

    async def grant(self, source: Source, events: int) -> None:
        """Have a source told so many more."""
        if not self._closed:
            await self._host.issue(self.machine, Grant(source, events))

    async def unsubscribe(self, source: Source) -> None:
        """Have a source told no more."""
        self._sources.pop(source, None)
        if not self._closed:
            await self._host.issue(self.machine, Unsubscribe(source))

    # Steps

    async def _ask(
        self,
        command: Any,
        what: str,
        *kinds: type[A],
        token: _Question | None = None,
        machine: DhtNode | TopicNode | None = None,
    ) -> A:
        """The answer to a command, which is of one of these kinds."""
        await self._when_ready()
        question = token or _Question()
        self._questions[question] = None
        try:
            await self._host.issue(machine or self.machine, command, question)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await question.answer
        except TimeoutError:
            raise TopicUnavailable(
                f"{what}: no answer within {ANSWER_TIMEOUT_S:g} s: is this node cut off?"
            ) from None
        finally:
            del self._questions[question]
        if isinstance(answer, CommandRefused):
            raise UsageError(f"{what}: {answer.reason}")
        assert isinstance(answer, kinds)  # the machine's answers name their tokens
        return answer

    async def _when_ready(self) -> None:
        """Once this node has found its neighbours: before that, nobody else is asked."""
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            raise TopicUnavailable(self._alone()) from None
        if self._closed:
            raise _closed()

    def _alone(self) -> str:
        peers = [c.node for c in self._bootstrap if c.node != self._host.node]
        problems = [self._host.dial_problem(peer) or "no answer" for peer in peers]
        tried = "; ".join(
            [f"{show_node_id(peer)}: {why}" for peer, why in zip(peers, problems, strict=True)]
        )
        return (
            f"no bootstrap node within {JOIN_TIMEOUT_S:g} s ({tried}): is one running, at the"
            " address under [[dht.bootstrap]] in the network file?"
        )

    def _start_missing(self, topic: Cid, missing: StartMissing) -> ShoalError:
        start, of_topic = missing.id, missing.of_topic
        if of_topic is not None:
            return UsageError(
                f"start={show_cid(start)} is an event of topic {show_cid(of_topic)}, not of"
                f" {show_cid(topic)}: give the checkpoint of one of its own"
            )
        patience_s = self.machine.config.gap_patience_ns / S_NS
        return TopicUnavailable(
            f"topic {show_cid(topic)}: nobody who could be reached for {patience_s:g} s has event"
            f" {show_cid(start)}, the checkpoint: iterate on, or subscribe again, to wait for it;"
            " subscribe with start='earliest' to be told all that is left"
        )

    async def _keep(self, topic: Cid) -> None:
        while True:
            try:
                await self.subscribe(Source(topic), BEGINNING, credit=0)
                await self.pin(topic, pinned=True)
            except ShoalError as error:
                log.warning("a pinned topic is not kept yet: %s", error)
                await asyncio.sleep(KEEP_RETRY_S)
            else:
                return

    def _notified(self, event: Any) -> None:
        kind = type(event)
        if kind is EventArrived:
            event.subscription.arrived(event)
        elif kind is DhtReady:
            self._ready.set()
        elif kind is StartMissing:
            source = event.subscription
            source.failed(self._start_missing(source.topic, event))
        elif isinstance(getattr(event, "token", None), _Question):
            if isinstance(event.token, Source) and event.token not in self._sources:
                self._host.command(self.machine, Unsubscribe(event.token))  # nobody waited for it
            event.token.heard(event)


def _known(answer: TopicFound) -> TopicDescriptor:
    if answer.topic is None:
        raise NotFound(
            f"topic {show_cid(answer.id)}: neither this node nor the DHT knows it: check the CID,"
            " and that a node which has it runs; `shoal topic create NAME` makes a new one"
        )
    return answer.topic


def _check_replicas(replicas: int) -> None:
    if not 1 <= replicas <= K:
        raise UsageError(f"replicas={replicas}: give 1 to {K}, as many as the DHT makes")


def _enough(what: str, found: int, replicas: int) -> int:
    if found < replicas:
        raise TopicUnavailable(
            f"{what} is kept by {found} other nodes, not by {replicas}: it exists all the same; ask"
            " for fewer, or run more nodes",
            replicas=found,
        )
    return found


def _closed() -> UsageError:
    return UsageError("this node is closed: open another one")


# The topics role of a node: its part in the DHT and in the trees of topics, and its disk.
#
# A node keeps the topics that it subscribes to, publishes in or carries for others, as far as its
# limits go; topics that the network file pins it joins at the start, and keeps whole.


DAY_NS = 24 * 3600 * S_NS
MEGABYTE = 1_000_000
SPACE = "topics"  # the name of the machine's values on disk: never another
ANY_NUMBER = 1_000_000  # nodes of one prefix, where all of them are on one machine


class TopicRole:
    """The machines and the disk of a node with topics. Made before the host."""

    def __init__(
        self, network: NetworkFile, section: DhtSection, key: PrivateKey, rng: Random
    ) -> None:
        """Opens the folder; StoreError if that cannot be."""
        self.bootstrap = [entry.contact() for entry in section.bootstrap]
        config = _dht_config(section, network.node.listen)
        self.dht = DhtNode(key.address, self.bootstrap, judge_topics, rng, config)
        settings = _topics_config(network.topics or TopicsSection())
        self.machine = TopicNode(key, rng, settings, disk=network.topics is not None)
        self._file: KeyValueFile | None = None
        self._disk: KeyValueDisk | None = None
        if network.topics is not None:
            self._file = _opened(network.path(network.topics.folder), key.address)
            if self._file.restored:
                log.warning(
                    "%s is a copy: before this node publishes in a topic again it looks for what"
                    " it published there since the copy was made",
                    self._file.file,
                )
                self._file.settle_as(space_key(SPACE, RESTORED))

    @property
    def problem(self) -> str | None:
        """Why topics cannot be stored now, for people; None if all is well."""
        return None if self._disk is None else self._disk.problem

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.dht, self.machine

    @property
    def codecs(self) -> tuple[Codec, ...]:
        return DhtCodec(), TopicsCodec()

    def disks(self, machines: Sequence[Machine]) -> dict[int, Disk]:
        """The disk of the topics machine, by its slot among all machines of the node."""
        if self._file is None:
            return {}
        slot = machines.index(self.machine)
        self._disk = KeyValueDisk(self._file, {slot: SPACE})
        return {slot: self._disk}


def _opened(folder: Path, owner: NodeId) -> KeyValueFile:
    """The file, if what all of it depends on can be read; StoreError if not."""
    file = KeyValueFile(folder, owner)
    try:
        check_archive(lambda key: file.get(space_key(SPACE, key)))
    except BaseException:
        file.close()
        raise
    return file


def _dht_config(section: DhtSection, listen: Sequence[str]) -> DhtConfig:
    """Limits on nodes of one address prefix keep strangers from taking a table over; nodes of one
    machine are not strangers, and share all their addresses."""
    defaults = DhtConfig()
    local = is_local(listen)
    bucket_max = K if local else defaults.prefix_bucket_max
    table_max = ANY_NUMBER if local else defaults.prefix_table_max
    return DhtConfig(
        prefix_bucket_max=section.prefix_bucket_max or bucket_max,
        prefix_table_max=section.prefix_table_max or table_max,
    )


def _topics_config(section: TopicsSection) -> TopicsConfig:
    defaults = TopicsConfig()
    days = section.days_max
    return TopicsConfig(
        children_max=section.children_max or defaults.children_max,
        events_bytes_max=int(section.megabytes_max * MEGABYTE),
        age_max_ns=None if days is None else int(days * DAY_NS),
    )
