"""What an application asks of a stream node, and what it is told."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import Contact, MessageId, NodeId, StreamId, WireNodeId
from shoal.identity.message_body import JSON, Position
from shoal.protocols.streams.config import DEGREE_MAX
from shoal.protocols.streams.signed_message import Seal, VerifiedMessage

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


# What an application asks of a node's history machine, and what it is told.
#
# The token of a ReadHistory names the read: ReadMore and StopReading come with the same one.


class LastMessages(msgspec.Struct, frozen=True, gc=False):
    """The newest so many by position, oldest first."""

    count: int


class MessageRange(msgspec.Struct, frozen=True, gc=False):
    """Messages by position, both ends included."""

    begin: Position | None = None
    end: Position | None = None


class LogRange(msgspec.Struct, frozen=True, gc=False):
    """Rows of an ingest log after a seq, up to the last one there is when the read begins."""

    log: bytes
    after_seq: int


What = LastMessages | MessageRange | LogRange


class ReadHistory(msgspec.Struct, frozen=True, gc=False):
    """Read messages of a partition from storage: answered by HistoryPages, then HistoryEnded.

    The first page comes by itself, each further one after a ReadMore.
    """

    stream: StreamId
    partition: int
    what: What
    publisher: NodeId | None = None
    chain: str | None = None
    """Of a publisher's, for a MessageRange."""
    insist: bool = False
    """Nothing found at one storage node is a reason to ask the next one, too."""


class ReadMore(msgspec.Struct, frozen=True, gc=False):
    """There is room for the next page."""


class StopReading(msgspec.Struct, frozen=True, gc=False):
    """Nobody wants the rest; nothing more is told of this read."""


class KeepDurably(msgspec.Struct, frozen=True, gc=False):
    """Have a message kept by so many storage nodes: answered by KeptDurably or KeepFailed."""

    stream: StreamId
    signed: bytes
    copies: int = 1


class CountDurable(msgspec.Struct, frozen=True, gc=False):
    """Find out how many messages of a chain some storage node has on disk, from a position to
    another, both included, and at most a page of them: answered by CountedDurable or KeepFailed."""

    stream: StreamId
    partition: int
    publisher: NodeId
    chain: str
    begin: Position
    end: Position
    wanted: int
    """All of them: the first storage node that has so many is answer enough, unless some were
    late."""


class HistoryRow(msgspec.Struct, frozen=True, gc=False):
    """A message out of storage, its signature checked."""

    message: VerifiedMessage
    seq: int | None = None
    """Its place in the log, if a log was read."""


class HistoryPage(msgspec.Struct, frozen=True, gc=False):
    """Told: the next rows of a read, never none."""

    token: Hashable
    rows: tuple[HistoryRow, ...]


# Why a read ended, or a message was not kept.
COMPLETE = "complete"
NO_STORAGE = "no-storage"  # no storage node is named for the stream
NO_TRACKER = "no-tracker"  # nobody could say which ones are
NO_SUCH_LOG = "no-such-log"
EXPIRED = "expired"  # the log begins later by now
BEYOND = "beyond"  # the log ends before the offset, at all that have it
INCOMPLETE = "incomplete"  # there may be more at storage nodes that were not heard
LATE = "late"  # a message is on disk, and a storage node may claim to be complete without it
FAILED = "failed"  # storage nodes are named, but could not, or did not, give what was asked for


class Unheard(msgspec.Struct, frozen=True, gc=False):
    """A storage node that may have messages which a read lacks."""

    node: NodeId
    until_ms: int
    """What it had at this time was read, from the others; 0 if nothing is known of it."""
    reason: str
    """Why it was not asked itself, or what it said."""


class HistoryEnded(msgspec.Struct, frozen=True, gc=False):
    """Told: nothing more comes of a read. It is complete, or there is a problem."""

    token: Hashable
    reason: str = COMPLETE
    problem: str = ""
    """For people: who was asked, and what each said."""
    unheard: tuple[Unheard, ...] = ()
    """If it is incomplete."""

    @property
    def complete(self) -> bool:
        return self.reason == COMPLETE


class KeptDurably(msgspec.Struct, frozen=True, gc=False):
    """Told: so many storage nodes have the message on disk."""

    token: Hashable
    copies: int


class CountedDurable(msgspec.Struct, frozen=True, gc=False):
    """Told: the storage node that has most of them has so many."""

    token: Hashable
    count: int
    unaware: tuple[NodeId, ...] = ()
    """Storage nodes that do not have all of them, and may claim to be complete all the same: some
    were late."""


class KeepFailed(msgspec.Struct, frozen=True, gc=False):
    """Told: not as many as wanted; it may be kept all the same."""

    token: Hashable
    reason: str
    problem: str
    refused: bool = False
    """All storage nodes refuse this message for good: asking again does not help."""


# What a node asks of its key exchange, and what it is told.


class FindKey(msgspec.Struct, frozen=True, gc=False):
    """Ask others for a key: answered by KeyFound or KeyNotFound."""

    stream: StreamId
    publisher: NodeId
    key: bytes


class KeyFound(msgspec.Struct, frozen=True, gc=False):
    """Told: the key is in the ring."""

    token: Hashable


class KeyNotFound(msgspec.Struct, frozen=True, gc=False):
    """Told: nobody gave it to us."""

    token: Hashable


class CompareStream(msgspec.Struct, frozen=True, gc=False):
    """A reader waits: compare this stream with its other storage nodes, unless that was begun since
    a time."""

    stream: StreamId
    since_ns: int


class StreamsCompared(msgspec.Struct, frozen=True, gc=False):
    """These streams were compared with one of their storage nodes, or it cannot be reached."""

    streams: tuple[StreamId, ...]


class FillFromStorage(msgspec.Struct, frozen=True, gc=False):
    """Neighbours could not fill a gap: ask storage for a chain's messages in (after, upto]."""

    stream: StreamId
    publisher: WireNodeId
    partition: int
    chain: str
    after: Position
    upto: Position


class FilledFromStorage(msgspec.Struct, frozen=True, gc=False):
    """What storage had of it; `asked` is False if no storage node answered, and may do so later."""

    stream: StreamId
    publisher: WireNodeId
    partition: int
    chain: str
    found: tuple[bytes, ...]
    asked: bool
    after: Position | None = None
    upto: Position | None = None
    """What was asked for: something else may be missing by now."""
    last: Position | None = None
    """Where the last of what was found stands."""


class CatchUp(msgspec.Struct, frozen=True, gc=False):
    """This node was without neighbours: what was published since then may have passed it by."""

    stream: StreamId
    since: Position
