"""What a task does: fit each record, write it to one of two tables, say what was written."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.pipeline.lake.columns import CONTENT, DATA, ERROR, ORIGIN, QUARANTINED, REASON
from shoal.pipeline.lake.fitting import Fitter, Misfit
from shoal.pipeline.lake.parquet import TableFiles, WrittenFile
from shoal.pipeline.lake.shapes import Seen

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
