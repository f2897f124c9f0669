"""Messages between storage nodes and whoever reads from them.

Request ids are the asker's own, per link. Every question is answered by its answer or Refused.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import INT63_MAX, ChainName, Count, Partition, WireNodeId, WireStreamId
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import FRAME_BYTES_MAX, STORAGE_NODES_MAX

EVERYTHING = INT63_MAX
PAGE_ROWS_MAX = 1000
LOGS_MAX = 100
BEHIND = "behind"

LogId = Annotated[bytes, Meta(min_length=16, max_length=16)]  # a UUID
Signed = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES + 1, max_length=FRAME_BYTES_MAX)]
Reason = Annotated[str, Meta(max_length=200)]


class Cursor(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A place among the messages of a (stream, partition), in the order in which they are read."""

    timestamp_ms: Count
    sequence: Count
    publisher: WireNodeId
    chain: ChainName


# Questions


class ReadRange(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Messages by position, both ends included; those after a cursor, to go on."""

    request: Count
    stream: WireStreamId
    partition: Partition
    begin: Position | None
    end: Position | None
    publisher: WireNodeId | None
    chain: ChainName | None
    after: Cursor | None
    rows_max: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
    whole: bool = False
    """Compare with the other storage nodes first, and say "behind" rather than give less than they
    have."""
    since_ns: Count = 0
    """A comparison that began then or later will do: `asked_ns` of the read's first answer."""


class ReadLast(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The newest n messages by position, oldest first. If they do not fit one page, go on with
    ReadRange after the cursor, until n have come."""

    request: Count
    stream: WireStreamId
    partition: Partition
    count: Annotated[int, Meta(ge=1, le=100_000)]
    publisher: WireNodeId | None
    rows_max: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
    whole: bool = False
    since_ns: Count = 0
    """Both as of a ReadRange."""


class ReadLog(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Rows of an ingest log after a seq, as offsets name them."""

    request: Count
    stream: WireStreamId
    partition: Partition
    log: LogId
    after_seq: Count
    rows_max: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
    whole: bool = False
    since_ns: Count = 0
    """Both as of a ReadRange, of the answering node's own log."""


class ReadHeads(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Which logs are held of a (stream, partition), and how much of each."""

    request: Count
    stream: WireStreamId
    partition: Partition


class Keep(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Make this message durable, and say so: for publishers who must know."""

    request: Count
    signed: Signed


class CountKept(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """How many messages of a chain are on disk, from a position to another, both included? For
    publishers of many, who would have each of them kept by a question of its own."""

    request: Count
    stream: WireStreamId
    partition: Partition
    publisher: WireNodeId
    chain: ChainName
    begin: Position
    end: Position


# Answers


class Heard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an answer says of another storage node of the stream: every message that this one had
    at a time is held here, too."""

    node: WireNodeId
    until_ms: Count
    """That time; 0 if the two were never compared, EVERYTHING if it is as late as was asked for."""


Unaware = Annotated[tuple[WireNodeId, ...], Meta(max_length=STORAGE_NODES_MAX)]
"""Other storage nodes of the stream that may say, without the message, that they have all that this
one had of its time: it came so late."""

Heards = Annotated[tuple[Heard, ...], Meta(max_length=STORAGE_NODES_MAX)]


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """A page of messages; after None there is no more. A page may be empty and not the last."""

    request: Count
    rows: Annotated[tuple[Signed, ...], Meta(max_length=PAGE_ROWS_MAX)]
    next: Cursor | None
    heard: Heards = ()
    """The other storage nodes of the stream."""
    asked_ns: Count = 0
    """When a question for the whole came, as the answering node tells time: for the next
    `since_ns`."""
    damaged: bool = False
    """Rows that belong between these cannot be read here."""


class LogRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row of a log."""

    seq: Count
    ingest_ns: Count
    signed: Signed


class LogRows(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """A page of a log, and what is available of it."""

    request: Count
    rows: Annotated[tuple[LogRow, ...], Meta(max_length=PAGE_ROWS_MAX)]
    first: Count
    last: Count
    """Nothing is available if first is last + 1."""
    damaged: Annotated[tuple[Count, ...], Meta(max_length=PAGE_ROWS_MAX)] = ()
    """Rows between these that cannot be read here; another storage node may have them."""
    heard: Heards = ()
    asked_ns: Count = 0
    """Both as of Rows. Of the answering node's own log: messages that only another node has come
    into no copy of a log before its owner has them."""
    own: bool = False
    """The log is the answering node's own."""


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is available of one log."""

    log: LogId
    first: Count
    last: Count


class Heads(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """Every log held of a (stream, partition); `own` is the answering node's."""

    request: Count
    own: LogId
    logs: Annotated[tuple[Head, ...], Meta(max_length=LOGS_MAX)]


class Kept(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """The message survives a crash of this storage node from now on."""

    request: Count
    unaware: Unaware = ()


class Counted(msgspec.Struct, frozen=True, array_like=True, tag=12, gc=False):
    """So many; if they are more than a few pages, at least so many."""

    request: Count
    count: Count
    unaware: Unaware = ()
    """As of Kept, for the oldest of them."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """There is no answer: "not-kept" (no stream of ours, or one that we have never heard of),
    "not-served" (we do not keep it now, and have rows of it),
    "busy", "behind" (other storage nodes have more, and we shall have it soon), "expired" (the log
    begins later), "no-such-log", "failed"."""

    request: Count
    reason: Reason


QUESTIONS = (ReadRange, ReadLast, ReadLog, ReadHeads, Keep, CountKept)
ANSWERS = (Rows, LogRows, Heads, Kept, Counted, Refused)

# Messages between the storage nodes of a stream: anti-entropy.
#
# Both sides ask and answer; request ids are the asker's own. A row without its message is named by
# what tells it apart: whoever holds that message need not be sent it.


POLLED_STREAMS_MAX = 256
HEADS_MAX = 4_000
LISTED_STREAMS_MAX = 256  # names of streams in one page of a list: 16 KB, mostly
NOT_KEPT = "not-kept"

Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]
Seqs = Annotated[tuple[Count, ...], Meta(min_length=1, max_length=PAGE_ROWS_MAX)]


class AskHeads(msgspec.Struct, frozen=True, array_like=True, tag=20, gc=False):
    """What do you hold of these streams? From a partition of the first one on, to go on."""

    request: Count
    streams: Annotated[tuple[WireStreamId, ...], Meta(min_length=1, max_length=POLLED_STREAMS_MAX)]
    from_partition: Partition
    time_ms: Count = 0
    """The time of day, as the asking node tells it."""


class PlaceHeads(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Every log held at one place, and the message time below which messages were let go."""

    stream: WireStreamId
    partition: Partition
    horizon_ms: Count
    logs: Annotated[tuple[Head, ...], Meta(max_length=HEADS_MAX)]


class TellHeads(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    """Places in the order asked for; `own` is the answering node's log. If `more`, ask again from
    the last place's successor on."""

    request: Count
    own: LogId
    places: Annotated[tuple[PlaceHeads, ...], Meta(max_length=HEADS_MAX)]
    more: bool
    untold: Annotated[tuple[Count, ...], Meta(max_length=POLLED_STREAMS_MAX)] = ()
    """Which of the streams asked for, by their numbers in the question, are left out because the
    asking node may not know: of all others without a place nothing is held."""
    until_ms: Count = 0
    """Once the asking node has all of this, it may say so up to this time of day, and no further:
    from now on the answering node has a message that is a minute older confirmed by both."""


class AskRows(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    """Rows of a log after a seq, without their messages; only those that came in at `since_ns` or
    later."""

    request: Count
    stream: WireStreamId
    partition: Partition
    log: LogId
    after_seq: Count
    since_ns: Count
    rows_max: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]


class RowName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row, without its message."""

    seq: Count
    ingest_ns: Count
    timestamp_ms: Count
    sequence: Count
    publisher: WireNodeId
    chain: ChainName
    digest: Digest


class TellRows(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """A page of a log, without a hole, and what is available of it."""

    request: Count
    rows: Annotated[tuple[RowName, ...], Meta(max_length=PAGE_ROWS_MAX)]
    first: Count
    last: Count


class AskMessages(msgspec.Struct, frozen=True, array_like=True, tag=24, gc=False):
    """The messages of these rows of a log."""

    request: Count
    stream: WireStreamId
    partition: Partition
    log: LogId
    seqs: Seqs


class SeqMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The message of one row."""

    seq: Count
    signed: Signed


class TellMessages(msgspec.Struct, frozen=True, array_like=True, tag=25, gc=False):
    """As many of them as fit one page, in the order asked for; those that are gone are left out."""

    request: Count
    rows: Annotated[tuple[SeqMessage, ...], Meta(max_length=PAGE_ROWS_MAX)]


class AskStreams(msgspec.Struct, frozen=True, array_like=True, tag=27, gc=False):
    """Which streams do you hold that I keep, too? Those after a number, as the store with this log
    has numbered them; a store with another log begins anew."""

    request: Count
    log: LogId
    after: Count


class TellStreams(msgspec.Struct, frozen=True, array_like=True, tag=28, gc=False):
    """A page of the list, up to a number; `own` is the answering node's log."""

    request: Count
    own: LogId
    streams: Annotated[tuple[WireStreamId, ...], Meta(max_length=LISTED_STREAMS_MAX)]
    last: Count
    more: bool


class SyncRefused(msgspec.Struct, frozen=True, array_like=True, tag=26, gc=False):
    """There is no answer: "not-kept", "busy", "no-such-log", "failed", "replaced"."""

    request: Count
    reason: Reason
    until_ms: Count = 0
    """As of TellHeads, if nothing is kept."""


SYNC_QUESTIONS = (AskHeads, AskRows, AskMessages, AskStreams)
SYNC_ANSWERS = (TellHeads, TellRows, TellMessages, TellStreams, SyncRefused)
SYNC_MESSAGES = SYNC_QUESTIONS + SYNC_ANSWERS
