"""A durable topic, as an application uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from time import time_ns

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.units import MS_NS
from shoal.identity import parse_peer_id, peer_id
from shoal.identity.topics.cid import NAME_BYTES_MAX, Cid, cid_of_bytes, parse_cid, show_cid
from shoal.identity.topics.descriptors import (
    META,
    EventLinking,
    PeerList,
    TopicDescriptor,
    check_text,
    may_publish,
    may_request,
    new_meta_topic,
    new_topic,
)
from shoal.node.topics.client import NodeTopics
from shoal.node.topics.event import Event, PublishedEvent, read_back
from shoal.node.topics.subscription import QUEUE_EVENTS_MAX, TopicSubscription
from shoal.protocols.topics.commands import BEGINNING, LIVE, Start

LAST_SEEN = EventLinking.LAST_SEEN
CUSTOM = EventLinking.CUSTOM
EARLIEST, LATEST = "earliest", "latest"


class Who(Enum):
    """Who may publish, or ask to have something published."""

    ANYONE = "anyone"
    NOBODY = "nobody"


ANYONE, NOBODY = Who.ANYONE, Who.NOBODY

Peers = Who | Iterable[str | bytes]
AnyCid = str | bytes | Event


class Topic:
    """One version of a topic: publish, subscribe, read. Made by Node.create_topic and
    Node.topic."""

    def __init__(self, topics: NodeTopics, id: Cid, descriptor: TopicDescriptor) -> None:
        self.id = id
        """The CID as bytes."""
        self.descriptor = descriptor
        self.newer: Topic | None = None
        """The newest version that was announced while this node subscribed."""
        self._topics = topics

    def __repr__(self) -> str:
        return f"Topic({self.cid!r}, {self.name!r})"

    @property
    def cid(self) -> str:
        """Its name for everybody, zdpu..."""
        return show_cid(self.id)

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.descriptor.name

    @property
    def author(self) -> str:
        """The peer id of who made it."""
        return peer_id.encode(self.descriptor.author)

    async def stored(self, replicas: int = 1) -> int:
        """Wait until so many other nodes say that they keep the topic itself, and its meta topic:
        then it is found by its CID, whether this node runs or not."""
        meta = self.descriptor.sub_topic(META)
        if meta is not None:
            await self._topics.topic_stored(meta, await self._topics.find(meta), replicas)
        return await self._topics.topic_stored(self.id, self.descriptor, replicas)

    # Publishing

    async def publish(self, payload: bytes, *, parent: AnyCid | None = None) -> PublishedEvent:
        """Add an event; returns when it has its place in the topic, and is on its way.

        A node that may not publish asks one that may, in the tree. On a node with a folder, what
        was published survives a crash; `await event.stored(replicas)` waits for other nodes.
        The parent is for topics with CUSTOM linking: the event that this one follows.
        """
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise UsageError(
                f"a payload of type {type(payload).__name__}: events hold bytes, encode it"
            )
        own = self._topics.author
        if not may_publish(self.descriptor, own) and not may_request(self.descriptor, own):
            raise UsageError(
                f"topic {self.cid}: this node, {peer_id.encode(own)}, may neither publish nor ask"
                f" others to: its author, {self.author}, can make a version that lets it"
            )
        if parent is not None and self.descriptor.metadata.event_linking is not CUSTOM:
            raise UsageError(
                f"topic {self.cid} links events to the last one seen: give no parent, or create it"
                " with linking=shoal.CUSTOM"
            )
        follows = None if parent is None else cid_of_any("parent", parent)
        return await self._topics.publish(self.id, bytes(payload), follows)

    async def new_version(
        self,
        *,
        publishers: Peers | None = None,
        requests: Peers = ANYONE,
        linking: EventLinking = LAST_SEEN,
        sub_topics: Mapping[str, AnyCid | Topic] | None = None,
    ) -> Topic:
        """A topic of the same name that follows this one, told to those who follow its meta topic.
        What it does not say is as in a new topic. Only its author can make it."""
        meta = self.descriptor.sub_topic(META)
        if self.descriptor.author != self._topics.author or meta is None:
            raise UsageError(
                f"topic {self.cid} is of {self.author}: only its author makes new versions of it,"
                " and none of a meta topic"
            )
        settings = TopicSettings(publishers, requests, linking, sub_topics)
        return await _add(self._topics, self.name, meta, settings, self.id)

    async def announce(self) -> None:
        """Have everybody find it by search, as a document of kind `topic` with its name and CID, as
        long as this node runs. Only its author can, in a node with [search]."""
        await self._tell_all(self.descriptor)

    async def withdraw(self) -> None:
        """Have it found by its CID alone, again."""
        await self._tell_all(None)

    async def _tell_all(self, descriptor: TopicDescriptor | None) -> None:
        if self.descriptor.author != self._topics.author:
            raise UsageError(f"topic {self.cid} is of {self.author}: only its author announces it")
        if self._topics.announce_to_all is None:
            raise UsageError("this node is not in the search network: add [search] to its file")
        work = self._topics.announce_to_all(self.id, descriptor)
        if work is not None:
            await work

    async def pin(self) -> None:
        """Keep all that this node has or gets of it, whatever the limits in [topics] say."""
        await self._topics.pin(self.id, pinned=True)

    async def unpin(self) -> None:
        """Let limits hold again."""
        await self._topics.pin(self.id, pinned=False)

    # Reading

    @asynccontextmanager
    async def subscribe(
        self,
        start: AnyCid = LATEST,
        *,
        meta: bool = True,
        follow: bool = False,
        queue_max: int = QUEUE_EVENTS_MAX,
    ) -> AsyncIterator[TopicSubscription]:
        """Events as they come, each after the one that it follows; before them the past, if start
        says so: "earliest", or the checkpoint of an event, after which to go on.

        With `meta`, the node is in the meta topic as well, and hears of new versions: the last one
        is `newer`. With `follow`, their events come, too, from their beginning on.
        """
        if follow and not meta:
            raise UsageError(
                "follow=True: new versions are told in the meta topic: leave meta=True"
            )
        subscription = TopicSubscription(
            self._topics,
            self.descriptor.author,
            queue_max=queue_max,
            follow=follow,
            on_version=self._heard_of,
        )
        meta_topic = self.descriptor.sub_topic(META) if meta else None
        try:
            await subscription.begin(self.id, start_of(start), meta_topic)
            yield subscription
        finally:
            await subscription.end()

    async def read(
        self, end: AnyCid | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Event]:
        """Events from this one back, along their links: the newest first, by the clocks of their
        authors, and each after those that are known to follow it. Without an end, from all that
        nothing known here follows, and, unless this node is in the topic's tree, from those that
        publishers speak of."""
        if limit is not None and limit < 1:
            raise UsageError(f"limit={limit}: give 1 or more, or none")
        begin = None if end is None else cid_of_any("end", end)
        async for event in read_back(self._topics, self.id, self.descriptor, begin, limit):
            yield event

    # Steps

    def _heard_of(self, id: Cid, topic: TopicDescriptor) -> None:
        self.newer = Topic(self._topics, id, topic)


class TopicSettings:
    """What the author of a topic decides, as descriptors say it."""

    def __init__(
        self,
        publishers: Peers | None,
        requests: Peers,
        linking: EventLinking,
        sub_topics: Mapping[str, AnyCid | Topic] | None,
    ) -> None:
        self.publishers = None if publishers is None else _publishers(publishers)
        self.requests = _requests(requests)
        if not isinstance(linking, EventLinking):
            raise UsageError(f"linking={linking!r}: give shoal.LAST_SEEN or shoal.CUSTOM")
        self.linking = linking
        self.sub_topics = _sub_topics({} if sub_topics is None else sub_topics)


async def create_topic(topics: NodeTopics, name: str, settings: TopicSettings) -> Topic:
    """A new topic, and the meta topic that will tell of its versions."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"a topic's name is {name!r}: give it some text")
    check_text(
        "a topic's name", name, NAME_BYTES_MAX - len(f"{META}-")
    )  # the meta topic's is longer
    meta, _ = await topics.add(new_meta_topic(name, topics.author, _now_ms()))
    return await _add(topics, name, meta, settings, None)


async def _add(
    topics: NodeTopics, name: str, meta: Cid, settings: TopicSettings, parent: Cid | None
) -> Topic:
    unsigned = new_topic(
        name,
        topics.author,
        _now_ms(),
        meta=meta,
        sub_topics=settings.sub_topics,
        parent=parent,
        publishers=settings.publishers,
        requests=settings.requests,
        linking=settings.linking,
    )
    id, descriptor = await topics.add(unsigned)
    await topics.announce(meta, descriptor)
    return Topic(topics, id, descriptor)


def cid_of_any(field: str, given: AnyCid) -> Cid:
    """A CID, however the application writes it."""
    if isinstance(given, Event):
        return given.id
    if isinstance(given, str):
        return parse_cid(given)
    try:
        return cid_of_bytes(given if isinstance(given, bytes) else b"")
    except MalformedMessage:
        raise UsageError(f"{field}={given!r}: give a CID, zdpu...") from None


def start_of(given: AnyCid) -> Start:
    """Where a subscription begins, for the machine."""
    if given == LATEST:
        return LIVE
    if given == EARLIEST:
        return BEGINNING
    try:
        return cid_of_any("start", given)
    except UsageError as error:
        raise UsageError(
            f"start={given!r}: give 'latest', 'earliest', or the checkpoint of an event ({error})"
        ) from None


def _sub_topics(given: Mapping[str, AnyCid | Topic]) -> tuple[tuple[str, Cid], ...]:
    if not isinstance(given, Mapping):
        raise UsageError(f"sub_topics={given!r}: give a dict, of names and CIDs or topics")
    if META in given:
        raise UsageError(f"sub_topics: {META!r} is made with the topic: name yours otherwise")
    found: list[tuple[str, Cid]] = []
    for name, sub in given.items():
        if not isinstance(name, str):
            raise UsageError(f"sub_topics: {name!r} is no name: give some text")
        found.append((name, sub.id if isinstance(sub, Topic) else cid_of_any("sub_topics", sub)))
    return tuple(found)


def _publishers(given: Peers) -> PeerList:
    if given is Who.ANYONE:
        return PeerList(enabled=False)
    peers = _peers("publishers", given)
    if not peers:
        raise UsageError("publishers=[]: nobody could publish: leave it out for the author alone")
    return PeerList(enabled=True, peers=peers)


def _requests(given: Peers) -> PeerList:
    if isinstance(given, Who):
        return PeerList(enabled=given is Who.ANYONE)
    peers = _peers("requests", given)
    if not peers:
        raise UsageError("requests=[]: give shoal.NOBODY, or peers")  # an empty list lets all ask
    return PeerList(enabled=True, peers=peers)


def _peers(field: str, given: Peers) -> tuple[bytes, ...]:
    if isinstance(given, Who | str | bytes):
        raise UsageError(f"{field}={given!r}: give shoal.ANYONE, or a list of peer ids")
    return tuple([parse_peer_id(one) if isinstance(one, str) else bytes(one) for one in given])


def _now_ms() -> int:
    return time_ns() // MS_NS
