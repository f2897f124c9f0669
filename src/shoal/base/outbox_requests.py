"""What the tasks and drivers of Spark queries say to a node's outbox, over HTTP.

Chunks of rows travel as msgpack, the rest as JSON. Both ends check it by these classes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import Count
from shoal.base.units import KIB

CHUNK_ROWS_MAX = 500
"""Half of what a node holds unverified of one neighbour: it must not drop what comes in one go."""
CHUNK_BYTES = 256 * KIB
"""A chunk with so many bytes of values is full; one row more may be in it, of any size."""
BODY_BYTES_MAX = 1024 * KIB
"""A full chunk, the largest row, keys, and the rest."""
ATTEMPTS_MAX = 100_000
"""Tasks of one batch."""
SEAL_BYTES_MAX = 8 * 1024 * KIB

SOURCE_CHARS_MAX = 16 * KIB
"""Source offsets of one batch. Longer ones are given as their digest: they can be compared, and are
not shown to people."""
DIGEST_CHARS_MAX = 64

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Small = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Row = tuple[Annotated[int, Meta(ge=0, le=255)], int | None, str | None, bytes]
"""Content type, partition of the stream, key, content."""


class EpochRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of a query begins, or one of its tasks does."""

    query: Name
    run: Name
    stream: str
    once: bool = False


class StageRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Some rows of a task."""

    stream: str
    query: Name
    epoch: Small
    batch: Count
    partition: Small
    attempt: Count
    chunk: Small
    rows: Annotated[list[Row], Meta(max_length=CHUNK_ROWS_MAX)]


class SealedAttempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attempt of a task that counts."""

    partition: Small
    attempt: Count
    chunks: Small


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a batch is made of, to tell a replay from another batch with the same number."""

    rows: Count = 0
    digest: Annotated[str, Meta(max_length=DIGEST_CHARS_MAX)] = ""
    """Of all rows, in whatever order tasks have them."""
    plan: Annotated[str, Meta(max_length=DIGEST_CHARS_MAX)] = ""
    """Digest of Spark's own plan of the batch, which is in its checkpoint; empty if the sink
    cannot read that."""
    source: Annotated[str, Meta(max_length=SOURCE_CHARS_MAX)] = ""
    """The source offsets where the batch ends, one line for each source; empty as above."""

    def is_same_plan(self, other: Fingerprint) -> bool:
        """Whether Spark planned the batch once, and runs it again."""
        return bool(self.plan) and self.plan == other.plan

    def has_same_rows(self, other: Fingerprint) -> bool:
        """Whether all rows are the same."""
        return (self.rows, self.digest) == (other.rows, other.digest)

    def is_replay_of(self, other: Fingerprint) -> bool:
        """Whether this is the same batch: Spark's own replay of it, or the same rows from source
        offsets that are not known to be others."""
        same_source = not (self.source and other.source) or self.source == other.source
        return self.is_same_plan(other) or (self.has_same_rows(other) and same_source)


class SealRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These attempts are the batch."""

    query: Name
    epoch: Small
    batch: Count
    attempts: Annotated[list[SealedAttempt], Meta(max_length=ATTEMPTS_MAX)]
    fingerprint: Fingerprint


class DiscardRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The batch was given up, or one attempt of one of its tasks."""

    query: Name
    epoch: Small
    batch: Count
    partition: Small | None = None
    attempt: Count | None = None
