"""Whether a batch that comes again is the same batch.

Spark notes the plan of a batch, with its source offsets, in the checkpoint before it runs it, and
runs it again from that note. So the same note is the same batch. A checkpoint that was restored
from an old copy has another note under that number, or none. Where the note cannot be read, the
rows are compared, in whatever order tasks have them: a batch may be split otherwise when it runs
again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shoal.base.errors import UsageError
from shoal.base.gateway_messages import SOURCE_CHARS_MAX

DIGEST_BYTES = 32
MODULUS = 1 << 8 * DIGEST_BYTES
METADATA_BYTES_MAX = 4096
PLAN_BYTES_MAX = 4 << 20  # a hundred sources with all their partitions
HEAD_LINES = 2  # the format of Spark's note, and watermark, time and settings of the batch

log = logging.getLogger("shoal.pipeline")


class _Metadata(msgspec.Struct, frozen=True):
    id: str


class PlannedBatch(NamedTuple):
    """Spark's note of a batch."""

    plan: str = ""
    """Its digest; empty if it could not be read."""
    source: str = ""
    """The source offsets where the batch ends, one line for each source."""


class RowsDigest:
    """A digest of rows that does not depend on their order: the sum of their digests."""

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0

    def add(self, rows: Sequence[bytes]) -> None:
        """Some more rows, each in bytes that no other row has."""
        sha256, number = hashlib.sha256, int.from_bytes
        self.rows += len(rows)
        self.total += sum([number(sha256(row).digest()) for row in rows])


def shown_digest(total: int) -> str:
    """A sum of digests as it is compared."""
    return f"{total % MODULUS:0{2 * DIGEST_BYTES}x}"


def planned_batch(checkpoint: str | None, query: str, batch: int) -> PlannedBatch:
    """What the checkpoint of a query says of a batch; empty if it cannot be read from here."""
    if not checkpoint:
        return PlannedBatch()
    from shoal_spark.folders import resolve_folder

    try:
        system, path, _ = resolve_folder(checkpoint.removeprefix("file:"))
        folder = path.rstrip("/")
        with system.open_input_stream(f"{folder}/metadata") as file:
            of = msgspec.json.decode(file.read(METADATA_BYTES_MAX), type=_Metadata).id
        if of != query:  # a bare path may be one of another file system for Spark
            raise UsageError(f"it is the checkpoint of query {of}")
        with system.open_input_stream(f"{folder}/offsets/{batch}") as file:
            raw: bytes = file.read(PLAN_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # Arrow's, msgspec's and ours are ValueErrors
        log.info(
            "the plan of batch %d cannot be read from %s (%s): a replay is known by its rows only",
            batch,
            checkpoint,
            error,
        )
        return PlannedBatch()
    lines = raw.decode(errors="replace").splitlines()
    if len(raw) > PLAN_BYTES_MAX or len(lines) <= HEAD_LINES:
        return PlannedBatch()
    source = "\n".join(lines[HEAD_LINES:])
    if len(source) > SOURCE_CHARS_MAX:
        source = f"sha256:{hashlib.sha256(source.encode()).hexdigest()}"
    return PlannedBatch(hashlib.sha256(raw).hexdigest(), source)
