"""The writers of `format("shoal")`.

A task stages its rows in the outbox of the publishing node, in chunks, and its commit message says
under which name. The driver seals the batch. What makes this exactly once is in the outbox
(`storage/outbox.py`); here it is only named: a query by Spark's id of it, which a checkpoint keeps;
a run of it by Spark's id of the run, which is new with every start; an attempt by Spark's id of it.
A batch write is a query of its own, with one batch and one run.

A seal says what the batch is made of, so that the outbox can tell Spark's replay of its last batch
from another batch under the same number: see `pipeline/replays.py`.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, IntegerType, LongType, ShortType, StringType, StructType

from shoal.base.errors import ShoalError, UsageError
from shoal.base.gateway_messages import (
    CHUNK_BYTES,
    CHUNK_ROWS_MAX,
    DiscardRequest,
    EpochRequest,
    Fingerprint,
    Row,
    SealedAttempt,
    SealRequest,
    StageRequest,
)
from shoal.base.ids import StreamId
from shoal.identity.message_body import BINARY, CONTENT_BYTES_MAX, TEXT
from shoal.identity.secret_sources import read_secret, split_secret_source
from shoal_spark.batch_fingerprint import RowsDigest, planned_batch, shown_digest
from shoal_spark.gateway_connection import gateway_address, patience, stream_option

if TYPE_CHECKING:
    from pyarrow import RecordBatch

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"  # a streaming query runs its jobs under the id of its run
ONE_EPOCH = 1  # a batch write has one run

log = logging.getLogger("shoal.pipeline")


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
    """What one task has handed in."""

    query: str
    epoch: int
    batch: int
    partition: int
    attempt: int
    chunks: int
    rows: int
    digest: int
    """Of the rows, which the digests of all tasks are added to."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of `df.write`."""
    return BatchWriter(_checked(options, schema, overwrite))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream`."""
    return StreamWriter(_checked(options, schema, overwrite))


class BatchWriter(DataSourceArrowWriter):
    """One DataFrame, all or nothing."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._query = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[RecordBatch]) -> StagedTask:
        return stage_task(self._options, self._query, self._query, 0, iterator, once=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        seal_batch(self._options, messages, 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Also what tasks staged that did not come to their end: no message tells of them.
        discard_batch(self._options, self._query, ONE_EPOCH, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch after the other."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> StagedTask:
        query, run, batch = (_property(name) for name in (QUERY_ID, RUN_ID, BATCH_ID))
        return stage_task(self._options, query, run, int(batch), iterator, once=False)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        seal_batch(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # Spark names the query to tasks only. If none came to its end, the run that follows this
        # one gives the room back.
        for task in messages:
            if isinstance(task, StagedTask):
                discard_batch(self._options, task.query, task.epoch, task.batch)
                break


def stage_task(
    options: SinkOptions,
    query: str,
    run: str,
    batch: int,
    iterator: Iterable[RecordBatch],
    *,
    once: bool,
) -> StagedTask:
    """Hand in the rows of this task; they count once the driver says so."""
    context = TaskContext.get()
    assert context is not None  # Spark calls this in a task
    partition, attempt = context.partitionId(), context.taskAttemptId()
    client, digest, is_replay = OutboxClient(options), RowsDigest(), False
    try:
        epoch = client.take_epoch(EpochRequest(query, run, options.stream, once))
        chunks = 0
        try:
            for chunk in chunks_of(iterator):
                digest.add([_bytes_of(row) for row in chunk])
                if is_replay:
                    continue  # what was sealed counts: its rows are compared with these
                request = StageRequest(
                    options.stream, query, epoch, batch, partition, attempt, chunks, chunk
                )
                is_replay = not client.stage(request)
                chunks += not is_replay
        except BaseException:
            with suppress(ShoalError):  # why the task failed is what its owner must hear
                client.discard(DiscardRequest(query, epoch, batch, partition, attempt))
            raise
    finally:
        client.close()
    return StagedTask(query, epoch, batch, partition, attempt, chunks, digest.rows, digest.total)


def seal_batch(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch: int,
) -> None:
    """Decide that what these tasks handed in is the batch."""
    tasks = [message for message in messages if isinstance(message, StagedTask)]
    if not tasks:
        return  # no task, no row
    epochs = {task.epoch for task in tasks}
    if len(epochs) > 1:
        raise UsageError(
            f"tasks of batch {batch} have epochs {sorted(epochs)}: another driver took over between"
            " them, stop this one"
        )
    attempts = [SealedAttempt(task.partition, task.attempt, task.chunks) for task in tasks]
    digest = shown_digest(sum(task.digest for task in tasks))
    rows = sum(task.rows for task in tasks)
    planned = planned_batch(options.checkpoint, tasks[0].query, batch)
    fingerprint = Fingerprint(rows, digest, planned.plan, planned.source)
    client = OutboxClient(options)
    try:
        answer = client.seal(
            SealRequest(tasks[0].query, tasks[0].epoch, batch, attempts, fingerprint)
        )
    finally:
        client.close()
    if answer.get("changed"):
        log.warning(
            "batch %d was published before, and has other rows now that Spark runs it again: those"
            " of the first time stand. The query was changed, or its rows are other ones each time",
            batch,
        )


def discard_batch(options: SinkOptions, query: str, epoch: int, batch: int) -> None:
    """What the tasks of a batch handed in is not needed. If the node cannot be told, it is swept up
    later: why the job failed is what its owner must hear."""
    client = OutboxClient(options)
    try:
        with suppress(ShoalError):
            client.discard(DiscardRequest(query, epoch, batch))
    finally:
        client.close()


def _bytes_of(row: Row) -> bytes:
    """A row in bytes that no other row has."""
    content_type, partition, key, content = row
    place = -1 if partition is None else partition
    if key is None:
        return b"%d %d - %b" % (content_type, place, content)
    name = key.encode()
    return b"%d %d %d %b%b" % (content_type, place, len(name), name, content)


def chunks_of(iterator: Iterable[RecordBatch]) -> Iterator[list[Row]]:
    """The rows of a task, in chunks that fit one request."""
    chunk: list[Row] = []
    size_bytes = 0
    for row in rows_of(iterator):
        chunk.append(row)
        size_bytes += len(row[3]) + len(row[2] or "")
        if len(chunk) == CHUNK_ROWS_MAX or size_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk


def rows_of(iterator: Iterable[RecordBatch]) -> Iterator[Row]:
    """Rows as an outbox takes them; UsageError for one that cannot be published."""
    for batch in iterator:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        for value, key, partition in zip(
            columns["value"],
            columns.get("key", nothing),
            columns.get("partition", nothing),
            strict=True,
        ):
            if value is None:
                raise UsageError("a row has no value: filter those out, or give them one")
            is_text = isinstance(value, str)
            content: bytes = value.encode() if is_text else value
            if len(content) > CONTENT_BYTES_MAX:
                raise UsageError(
                    f"a value has {len(content)} bytes, a message takes {CONTENT_BYTES_MAX}:"
                    " split it"
                )
            yield TEXT if is_text else BINARY, partition, key, content


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise UsageError(
            "a stream cannot be overwritten: write with mode('append'), and a streaming query with"
            " outputMode('append') or 'update'"
        )
    check_columns(schema)
    return parse_options(options)


def _property(name: str) -> str:
    context = TaskContext.get()
    value: str | None = None if context is None else context.getLocalProperty(name)
    if not value:
        raise UsageError(f"Spark does not say {name}: is this a streaming query of Spark 4.3?")
    return value


# What `.option(...)` says to the sink, and whether the columns fit.


KNOWN = {
    "outbox": "the HTTP address of the publishing node's gateway, as in http://127.0.0.1:7780",
    "stream": "the id of a stream",
    "token": "where the outbox's token is, env:NAME or file:PATH, on driver and executors",
    "patienceSeconds": "how long an outbox may be full, 600 unless told otherwise",
}
PATIENCE_S = 600.0
CHECKPOINT = "checkpointlocation"
IGNORED = ("path", "queryname")
"""Spark's own, which it hands on to the sink, as it does the checkpoint's place."""

_BY_LOWER = {name.lower(): name for name in KNOWN}
_WHOLE = (IntegerType, LongType, ShortType)
COLUMNS = {
    "value": ((StringType, BinaryType), "a string or binary"),
    "key": ((StringType,), "a string"),
    "partition": (_WHOLE, "an int"),
}


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of one write."""

    outbox: str
    stream: StreamId
    token: str
    """Where it is: what it is must not travel with a plan."""
    patience_s: float = PATIENCE_S
    checkpoint: str | None = None
    """Where Spark keeps how far the query is, if the options of the write say so."""

    def read_token(self) -> str:
        """The token itself, read where it is needed."""
        return read_secret("token", self.token, Path(), os.environ)


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write; UsageError names what is wrong. Names are read in any case."""
    options: dict[str, str] = {}
    checkpoint: str | None = None
    for name, value in given.items():
        if name.lower() in IGNORED:
            continue
        if name.lower() == CHECKPOINT:
            checkpoint = value
            continue
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise UsageError(f"option {name!r}: there is none; known are {', '.join(KNOWN)}")
        options[known] = value.strip()
    for name in ("outbox", "stream", "token"):
        if not options.get(name):
            raise UsageError(f"option {name!r} is missing: give {KNOWN[name]}")
    split_secret_source("token", options["token"])
    return SinkOptions(
        gateway_address("outbox", options["outbox"]),
        stream_option(options["stream"]),
        options["token"],
        patience(options.get("patienceSeconds"), PATIENCE_S),
        checkpoint,
    )


def check_columns(schema: StructType) -> None:
    """UsageError if a DataFrame cannot be published as it is."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise UsageError(f"column {field.name!r}: a sink has {known}: select those")
        types, wanted = COLUMNS[field.name]
        if not isinstance(field.dataType, types):
            raise UsageError(
                f"column {field.name!r} is {field.dataType.simpleString()}, and has to be"
                f" {wanted}: cast it"
            )
    if "value" not in schema.fieldNames():
        raise UsageError("there is no column 'value': select what is to be published as value")


# A node's outbox over HTTP, from a task or a driver.
#
# Every request may be sent again: a chunk that comes twice counts once, and a seal that comes twice
# is a replay. So a node that restarts, and an answer that is lost, are waited out here.


TIMEOUT_S = 60.0  # a seal of thousands of chunks is one transaction of a slow disk
AWAY_S = 60.0  # a node that restarts is back by then
GIVING_UP_S = 5.0  # what a job that failed waits for a node that does not answer
PAUSE_S = 0.5
FULL = 429
_AGAIN = (502, 503, 504)


class OutboxUnavailable(ShoalError):
    """A node's outbox cannot be reached, or has been full for too long."""


class OutboxRefused(UsageError):
    """A node's outbox says no, and why."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class OutboxClient:
    """One connection, kept open. Not for two threads at once."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._token = options.read_token()
        self._connection: HTTPConnection | None = None
        self._clock = clock
        self._sleep = sleep

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def take_epoch(self, request: EpochRequest) -> int:
        """The epoch of a run."""
        epoch: int = self._ask("POST", "/outbox/epoch", msgspec.json.encode(request))["epoch"]
        return epoch

    def stage(self, request: StageRequest) -> bool:
        """Hand in a chunk; False if its batch was sealed before: the rest is not needed either."""
        answer = self._ask("POST", "/outbox/stage", msgspec.msgpack.encode(request))
        return not answer["sealed"]

    def seal(self, request: SealRequest) -> dict[str, Any]:
        """Decide what a batch is."""
        return self._ask("POST", "/outbox/seal", msgspec.json.encode(request))

    def discard(self, request: DiscardRequest) -> None:
        """Give a batch up, or an attempt."""
        self._ask("POST", "/outbox/discard", msgspec.json.encode(request), GIVING_UP_S)

    def state(self) -> dict[str, Any]:
        """What the outbox holds."""
        return self._ask("GET", "/outbox", None)

    def _ask(
        self, method: str, path: str, body: bytes | None, away_s_max: float = AWAY_S
    ) -> dict[str, Any]:
        begun_s = away_s = self._clock()
        while True:
            try:
                status, raw = self._exchange(method, path, body)
            except (OSError, HTTPException) as error:
                self.close()
                status, raw, text = 0, b"", str(error) or type(error).__name__
            else:
                text = _text(raw)
            if status == 200:
                answer: dict[str, Any] = json.loads(raw)
                return answer
            now_s = self._clock()
            if status == FULL:
                away_s = now_s
                if now_s - begun_s >= self._options.patience_s:
                    raise OutboxUnavailable(
                        f"{self._options.outbox} has had no room for {now_s - begun_s:.0f} s:"
                        f" {text}"
                    )
            elif status and status not in _AGAIN:
                raise OutboxRefused(f"{self._options.outbox}: {text}", status)
            elif now_s - away_s >= away_s_max:
                raise OutboxUnavailable(
                    f"{self._options.outbox} does not answer ({text}): is the node running, with"
                    " [outbox] and [gateway] in its network file?"
                )
            self._sleep(PAUSE_S)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if self._connection is None:
            url = urlsplit(self._options.outbox)
            kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
            self._connection = kind(url.netloc, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}"}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def _text(raw: bytes) -> str:
    """What an answer says went wrong."""
    try:
        return str(json.loads(raw)["error"])
    except (ValueError, KeyError, TypeError):
        return raw[:200].decode("utf-8", "replace")
