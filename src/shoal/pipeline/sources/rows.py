"""Rows of a log as rows of a DataFrame: decoded, and every signature checked.

A bad record is one that nobody but a broken or lying server can give: bytes that are no message,
that their publisher did not sign, or that are of another stream. Of those only the place in the
log is told, the bytes as they came, and what is wrong: nothing that a forger wrote has a column.
Content that is not the text that it says it is comes with an error too, and with all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from shoal.base.errors import MalformedMessage, ShoalError
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.base.log_pages import LogRow
from shoal.identity.signatures import verify_signed
from shoal.identity.stream_message import JSON, TEXT, Body, decode_body
from shoal.pipeline.sources.ranges import LogRange

_TIME = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("partition", pa.int32()),
        ("log", pa.string()),
        ("seq", pa.int64()),
        ("timestamp", _TIME),
        ("ingest_timestamp", _TIME),
        ("sequence", pa.int64()),
        ("publisher", pa.string()),
        ("chain", pa.string()),
        ("key", pa.string()),
        ("content", pa.binary()),
        ("value", pa.string()),
        ("error", pa.string()),
    ]
)
"""The columns. The key is null: it chooses the partition, and does not travel."""

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: what Spark can show."""

_TEXTS = (JSON, TEXT)


class BadRecord(ShoalError):
    """A record that cannot be believed, where the options say to fail for it."""


class _Fields(NamedTuple):
    """What comes of a row's signed bytes."""

    timestamp_us: int | None
    sequence: int | None
    publisher: str | None
    chain: str | None
    content: bytes
    value: str | None
    error: str | None


def arrow_batch(
    stream: StreamId, part: LogRange, rows: Sequence[LogRow], *, fail_fast: bool
) -> pa.RecordBatch:
    """One batch of one page of rows, of which there is one or more."""
    shown: dict[bytes, str] = {}
    fields = [_fields(stream, part.partition, row.signed, shown) for row in rows]
    if fail_fast:
        for row, found in zip(rows, fields, strict=True):
            if found.error is not None:
                raise BadRecord(
                    f"row {row.seq} of log {part.log}, partition {part.partition}, of {stream}:"
                    f" {found.error}. With mode PERMISSIVE it is a row with `error`"
                )
    times, sequences, publishers, chains, contents, values, errors = zip(*fields, strict=True)
    count = len(rows)
    columns = [
        pa.repeat(pa.scalar(stream, pa.string()), count),
        pa.repeat(pa.scalar(part.partition, pa.int32()), count),
        pa.repeat(pa.scalar(str(part.log), pa.string()), count),
        pa.array([row.seq for row in rows], pa.int64()),
        pa.array(times, _TIME),
        pa.array([row.ingest_ns // 1000 for row in rows], _TIME),
        pa.array(sequences, pa.int64()),
        pa.array(publishers, pa.string()),
        pa.array(chains, pa.string()),
        pa.nulls(count, pa.string()),
        pa.array(contents, pa.binary()),
        pa.array(values, pa.string()),
        pa.array(errors, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _fields(stream: StreamId, partition: int, signed: bytes, shown: dict[bytes, str]) -> _Fields:
    body, error = _checked(stream, partition, signed)
    if body is None:
        return _Fields(None, None, None, None, signed, None, error)
    id, value = body.id, None
    if body.content_type in _TEXTS:
        try:
            value = body.content.decode()
        except UnicodeDecodeError as problem:
            error = f"its content should be text: {problem}"
    publisher = shown.get(id.publisher)
    if publisher is None:
        publisher = shown[id.publisher] = show_node_id(NodeId(id.publisher))
    time_us = id.timestamp_ms * 1000
    return _Fields(time_us, id.sequence, publisher, id.chain, body.content, value, error)


def _checked(stream: StreamId, partition: int, signed: bytes) -> tuple[Body | None, str | None]:
    """What the publisher said, or what is wrong."""
    try:
        body = decode_body(signed)
    except MalformedMessage as error:
        return None, f"no message: {error}"
    id = body.id
    if id.stream != stream or id.partition != partition:
        return None, f"a message of another place: {id.stream}, partition {id.partition}"
    if not verify_signed(NodeId(id.publisher), signed):
        return None, "its publisher did not sign it"
    if id.timestamp_ms > TIMESTAMP_MS_MAX:
        return None, f"a time after the year 9999: {id.timestamp_ms} ms"
    return body, None
