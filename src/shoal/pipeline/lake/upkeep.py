"""Small files made large, old days forgotten, and what nobody reads any more deleted.

None of it disturbs who reads: a reader has the file list of one version, and files stay for a while
after they left the table. Nor who writes: commits of files that are added go through beside it.
"""

from __future__ import annotations

import time
from datetime import date, timedelta

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError

from shoal.base.errors import UsageError
from shoal.pipeline.lake.columns import DATE
from shoal.pipeline.lake.land import LakeBusy
from shoal.pipeline.lake.tables import LakeTable, Refused

KEEP = timedelta(days=7)
KEEP_MIN = timedelta(hours=1)
"""A shorter time could delete files under a query that reads, or under a batch whose files are
written and not yet committed."""
TARGET_BYTES = 128 << 20


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a table."""

    table: str
    files_before: int
    files_after: int
    bytes_after: int
    deleted: int
    """Files on the disk."""
    seconds: float


def keep_up(
    uri: str,
    *,
    keep: timedelta = KEEP,
    forget_before: date | None = None,
    target_bytes: int = TARGET_BYTES,
) -> Upkeep:
    """Compact, forget, and delete files that left the table longer ago than `keep`."""
    if keep < KEEP_MIN:
        raise UsageError(
            f"files would be deleted after {keep}, under whoever reads or writes them: "
            f"keep them for {KEEP_MIN} at least"
        )
    begin_s = time.monotonic()
    table = LakeTable.open(uri).delta
    before = len(table.file_uris())
    try:
        if forget_before is not None:
            # Whole days: files leave the table, and none is written anew.
            table.delete(f"{DATE} < '{forget_before.isoformat()}'")
        table.optimize.compact(target_size=target_bytes)
    except Refused as error:
        raise LakeBusy(f"{uri} was compacted by somebody else at the same time: {error}") from error
    except DeltaError as error:
        raise UsageError(f"{uri} cannot be compacted: {error}") from error
    deleted = table.vacuum(
        retention_hours=int(keep / timedelta(hours=1)),
        dry_run=False,
        enforce_retention_duration=False,  # KEEP_MIN is ours
        full=True,  # with the files of failed tasks, which no commit names
    )
    after = LakeTable.open(uri).delta
    sizes = pa.table(after.get_add_actions()).column("size_bytes").to_pylist()
    return Upkeep(
        table=uri,
        files_before=before,
        files_after=len(sizes),
        bytes_after=sum(sizes),
        deleted=len(deleted),
        seconds=time.monotonic() - begin_s,
    )
