"""What peers of a topic say to each other. Decoded is not believed: see signing.py."""

from __future__ import annotations

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import (
    PROTOCOL,
    EventDescriptor,
    TopicDescriptor,
    check_stamp,
    check_text,
)
from shoal.kernel.effects import Send
from shoal.protocols.topics.config import (
    CONTACTS_MAX,
    HEADS_MAX,
    PATH_MAX,
    REASON_BYTES_MAX,
    SPANS_MAX,
)


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """When the message was made, and by which protocol: the metadata of every message."""

    created_ms: int
    protocol_version: str = PROTOCOL

    def __post_init__(self) -> None:
        check_stamp(self.created_ms, self.protocol_version)


class PublishEvent(msgspec.Struct, frozen=True, gc=False):
    """A published event under way."""

    event: EventDescriptor
    stamp: Stamp


class JoinTopic(msgspec.Struct, frozen=True, gc=False):
    """Take the sender as a child in the tree of this topic."""

    topic: Cid
    stamp: Stamp
    addresses: tuple[str, ...] = ()
    """Where others can dial it, should it have children of its own one day."""


class LeaveTopic(msgspec.Struct, frozen=True, gc=False):
    """The sender is no longer a child in the tree of this topic."""

    topic: Cid
    stamp: Stamp


class NewTopic(msgspec.Struct, frozen=True, gc=False):
    """A topic was created."""

    topic: TopicDescriptor
    stamp: Stamp


class RequestToPublish(msgspec.Struct, frozen=True, gc=False):
    """Publish this event for its author, who may not."""

    event: EventDescriptor
    stamp: Stamp
    parent: Cid | None = None
    """Under CUSTOM linking, the parent that the author wants: not in the event, whose core has
    none, and which a publisher may refuse."""


# Ours, not the original's


class Heads(msgspec.Struct, frozen=True, gc=False):
    """The events of a topic that no event known to the sender names as parent."""

    topic: Cid
    events: tuple[Cid, ...]
    stamp: Stamp

    def __post_init__(self) -> None:
        _at_most("heads", len(self.events), HEADS_MAX)


class Redirect(msgspec.Struct, frozen=True, gc=False):
    """The sender has no room for another child in this topic: join at one of these."""

    topic: Cid
    contacts: tuple[Contact, ...]
    stamp: Stamp

    def __post_init__(self) -> None:
        _at_most("contacts", len(self.contacts), CONTACTS_MAX)


class PublishAnswer(msgspec.Struct, frozen=True, gc=False):
    """What became of a request to publish: the event it is now, or why it is none."""

    topic: Cid
    core: Cid
    """The event that was asked for, as signing.core_cid knows it."""
    event: Cid | None
    stamp: Stamp
    reason: str = ""

    def __post_init__(self) -> None:
        check_text("a reason", self.reason, REASON_BYTES_MAX)
        if (self.event is None) != bool(self.reason):
            raise UsageError("an answer has an event, or a reason why there is none: give one")


class Path(msgspec.Struct, frozen=True, gc=False):
    """You are a child of the sender in this topic, and this is how the root leads to it: the root
    first, the sender last. The answer to a join, and said again whenever it changes."""

    topic: Cid
    path: tuple[Contact, ...]
    stamp: Stamp

    def __post_init__(self) -> None:
        _at_most("nodes of a path", len(self.path), PATH_MAX)


class Want(msgspec.Struct, frozen=True, gc=False):
    """Send these events, and what they follow, back to what the sender names as known."""

    topic: Cid
    events: tuple[Cid, ...]
    stamp: Stamp
    known: tuple[Cid, ...] = ()
    behind: int = 0
    """At most so many that are not named."""

    def __post_init__(self) -> None:
        _at_most("events wanted", len(self.events), HEADS_MAX)
        _at_most("events known", len(self.known), HEADS_MAX)


class Lacks(msgspec.Struct, frozen=True, gc=False):
    """The sender was asked for these events, and has none of them."""

    topic: Cid
    events: tuple[Cid, ...]
    stamp: Stamp

    def __post_init__(self) -> None:
        _at_most("events", len(self.events), HEADS_MAX)


class Digest(msgspec.Struct, frozen=True, gc=False):
    """What the sender's heads come to, in spans of time: equal digests, equal heads."""

    topic: Cid
    floor_ms: int
    """Of earlier ones the sender does not speak."""
    spans: tuple[tuple[int, int], ...]
    """Where a span begins, and the exclusive or of what its heads are named by."""
    stamp: Stamp

    def __post_init__(self) -> None:
        _at_most("spans", len(self.spans), SPANS_MAX)


Message = (
    PublishEvent
    | JoinTopic
    | LeaveTopic
    | NewTopic
    | RequestToPublish
    | Heads
    | Redirect
    | PublishAnswer
    | Path
    | Want
    | Lacks
    | Digest
)


class Rpc(msgspec.Struct, frozen=True, gc=False):
    """Messages that travel together: what goes on a link."""

    messages: tuple[Message, ...]


def _at_most(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise UsageError(f"at most {limit} {what} in one message, not {count}: send several")


def say(peer: NodeId, *messages: Message) -> Send:
    """Messages to one peer."""
    return Send(Rpc(messages), (peer,))


def stamp(now_ns: int) -> Stamp:
    """What every message says of itself."""
    return Stamp(now_ns // MS_NS)
