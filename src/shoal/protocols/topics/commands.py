"""What an application asks of a topic node, and what it is told.

Every answer names the token of its command. Events are told after those that they follow.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import EventDescriptor, TopicDescriptor

# Where a subscription begins. A CID: after that event, which was the last one seen; it waits until
# the event and what led to it are here.
LIVE = "live"
BEGINNING = "beginning"
Start = str | bytes


class AddTopic(msgspec.Struct, frozen=True, gc=False):
    """Make a topic of ours known: it is kept here, and stored in the DHT. Signed by this node."""

    topic: TopicDescriptor


class FindTopic(msgspec.Struct, frozen=True, gc=False):
    """What is this topic? Answered by TopicFound."""

    topic: Cid


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Be told a topic's events. TopicFound says that it began, or that nobody knows the topic.
    The token names the subscription from then on; one topic may have several."""

    topic: Cid
    start: Start = LIVE
    credit: int | None = None
    """Tell so many events, then wait for Grant; None: as they come. Nothing is lost by waiting,
    but for what retention takes: then the next event has gap_before."""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """Tell a subscription so many events more."""

    subscription: Hashable
    events: int


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """Tell a subscription no more."""

    subscription: Hashable


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Add an event; answered by EventAccepted or PublishRefused."""

    topic: Cid
    payload: bytes
    parent: Cid | None = None
    """Under CUSTOM linking, the event that this one follows; none begins a tree of its own."""


class AwaitStored(msgspec.Struct, frozen=True, gc=False):
    """Tell when so many other nodes keep an event that was published here; answered by
    EventStored."""

    event: Cid
    replicas: int


class AwaitTopicStored(msgspec.Struct, frozen=True, gc=False):
    """Tell when so many other nodes keep a topic's descriptor; answered by EventStored."""

    topic: TopicDescriptor
    replicas: int


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Find an event by its CID: here, in the tree, in the DHT; answered by EventFound."""

    event: Cid
    topic: Cid | None = None
    """If this node is in the tree of this topic, its neighbours are asked first."""


class Pin(msgspec.Struct, frozen=True, gc=False):
    """Keep a topic's events whatever the limits on age and size say, or no longer."""

    topic: Cid
    pinned: bool = True


class Retire(msgspec.Struct, frozen=True, gc=False):
    """Publish nothing any more in any topic, and put no head records: a newer session of this key
    does. Events of others are carried and kept as before."""

    reason: str


class TopicFound(msgspec.Struct, frozen=True, gc=False):
    """Told: a topic, or None if neither this node nor the DHT knows it."""

    id: Cid
    topic: TopicDescriptor | None
    token: Hashable


class EventArrived(msgspec.Struct, frozen=True, gc=False):
    """Told: an event, to each subscription of its topic exactly once."""

    subscription: Hashable
    """The token of its Subscribe."""
    id: Cid
    event: EventDescriptor
    received_ns: int
    gap_before: bool = False
    """The event that this one follows could not be had; or its publisher's chain has forked, and
    this one is on another branch than the one told before."""


class StartMissing(msgspec.Struct, frozen=True, gc=False):
    """Told: nobody has had the event that a subscription begins after, for gap_patience_ns; or at
    once, that it is of another topic. It is looked for as long as the subscription lives, and this
    told again each time."""

    subscription: Hashable
    """The token of its Subscribe."""
    id: Cid
    of_topic: Cid | None = None
    """The topic that it is of, if that is another one: it will never be here."""


class EventAccepted(msgspec.Struct, frozen=True, gc=False):
    """Told: the event has its place in the topic, survives a crash of this node if it has a disk,
    and is on its way."""

    id: Cid
    event: EventDescriptor
    token: Hashable


class PublishRefused(msgspec.Struct, frozen=True, gc=False):
    """Told: the event is not part of the topic, and why."""

    topic: Cid
    reason: str
    token: Hashable


class EventStored(msgspec.Struct, frozen=True, gc=False):
    """Told: so many other nodes keep the event or topic; fewer than asked for if no more will."""

    id: Cid
    replicas: int
    token: Hashable


class EventFound(msgspec.Struct, frozen=True, gc=False):
    """Told: an event, or None if nobody has it."""

    id: Cid
    event: EventDescriptor | None
    token: Hashable


class CommandRefused(msgspec.Struct, frozen=True, gc=False):
    """Told: a command that came before the disk was read makes no sense. Later ones raise."""

    reason: str
    token: Hashable
