"""Streams into Delta tables, each record exactly once.

How rows travel: tasks write Parquet files into the folder of the table through mapInArrow, and
report their names; the driver commits the names. `write_deltalake` would be less code, but takes
rows from one process, which then has to be the driver: every row would pass through it. Files that
are in no commit are nothing, so tasks may fail or run twice as they please.

How a batch gets in:

1. The table says whether it has the batch already. After a driver was killed between the commit
   here and Spark's own, it has.
2. Tasks write what fits the table as it is. If no record has a new field, that was all there is
   to write. Else the table grows by those fields first (shapes.py), and the batch is written anew;
   that is rare, and so cheaper than to look at every batch twice.
3. One commit makes the files rows and notes the batch. Of a driver and its zombie the second is
   refused, looks again, and finds the batch there.
4. Bad records go to a second table in the same way, after the first one. Two tables have no
   common commit; but since types never change, a batch that is replayed with only the first of
   them in falls apart just as it did before. For the same reason a batch of bad records alone is
   committed to the first table too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.base.errors import ShoalError, UsageError
from shoal.pipeline.lake.columns import LANDED, NEEDED, QUARANTINED
from shoal.pipeline.lake.files import REPORT_DDL, Plan, TaskReport, writer_of
from shoal.pipeline.lake.parquet import WrittenFile
from shoal.pipeline.lake.shapes import Seen, grow, merge
from shoal.pipeline.lake.tables import LakeTable, Refused, remove_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shoal.pipeline.patient import PatientQuery

QUARANTINE = ".quarantine"
TRIES_MAX = 20
"""Others may commit to a table as well; but nobody has to give way this often."""


class LakeBusy(ShoalError):
    """Others kept committing to the table; the query can be started again."""


class Lake(msgspec.Struct, frozen=True):
    """Where records go."""

    table: str
    """A folder or a URI that executors see too."""

    shape: Any = None
    """Types of fields that are known beforehand (see ddl.py). All others get the type of the first
    batch that has them."""

    @property
    def quarantine(self) -> str:
        """The table of bad records, beside the first."""
        return self.table.rstrip("/") + QUARANTINE


class Landed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch."""

    batch: int
    rows: int = 0
    quarantined: int = 0
    files: int = 0
    seconds: float = 0.0
    replayed: bool = False
    """It was there already."""


def land(frame: DataFrame, lake: Lake, query: str, batch: int) -> Landed:
    """Land a frame with the source's columns, once for each query and batch: whatever these name,
    batches of a query are numbered upwards."""
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise UsageError(
            f"the frame has no column {', '.join(missing)}: land what format('shoal') reads"
        )
    frame = frame.select(*NEEDED)
    begin_s = time.monotonic()
    final = False
    for _ in range(TRIES_MAX):
        try:
            table, quarantine = open_tables(lake)
            landed, complete = table.has(query, batch), quarantine.has(query, batch)
            if landed and complete:
                return Landed(batch=batch, replayed=True)
            plan = Plan(
                table=lake.table,
                quarantine=lake.quarantine,
                shape=table.shape,
                final=final or landed,
                only_quarantine=landed,
            )
            good, bad, seen = _write(frame, plan)
            if seen:
                remove_files(lake.table, good)
                remove_files(lake.quarantine, bad)
                grown = grow(table.shape, seen)
                final = grown == table.shape
                if not final:
                    table.grow(grown)
                continue
            if not landed:
                table.commit(good, query, batch)
            if bad and not complete:
                quarantine.commit(bad, query, batch)
        except Refused:
            # Maybe by a zombie, with this very batch; or the table has grown. Files stay where they
            # are: a commit that was answered with an error may still have been one.
            final = False
            continue
        return Landed(
            batch=batch,
            rows=sum(file.rows for file in good),
            quarantined=sum(file.rows for file in bad),
            files=len(good) + len(bad),
            seconds=time.monotonic() - begin_s,
            replayed=landed,
        )
    raise LakeBusy(
        f"batch {batch} did not get into {lake.table} in {TRIES_MAX} attempts, since others commit "
        "to it: start the query again when they are done"
    )


def start_landing(
    frame: DataFrame,
    lake: Lake,
    checkpoint: str,
    *,
    available_now: bool = False,
    interval_s: float = 10.0,
    tell: Callable[[Landed], None] = lambda landed: None,
) -> PatientQuery:
    """Land a streaming frame until the query is stopped, or has landed what there is now."""
    from shoal.pipeline.patient import PatientQuery

    open_tables(lake)  # what is wrong with them is told here, and not by a query that fails

    def each(batch: DataFrame, number: int) -> None:
        # The query's id is in its checkpoint, and the same after every restart.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None, "Spark calls this from a query only"
        tell(land(batch, lake, query, number))

    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
    if available_now:
        return PatientQuery(writer.trigger(availableNow=True))
    return PatientQuery(writer.trigger(processingTime=f"{interval_s} seconds"))


def open_tables(lake: Lake) -> tuple[LakeTable, LakeTable]:
    """Both tables as they are now, with the fields that were given."""
    table = LakeTable.open_or_create(lake.table, LANDED)
    if lake.shape is not None:
        merged = merge(table.shape, lake.shape, lake.table)
        if merged != table.shape:
            table.grow(merged)
            table = LakeTable.open(lake.table)
    return table, LakeTable.open_or_create(lake.quarantine, QUARANTINED)


def _write(
    frame: DataFrame, plan: Plan
) -> tuple[Sequence[WrittenFile], Sequence[WrittenFile], Seen]:
    rows = frame.mapInArrow(writer_of(plan), REPORT_DDL).collect()
    reports = [msgspec.json.decode(row.report, type=TaskReport) for row in rows]
    seen = Seen()
    for report in reports:
        seen.add(report.seen)
    good = [file for report in reports for file in report.landed]
    return good, [file for report in reports for file in report.quarantined], seen
