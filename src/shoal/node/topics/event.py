"""Events of durable topics, as an application gets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

import msgspec

from shoal.base.errors import NotFound, TopicUnavailable, UsageError
from shoal.base.log_line_limit import log_of_others
from shoal.base.units import show_time
from shoal.identity import peer_id
from shoal.identity.topics.cid import Cid, show_cid
from shoal.identity.topics.descriptors import EventDescriptor, TopicDescriptor, is_allowed
from shoal.identity.topics.event_signatures import signatures_hold

if TYPE_CHECKING:
    from shoal.node.topics.client import NodeTopics

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_json_encoder = msgspec.json.Encoder()


class Event:
    """One event of a topic: its signatures were checked, or its CID was asked for. It never
    changes: its CID is its content's."""

    __slots__ = ("descriptor", "gap_before", "id")

    def __init__(self, id: Cid, descriptor: EventDescriptor, *, gap_before: bool = False) -> None:
        self.id = id
        """The CID as bytes."""
        self.descriptor = descriptor
        self.gap_before = gap_before
        """Events before this one could not be had, since nobody keeps them any more; or a topic's
        only publisher went on from an older copy of its disk, and this one does not follow the one
        told before."""

    def __repr__(self) -> str:
        return f"Event({self.cid!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def cid(self) -> str:
        """Its name, zdpu..."""
        return show_cid(self.id)

    @property
    def checkpoint(self) -> str:
        """Where to go on after this one: `subscribe(start=event.checkpoint)`."""
        return self.cid

    @property
    def topic(self) -> str:
        """The CID of its topic."""
        return show_cid(self.descriptor.topic)

    @property
    def payload(self) -> bytes:
        return self.descriptor.payload

    @property
    def author(self) -> str:
        """The peer id of who wrote it."""
        return peer_id.encode(self.descriptor.author)

    @property
    def publisher(self) -> str:
        """The peer id of who gave it its place in the topic."""
        return peer_id.encode(self.descriptor.publisher or self.descriptor.author)

    @property
    def parent(self) -> str | None:
        """The CID of the event before this one."""
        return None if self.descriptor.parent is None else show_cid(self.descriptor.parent)

    @property
    def created(self) -> datetime:
        """When it was written, by its author's clock."""
        return _EPOCH + timedelta(milliseconds=self.descriptor.metadata.created_ms)

    def as_json(self) -> bytes:
        """One line for programs; a payload that is not text comes as base64."""
        line = {
            "topic": self.topic,
            "cid": self.cid,
            "parent": self.parent,
            "author": self.author,
            "publisher": self.publisher,
            "created": show_time(self.created),
            "gap_before": self.gap_before,
        }
        try:
            return _json_encoder.encode({**line, "text": self.payload.decode()})
        except UnicodeDecodeError:
            return _json_encoder.encode({**line, "base64": self.payload})


class PublishedEvent(Event):
    """An event that was published by this node, or on its behalf."""

    __slots__ = ("_topics",)

    def __init__(self, id: Cid, descriptor: EventDescriptor, topics: NodeTopics) -> None:
        super().__init__(id, descriptor)
        self._topics = topics

    async def stored(self, replicas: int = 1) -> int:
        """Wait until so many other nodes say that they keep it; how many do. TopicUnavailable, with
        their number as `replicas`, if fewer will."""
        return await self._topics.stored(self.id, replicas)


# The past of a topic, read from its ends back along the links of its events.
#
# Ends are the events that nothing known here follows. A node that is in the topic's tree has them;
# one that is not, or is just back, looks for those that publishers name in the DHT as well. Where
# anyone publishes, anybody signs such a record: so whatever is not held here is checked like an
# event that a peer brought, and left out if it is not good. Only the event that the application
# named itself is believed by its CID.


log_others = log_of_others("shoal.node")


class Held(msgspec.Struct):
    """What a node holds of a topic at one moment."""

    events: set[Cid]
    heads: list[Event]
    """Those that nothing held follows."""
    followed: dict[Cid, int]
    """By how many that are held."""
    is_current: bool
    """Whether its neighbours in the tree tell it what is new."""


class Shelf(Protocol):
    """Where events are found: a node's topics."""

    def held(self, topic: Cid) -> Held:
        """What is here."""

    async def recorded(self, id: Cid, topic: TopicDescriptor) -> list[Cid]:
        """The heads that publishers speak of in the DHT."""

    async def fetch(self, event: Cid, topic: Cid | None = None) -> Event:
        """An event by its CID; NotFound if nobody has it."""


async def read_back(
    shelf: Shelf, id: Cid, topic: TopicDescriptor, end: Cid | None, limit: int | None
) -> AsyncIterator[Event]:
    """Events from this one back, or from all ends: the newest first, by the clocks of their
    authors, but each after all that are known to follow it."""
    past = _Past(shelf, id, topic)
    await (past.begin() if end is None else past.begin_at(end))
    count = 0
    while (event := past.next()) is not None:
        yield event
        count += 1
        if count == limit:
            return
        await past.told(event)


class _Past:
    """Events that were reached, and are told in their turn."""

    def __init__(self, shelf: Shelf, id: Cid, topic: TopicDescriptor) -> None:
        self._shelf = shelf
        self._id = id
        self._topic = topic
        held = shelf.held(id)
        self._held = held
        self._counted: set[Cid] = set()  # events that are in the books below from the beginning
        self._left: dict[Cid, int] = {}  # by event: so many are known to follow it, and not told
        self._reached: set[Cid] = set()
        self._ahead: list[tuple[int, int, Event]] = []
        self._early: dict[Cid, Event] = {}  # their turn came before what follows them was told

    async def begin(self) -> None:
        """From all ends."""
        held = self._held
        self._counted, self._left = held.events, dict(held.followed)
        for head in held.heads:
            self._reach(head)
        if held.is_current and held.heads:
            return
        for named in await self._shelf.recorded(self._id, self._topic):
            if named not in held.events:
                with suppress(NotFound):  # its publisher is gone, and so is the event
                    await self._find(named)

    async def begin_at(self, end: Cid) -> None:
        """From the event that the application named: it is what its CID says."""
        event = await self._shelf.fetch(end, self._id)
        if event.descriptor.topic != self._id:
            raise UsageError(
                f"event {event.cid} is of topic {event.topic}, not {show_cid(self._id)}"
            )
        self._reach(event)

    def next(self) -> Event | None:
        """The event whose turn it is; None at the end."""
        while self._ahead:
            _, _, event = heappop(self._ahead)
            if not self._left.get(event.id):
                return event
            self._early[event.id] = event
        return None

    async def told(self, event: Event) -> None:
        """Go on to what an event follows, if all others that follow that were told, too."""
        parent = event.descriptor.parent
        if parent is None:
            return
        self._left[parent] -= 1
        if self._left[parent]:
            return
        if parent in self._early:
            self._push(self._early.pop(parent))
        elif parent not in self._reached:
            try:
                await self._find(parent)
            except NotFound:
                raise TopicUnavailable(
                    f"topic {show_cid(self._id)}: event {show_cid(parent)}, which {event.cid}"
                    " follows, is kept by nobody who can be reached: what is before it cannot be"
                    " read"
                ) from None

    async def _find(self, id: Cid) -> None:
        event = await self._fetch(id)
        if id in self._held.events or self._is_good(event):
            self._reach(event)
        else:
            topic = show_cid(self._id)
            log_others.warning("event %s is left out of topic %s: forged", event.cid, topic)

    async def _fetch(self, id: Cid) -> Event:
        if self._held.is_current:
            with suppress(NotFound):  # or it is there, and was refused: then the DHT may tell
                return await self._shelf.fetch(id, self._id)
        return await self._shelf.fetch(id)

    def _is_good(self, event: Event) -> bool:
        of_topic = event.descriptor.topic == self._id
        allowed = of_topic and is_allowed(self._topic, event.descriptor)
        return allowed and signatures_hold(event.descriptor)

    def _reach(self, event: Event) -> None:
        self._reached.add(event.id)
        self._push(event)
        parent = event.descriptor.parent
        if parent is not None and event.id not in self._counted:
            self._left[parent] = self._left.get(parent, 0) + 1

    def _push(self, event: Event) -> None:
        # Events of the same moment are told forward by their CIDs, so back the other way round.
        order = -event.descriptor.metadata.created_ms, -int.from_bytes(event.id)
        heappush(self._ahead, (*order, event))
