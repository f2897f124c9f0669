"""Rows of a log as rows of a DataFrame: decoded, and every signature checked.

A bad record is one that nobody but a broken or lying server can give: bytes that are no message,
that their publisher did not sign, or that are of another stream. Of those only the place in the
log is told, the bytes as they came, and what is wrong: nothing that a forger wrote has a column.
Content that is not the text that it says it is comes with an error too, and with all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from shoal.base.errors import DecryptionFailed, MalformedMessage, ShoalError
from shoal.base.gateway_messages import LogRow
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.identity.message_body import ENCRYPTED, JSON, TEXT, Body, decode_body
from shoal.identity.signatures import verify_signed
from shoal.identity.topics.cid import cid_of, parse_cid, show_cid
from shoal.identity.topics.descriptor_codec import decode_descriptor
from shoal.identity.topics.descriptors import EventDescriptor
from shoal.identity.topics.event_signatures import signatures_hold, signer_of
from shoal_spark.source.offsets import LogRange
from shoal_spark.source.stream_keys import Opener

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
"""The columns."""

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: what Spark can show."""

PUBLISHERS_MAX = 4096  # whose text is remembered

_TEXTS = (JSON, TEXT)


class BadRecord(ShoalError):
    """A record that cannot be believed, where the options say to fail for it."""


class Fields(NamedTuple):
    """What comes of a row's signed bytes."""

    timestamp_us: int | None
    sequence: int | None
    publisher: str | None
    chain: str | None
    key: str | None
    content: bytes
    value: str | None
    error: str | None


FieldsOf: TypeAlias = Callable[[StreamId, int, bytes], Fields]
"""Of a stream and a partition, what signed bytes are."""


def arrow_batch(
    stream: StreamId,
    part: LogRange,
    rows: Sequence[LogRow],
    *,
    fail_fast: bool,
    fields_of: FieldsOf,
) -> pa.RecordBatch:
    """One batch of one page of rows, of which there is one or more."""
    fields = [fields_of(stream, part.partition, row.signed) for row in rows]
    if fail_fast:
        for row, found in zip(rows, fields, strict=True):
            if found.error is not None:
                raise BadRecord(
                    f"row {row.seq} of log {part.log}, partition {part.partition}, of {stream}:"
                    f" {found.error}. With mode PERMISSIVE it is a row with `error`"
                )
    times, sequences, publishers, chains, keys, contents, values, errors = zip(*fields, strict=True)
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
        pa.array(keys, pa.string()),
        pa.array(contents, pa.binary()),
        pa.array(values, pa.string()),
        pa.array(errors, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def bad_record(signed: bytes, error: str) -> Fields:
    """Of what nobody can vouch for only the bytes are told, and what is wrong."""
    return Fields(None, None, None, None, None, signed, None, error)


def message_fields(stream: StreamId, partition: int, signed: bytes, opener: Opener) -> Fields:
    """A message of a stream. It has no key: that chose the partition, and did not travel. What
    cannot be decrypted comes as it was sealed."""
    body, error = _checked(stream, partition, signed)
    if body is None:
        return bad_record(signed, error or "")
    id, value = body.id, None
    content_type, content = body.content_type, body.content
    if content_type == ENCRYPTED:
        try:
            content_type, content = opener.open(id, content)
        except DecryptionFailed as problem:
            error = str(problem)
    if content_type in _TEXTS:
        try:
            value = content.decode()
        except UnicodeDecodeError as problem:
            error = f"its content should be text: {problem}"
    publisher = shown_publisher(id.publisher)
    time_us = id.timestamp_ms * 1000
    return Fields(time_us, id.sequence, publisher, id.chain, None, content, value, error)


@lru_cache(maxsize=PUBLISHERS_MAX)
def shown_publisher(publisher: bytes) -> str:
    """An address as people write it: most rows have one of a few."""
    return show_node_id(NodeId(publisher))


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


# Rows of a topic's log as rows of a DataFrame: events, and every signature checked.
#
# The columns are those of streams. `publisher` gave the event its place in the topic; `key` is the
# event's own CID, `chain` that of the event which it follows; there is no `sequence`. Whether this
# publisher may publish there is in the topic itself, and was checked by the node that has the log.


def event_fields(topic: StreamId, partition: int, block: bytes) -> Fields:
    """An event of a topic, which has one partition."""
    try:
        event = decode_descriptor(block)
    except MalformedMessage as error:
        return bad_record(block, f"no event: {error}")
    if not isinstance(event, EventDescriptor) or event.topic != parse_cid(topic):
        return bad_record(block, "no event of this topic")
    if event.publisher is None or not signatures_hold(event):
        return bad_record(block, "its publisher did not sign it")
    try:
        value = event.payload.decode()
    except UnicodeDecodeError:
        value = None  # events hold bytes, and say nothing of what they are
    return Fields(
        timestamp_us=event.metadata.created_ms * 1000,
        sequence=None,
        publisher=shown_publisher(signer_of(event.publisher)),
        chain=None if event.parent is None else show_cid(event.parent),
        key=show_cid(cid_of(block)),
        content=event.payload,
        value=value,
        error=None,
    )
