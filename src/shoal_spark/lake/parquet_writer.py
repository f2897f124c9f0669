"""What a task does: fit each record, write it to one of two tables, say what was written."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from shoal.base.units import show_time
from shoal_spark.folders import resolve_folder
from shoal_spark.lake.fitting import Fitter, Misfit
from shoal_spark.lake.shapes import CONTENT, DATA, DATE, ERROR, ORIGIN, QUARANTINED, REASON, Seen

EPOCH = date(1970, 1, 1)
LOG_NAMES = ("stream", "partition", "log")
DAY_US = 24 * 3600 * 1_000_000

REPORT = pa.schema([("report", pa.string())])
REPORT_DDL = "report string"


class Plan(msgspec.Struct, frozen=True):
    """What a task has to know. It travels pickled, and so do Arrow's types."""

    table: str
    quarantine: str
    shape: Any
    """Of the content: an Arrow struct, without fields while the table has none."""
    final: bool
    """Whether the table takes on no more fields for this batch."""
    only_quarantine: bool
    """The batch has landed already, but for its bad records."""


class RowsDigest(msgspec.Struct):
    """Digests of rows, which do not depend on their order: sums modulo 2**64."""

    places: int = 0
    """Of their places in logs."""
    contents: int = 0
    """Of places and contents."""
    errors: int = 0
    """Rows that have an error."""

    def add(self, other: RowsDigest) -> None:
        """More rows."""
        self.places = (self.places + other.places) % 2**64
        self.contents = (self.contents + other.contents) % 2**64
        self.errors += other.errors


class TaskReport(msgspec.Struct, frozen=True):
    """What a task did."""

    landed: list[WrittenFile]
    quarantined: list[WrittenFile]
    seen: Seen
    """Fields that the table does not have. If there are any, no file was kept."""
    digest: RowsDigest


def writer_of(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for mapInArrow that gives one TaskReport, as JSON."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _Task(plan)
        try:
            for batch in batches:
                task.take(batch)
            said = msgspec.json.encode(task.finish()).decode()
        except BaseException:
            task.abandon()
            raise
        yield pa.RecordBatch.from_pydict({"report": [said]}, REPORT)

    return write


class _Task:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._fitter = Fitter(plan.shape, final=plan.final)
        self._landed = TableFiles(plan.table)
        self._quarantined = TableFiles(plan.quarantine)
        self._digest = RowsDigest()
        self._log_numbers: dict[tuple[Any, ...], int] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        fits: list[int] = []
        fitted: list[dict[str, Any]] = []
        misfits: list[int] = []
        reasons: list[str] = []
        contents, errors = (table.column(name).to_pylist() for name in (CONTENT, ERROR))
        self._digest.add(self._digest_of(table, contents, errors))
        for number, (content, error) in enumerate(zip(contents, errors, strict=True)):
            try:
                if error is not None:
                    raise Misfit(error)
                value = self._fitter.fit(content)
            except Misfit as misfit:
                misfits.append(number)
                reasons.append(str(misfit))
                continue
            if value is not None:
                fits.append(number)
                fitted.append(value)
        if self._fitter.seen:
            # The table grows first, then the batch is written anew: from here on only count.
            self.abandon()
            return
        origin = table.select(ORIGIN.names).cast(ORIGIN)
        if fits and not self._plan.only_quarantine:
            rows = _rows(origin, fits)
            if self._plan.shape.num_fields:
                rows = rows.append_column(DATA, pa.array(fitted, self._plan.shape))
            _split(rows, self._landed)
        if misfits:
            bytes_of = pa.array([contents[number] for number in misfits], pa.binary())
            rows = _rows(origin, misfits).append_column(QUARANTINED.field(CONTENT), bytes_of)
            _split(rows.append_column(REASON, pa.array(reasons, pa.string())), self._quarantined)

    def finish(self) -> TaskReport:
        landed, quarantined = self._landed.finish(), self._quarantined.finish()
        return TaskReport(landed, quarantined, self._fitter.seen, self._digest)

    def _digest_of(
        self, table: pa.Table, contents: Sequence[Any], errors: Sequence[Any]
    ) -> RowsDigest:
        names = zip(*(table.column(name).to_pylist() for name in LOG_NAMES), strict=True)
        logs = np.array([self._log_number(name) for name in names], np.uint64)
        seqs = table.column("seq").fill_null(-1).cast(pa.int64()).to_numpy().view(np.uint64)
        sums = np.array([zlib.crc32(content or b"") for content in contents], np.uint64)
        places = _mixed(logs + _mixed(seqs))
        wholes = _mixed(places + _mixed(sums))
        bad = sum(error is not None for error in errors)
        return RowsDigest(int(places.sum(dtype=np.uint64)), int(wholes.sum(dtype=np.uint64)), bad)

    def _log_number(self, name: tuple[Any, ...]) -> int:
        number = self._log_numbers.get(name)
        if number is None:
            raw = hashlib.sha256(repr(name).encode()).digest()
            number = self._log_numbers[name] = int.from_bytes(raw[:8])
        return number

    def abandon(self) -> None:
        self._landed.abandon()
        self._quarantined.abandon()


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: every bit of a number reaches all bits of the result."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _rows(table: pa.Table, numbers: Sequence[int]) -> pa.Table:
    return table if len(numbers) == table.num_rows else table.take(pa.array(numbers, pa.int64()))


def _split(rows: pa.Table, files: TableFiles) -> None:
    """To each file what is of its stream and day."""
    groups: dict[tuple[str | None, int | None], list[int]] = {}
    times = zip(
        rows.column("stream").to_pylist(),
        rows.column("timestamp").cast(pa.int64()).to_pylist(),
        rows.column("ingest_timestamp").cast(pa.int64()).to_pylist(),
        strict=True,
    )
    for number, (stream, published_us, ingested_us) in enumerate(times):
        time_us = ingested_us if published_us is None else published_us
        day = None if time_us is None else time_us // DAY_US
        groups.setdefault((stream, day), []).append(number)
    for (stream, day), numbers in groups.items():
        key = stream, None if day is None else EPOCH + timedelta(days=day)
        files.add(key, _rows(rows, numbers))


# Parquet files inside a table's folder, written where the rows are.
#
# Files are nothing to readers until the driver commits them. Those of tasks that failed, or ran
# twice, are never committed; upkeep.py removes them in the end.


GROUP_ROWS, GROUP_BYTES = 100_000, 64 << 20
"""A task holds no more than this of a file before it writes: whichever comes first."""
OPEN_MAX = 16
"""Files that a task writes at a time. Above it the one that was begun first is finished: a
publisher may stamp every message with another day."""
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
MS = timedelta(milliseconds=1)
STATS_TIMES, STATS_OTHERS = ("timestamp", "ingest_timestamp"), ("stream", "seq")

FileKey = tuple[str | None, date | None]
"""The stream and the day of all rows of a file."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that the driver may commit. The path is relative to its table."""

    path: str
    bytes: int
    rows: int
    date: str | None
    stats: str
    """As Delta's log has them."""


class TableFiles:
    """The files that one task adds to one table."""

    def __init__(self, table: str) -> None:
        self._system, self._folder, _ = resolve_folder(table)
        self._open: dict[FileKey, _File] = {}
        self._finished: list[WrittenFile] = []

    def add(self, key: FileKey, rows: pa.Table) -> None:
        """Write rows, of one stream and day; the day itself is no column of them."""
        file = self._open.get(key)
        if file is None:
            if len(self._open) == OPEN_MAX:
                self._finish(next(iter(self._open)))
            file = self._open[key] = _File(self._system, self._folder, key[1], rows.schema)
        file.add(rows)

    def finish(self) -> list[WrittenFile]:
        """Everything that was written."""
        for key in list(self._open):
            self._finish(key)
        return self._finished

    def abandon(self) -> None:
        """Nothing of it counts."""
        for path in [file.path for file in self._finished]:
            self._system.delete_file(f"{self._folder}/{path}")
        for file in self._open.values():
            file.close()
            self._system.delete_file(f"{self._folder}/{file.path}")
        self._open, self._finished = {}, []

    def _finish(self, key: FileKey) -> None:
        file = self._open.pop(key)
        file.close()
        size = self._system.get_file_info(f"{self._folder}/{file.path}").size
        day = None if key[1] is None else key[1].isoformat()
        self._finished.append(WrittenFile(file.path, size, file.rows, day, file.stats()))


class _File:
    """One that is being written."""

    def __init__(
        self, system: fs.FileSystem, folder: str, day: date | None, schema: pa.Schema
    ) -> None:
        # Spark finds the day in the name of the folder: see read.py.
        place = f"{DATE}={NO_DATE if day is None else day.isoformat()}"
        self.path = f"{place}/part-{uuid4().hex}.zstd.parquet"
        self.rows = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        if isinstance(system, fs.LocalFileSystem):
            system.create_dir(f"{folder}/{place}", recursive=True)
        self._sink = system.open_output_stream(f"{folder}/{self.path}")
        # Checksums: the session verifies them.
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", write_page_checksum=True
        )

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        self.rows += rows.num_rows
        for name in (*STATS_OTHERS, *STATS_TIMES):
            bounds = pc.min_max(rows.column(name)).as_py()
            if bounds["min"] is not None:
                self._least[name] = min(bounds["min"], self._least.get(name, bounds["min"]))
                self._greatest[name] = max(bounds["max"], self._greatest.get(name, bounds["max"]))
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write()

    def close(self) -> None:
        self._write()
        self._writer.close()
        self._sink.close()

    def stats(self) -> str:
        """With times as Delta has them: whole milliseconds, so the greatest is rounded up."""
        least, greatest = dict(self._least), dict(self._greatest)
        for name in STATS_TIMES:
            if name in least:
                least[name], greatest[name] = show_time(least[name]), show_time(greatest[name] + MS)
        said = {"numRecords": self.rows, "minValues": least, "maxValues": greatest}
        return msgspec.json.encode(said).decode()

    def _write(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
