"""What an application asks of a stream node, and what it is told."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import MessageId, StreamId
from shoal.identity.stream_message import JSON
from shoal.kernel.contact import Contact
from shoal.protocols.streams.config import DEGREE_MAX
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.protocols.streams.publisher import Seal

RedundantFeeds = Annotated[int, Meta(ge=0, le=DEGREE_MAX)] | Annotated[str, Meta(pattern="^all$")]
"""How many neighbours besides the fastest send a node each publisher's messages, in settings."""


def feeds_of(setting: RedundantFeeds) -> int | None:
    """The same as JoinStream has it: None for all."""
    return setting if isinstance(setting, int) else None


class JoinStream(msgspec.Struct, frozen=True, gc=False):
    """Take part in a stream; subscribe to be told its messages."""

    stream: StreamId
    subscribe: bool = True
    ordered: bool = True
    """Be told each chain in order; else every message as it is taken. Of several who subscribe,
    each may want it otherwise: then both are told."""
    keep: bool = False
    """Be told every message as it is taken, and be no subscriber: for storage."""
    redundant_feeds: int | None = None
    """How many neighbours besides the fastest send us each publisher's messages; None: all."""


class LeaveStream(msgspec.Struct, frozen=True, gc=False):
    """Part with a stream."""

    stream: StreamId


class SetTrackers(msgspec.Struct, frozen=True, gc=False):
    """These are the trackers of the network from now on. Streams that were with another one go to
    one of these."""

    contacts: tuple[Contact, ...]


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Send a message to everybody in a stream; answered by PublishAccepted."""

    stream: StreamId
    content: bytes
    content_type: int = JSON
    partition: int = 0
    seal: Seal | None = None
    """Encrypts the content, when the message has its id."""


class SendReady(msgspec.Struct, frozen=True, gc=False):
    """Send messages of our own that were made elsewhere, with chains of their own: those of an
    outbox. Some may have been sent before; answered by ReadySent."""

    stream: StreamId
    messages: tuple[VerifiedMessage, ...]


class ReadySent(msgspec.Struct, frozen=True, gc=False):
    """Told: the messages are on their way, or not, for there is no neighbour yet: none of them
    was sent, and none is held."""

    token: Hashable
    sent: bool


class StreamReady(msgspec.Struct, frozen=True, gc=False):
    """Told: this node has its place in the stream's overlay."""

    stream: StreamId


class StreamRefused(msgspec.Struct, frozen=True, gc=False):
    """Told: a tracker does not take this node into a stream, or not any more."""

    stream: StreamId
    later: bool
    """It cannot find out now what the node may do; it is asked again."""
    problem: str
    """Why not, for people."""


class PublishAccepted(msgspec.Struct, frozen=True, gc=False):
    """Told: the message has its id and is on its way."""

    id: MessageId
    token: Hashable
    signed: bytes
    """Signature and body, for whoever has it kept."""


class MessageArrived(msgspec.Struct, frozen=True, gc=False):
    """Told: a message for the local subscribers of its stream who want order."""

    message: VerifiedMessage
    hops: int
    received_ns: int
    gap_before: bool = False
    """Messages before this one of its chain could not be had."""


class MessageTaken(msgspec.Struct, frozen=True, gc=False):
    """Told: a message was taken, in no order, of a stream that is kept here or that somebody
    subscribes to who wants it so."""

    message: VerifiedMessage
    hops: int
    received_ns: int


class EquivocationSeen(msgspec.Struct, frozen=True, gc=False):
    """Told: a publisher signed two messages under one id. Together they prove it to anyone."""

    stream: StreamId
    first: bytes
    """Signature and body of the one that counts here."""
    second: bytes
    """The other one: not delivered, not passed on."""
