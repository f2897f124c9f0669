"""What an application asks of a node's history machine, and what it is told.

The token of a ReadHistory names the read: ReadMore and StopReading come with the same one.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.identity.stream_message import Position
from shoal.protocols.streams.messages import VerifiedMessage


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
