"""Parquet files inside a table's folder, written where the rows are.

Files are nothing to readers until the driver commits them. Those of tasks that failed, or ran
twice, are never committed; upkeep.py removes them in the end.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from shoal.base.times import show_time
from shoal.pipeline.lake.columns import DATE
from shoal.pipeline.reading import resolve_folder

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
