"""Streams into Delta tables, each record exactly once.

How rows travel: tasks write Parquet files into the folder of the table through mapInArrow, and
report their names; the driver commits the names. `write_deltalake` would be less code, but takes
rows from one process, which then has to be the driver: every row would pass through it. Files that
are in no commit are nothing, so tasks may fail or run twice as they please.

How a batch gets in:

1. The table says whether it has the batch already. After a driver was killed between the commit
   here and Spark's own, it has. Then it must be the same batch: Spark's own replay of what it had
   planned, or the same rows. Anything else, and any older number, comes from a checkpoint that was
   restored from an old copy: it is an error, since to pass over it would lose its rows.
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

from shoal.base.errors import UsageError
from shoal_spark.batch_fingerprint import planned_batch
from shoal_spark.lake.delta_table import BatchMark, LakeBusy, LakeTable, Refused, remove_files
from shoal_spark.lake.parquet_writer import (
    REPORT_DDL,
    Plan,
    RowsDigest,
    TaskReport,
    WrittenFile,
    writer_of,
)
from shoal_spark.lake.shapes import LANDED, NEEDED, QUARANTINED, Seen, grow, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shoal_spark.restarting_query import PatientQuery

QUARANTINE = ".quarantine"
PLAN_CHARS = 15  # of a digest in hex: Delta's versions have 63 bits
TRIES_MAX = 20
"""Others may commit to a table as well; but nobody has to give way this often."""


class NotAReplay(UsageError):
    """The table has this batch or a later one, and this is not the same batch."""


class MissingBatches(UsageError):
    """The table lacks batches that the query has landed."""


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
    batches of a query are numbered upwards. The last batch may come again with the same rows, and
    is passed over; NotAReplay for other rows under its number, and for an older number."""
    return _land(frame, lake, query, batch)


def _land(
    frame: DataFrame, lake: Lake, query: str, batch: int, plan: int = 0, *, follows: bool = False
) -> Landed:
    """As `land`; of a batch that has to follow the last one, whose plan is known perhaps."""
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
            last = table.last_batch(query)
            _check_number(lake, query, batch, last, follows=follows)
            landed = last == batch
            complete = landed and quarantine.last_batch(query) == batch
            before = table.mark(query) if landed else BatchMark()
            if complete and BatchMark(plan).is_replay_of(before):
                return Landed(batch=batch, replayed=True)
            work = Plan(
                table=lake.table,
                quarantine=lake.quarantine,
                shape=table.shape,
                final=final or landed,
                only_quarantine=landed,
            )
            good, bad, seen, digest = _write(frame, work)
            mark = _mark_of(plan, digest)
            if landed and not mark.is_replay_of(before):
                remove_files(lake.quarantine, bad)
                raise NotAReplay(
                    f"batch {batch} of query {query} is in {lake.table} with other rows: {_REMEDY}"
                )
            if complete:
                remove_files(lake.quarantine, bad)
                return Landed(batch=batch, replayed=True)
            if seen:
                remove_files(lake.table, good)
                remove_files(lake.quarantine, bad)
                grown = grow(table.shape, seen)
                final = grown == table.shape
                if not final:
                    table.grow(grown)
                continue
            if not landed:
                table.commit(good, query, batch, mark)
            if bad:
                quarantine.commit(bad, query, batch, mark)
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
    from shoal_spark.restarting_query import PatientQuery

    open_tables(lake)  # what is wrong with them is told here, and not by a query that fails

    def each(batch: DataFrame, number: int) -> None:
        # The query's id is in its checkpoint, and the same after every restart.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None, "Spark calls this from a query only"
        planned = planned_batch(checkpoint, query, number).plan
        plan = int(planned[:PLAN_CHARS] or "0", 16)
        tell(_land(batch, lake, query, number, plan, follows=True))

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


_REMEDY = (
    "the checkpoint was restored from an old copy or written anew, or the number was given twice."
    " Nothing of it was landed. Restore the newest checkpoint; start a query with a new checkpoint"
    " where the last batch ends (`select partition, log, max(seq)` of the table tells where); or"
    " give a batch of your own a new number"
)


def _check_number(lake: Lake, query: str, batch: int, last: int | None, *, follows: bool) -> None:
    """NotAReplay for an older batch; MissingBatches if there are some before this one."""
    if last is not None and batch < last:
        raise NotAReplay(
            f"batch {batch} of query {query} is older than the last one in {lake.table}, which is"
            f" {last}, and Spark replays only its last batch: {_REMEDY}"
        )
    if follows and batch > (0 if last is None else last + 1):
        has = "no batch of it" if last is None else f"its batches up to {last}"
        raise MissingBatches(
            f"batch {batch} of query {query} comes next, and {lake.table} has {has}: the table was"
            " made anew or restored from an old copy, or the query landed elsewhere before. Give"
            " the table a query with a new checkpoint, into which all is landed again that storage"
            " nodes still have; or land in the table of before"
        )


def _mark_of(plan: int, digest: RowsDigest) -> BatchMark:
    """63 bits of each, and never 0, which says that it is not known."""
    contents = 0 if digest.errors else digest.contents >> 1 | 1
    return BatchMark(plan, digest.places >> 1 | 1, contents)


def _write(
    frame: DataFrame, plan: Plan
) -> tuple[Sequence[WrittenFile], Sequence[WrittenFile], Seen, RowsDigest]:
    rows = frame.mapInArrow(writer_of(plan), REPORT_DDL).collect()
    reports = [msgspec.json.decode(row.report, type=TaskReport) for row in rows]
    seen, digest = Seen(), RowsDigest()
    for report in reports:
        seen.add(report.seen)
        digest.add(report.digest)
    good = [file for report in reports for file in report.landed]
    return good, [file for report in reports for file in report.quarantined], seen, digest
