"""What an outbox is asked and answers, and its bounds."""

from __future__ import annotations

import msgspec

from shoal.base.ids import StreamId
from shoal.base.units import MIB, S_NS
from shoal.identity.stream_message import Position
from shoal.storage.outbox_file import Rows

NAME_CHARS_MAX = 100  # of queries and runs: Spark's are UUIDs


class OutboxConfig(msgspec.Struct, frozen=True):
    """Every bound of an outbox, with its reason."""

    size_bytes_max: int = 256 * MIB
    """Rows that are staged or not yet published: beyond it tasks are told to try again."""

    stale_ns: int = 120 * S_NS
    """A part older than this, of which nothing was sent, gets a new time. Nodes refuse what is
    older than 300 s, and a part is under way for seconds."""

    staged_ns: int = 3600 * S_NS
    """A batch of which nothing was staged for so long is of a job that died: some task hands in
    before that, or the job ends."""

    once_ns: int = 24 * 3600 * S_NS
    """A batch write is remembered for so long, for a driver that asks again whether it was sealed.
    Streaming queries are remembered for good: one may come back after months."""

    queries_max: int = 10_000
    runs_max: int = 64
    """Runs of a query that are known to be fenced."""

    shared_part: int = 8
    """One part in so many of the room is for all batches together; the rest is for one of them at a
    time, which can always be completed. Without that, two batches would each hold what the other
    one needs."""

    attempts_max: int = 2
    """Attempts of a task whose rows are held at once: Spark runs two copies of a task at most. The
    largest of them counts against the room, so the disk takes twice the room at most."""

    sweep_max: int = 256
    """Records looked at in one step of sweeping: a few milliseconds."""


class ChunkPlace(msgspec.Struct, frozen=True):
    """Where a task hands in some of its rows."""

    query: str
    epoch: int
    batch: int
    partition: int
    attempt: int
    chunk: int


class Attempt(msgspec.Struct, frozen=True):
    """The attempt of a task that counts, and how many chunks it staged."""

    partition: int
    attempt: int
    chunks: int


class SealAnswer(msgspec.Struct, frozen=True):
    """What came of a seal."""

    rows: int
    replayed: bool
    """It was sealed before: nothing changed."""
    changed: bool = False
    """The replay has other rows than were sealed: those that were sealed first stand."""


class Sending(msgspec.Struct, frozen=True):
    """Rows with their places, to be signed and sent."""

    query: int
    place: int
    stream: StreamId
    chain: str
    partition: int
    first: Position
    previous: Position | None
    rows: Rows


class QueryState(msgspec.Struct, frozen=True):
    """One query, for people and programs."""

    query: str
    stream: str
    epoch: int
    batch: int
    waiting_parts: int
    source: str | None = None
    """The source offsets where the last sealed batch ends, if the sink could read them. Only told
    of one query."""


class Holder(msgspec.Struct, frozen=True):
    """The batch that may use all room but the shared part."""

    query: str
    epoch: int
    batch: int
    size_bytes: int
    staged_ns: int
    """When it last handed something in."""
