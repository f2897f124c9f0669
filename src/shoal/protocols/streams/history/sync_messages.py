"""Messages between the storage nodes of a stream: anti-entropy.

Both sides ask and answer; request ids are the asker's own. A row without its message is named by
what tells it apart: whoever holds that message need not be sent it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import ChainName, Count, Partition, WireNodeId, WireStreamId
from shoal.protocols.streams.history.messages import (
    PAGE_ROWS_MAX,
    Head,
    LogId,
    Reason,
    Signed,
)

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
