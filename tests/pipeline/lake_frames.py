"""Frames with the columns of Shoal's source, for Spark and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa

STREAM = "0x00000000000000000000000000000000000000aa/city/véhicules [1] = %2F"
FIRST = datetime(2026, 11, 16, 23, 59, 58, 123456, tzinfo=UTC)
SCHEMA_DDL = (
    "stream string, partition int, log string, seq long, timestamp timestamp, "
    "ingest_timestamp timestamp, sequence long, publisher string, chain string, key string, "
    "content binary, value string, error string"
)
ARROW = pa.schema(
    [
        ("stream", pa.string()), ("partition", pa.int32()), ("log", pa.string()),
        ("seq", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
        ("ingest_timestamp", pa.timestamp("us", "UTC")), ("sequence", pa.int64()),
        ("publisher", pa.string()), ("chain", pa.string()), ("key", pa.string()),
        ("content", pa.binary()), ("value", pa.string()), ("error", pa.string()),
    ]
)  # fmt: skip


class Row(NamedTuple):
    """One row of a fake frame."""

    report: str


def rows_of(contents: Sequence[Any], first_seq: int = 1) -> list[dict[str, Any]]:
    """One record a second; bytes stay as they are, an exception is a record with an error."""
    return [
        {
            "stream": STREAM,
            "partition": 0,
            "log": "6f1c",
            "seq": first_seq + number,
            "timestamp": FIRST + timedelta(seconds=number),
            "ingest_timestamp": FIRST + timedelta(seconds=number + 1),
            "sequence": 0,
            "publisher": "0xbb",
            "chain": "c",
            "key": None,
            "content": b"\x00?" if isinstance(content, Exception) else as_bytes(content),
            "value": None,
            "error": str(content) if isinstance(content, Exception) else None,
        }
        for number, content in enumerate(contents)
    ]


def as_bytes(content: Any) -> bytes:
    return content if isinstance(content, bytes) else msgspec.json.encode(content)


class ArrowFrame:
    """As much of a frame of Spark as landing needs, in this process: its tasks run one after the
    other when the rows of mapInArrow are collected."""

    def __init__(self, contents: Sequence[Any], first_seq: int = 1, tasks: int = 2) -> None:
        table = pa.Table.from_pylist(rows_of(contents, first_seq), ARROW)
        per_task = -(-max(1, table.num_rows) // tasks)
        self._tasks = [table.slice(n * per_task, per_task) for n in range(tasks)]
        self._map: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None

    @property
    def columns(self) -> list[str]:
        return list(self._tasks[0].column_names)

    def select(self, *names: str) -> Self:
        self._tasks = [task.select(names) for task in self._tasks]
        return self

    def mapInArrow(self, function: Any, schema: str) -> ArrowFrame:  # noqa: N802
        assert schema == "report string"
        mapped = ArrowFrame([])
        mapped._tasks, mapped._map = self._tasks, function
        return mapped

    def collect(self) -> list[Row]:
        assert self._map is not None
        return [
            Row(report)
            for task in self._tasks
            for batch in self._map(iter(task.to_batches(max_chunksize=3)))
            for report in batch.column("report").to_pylist()
        ]
