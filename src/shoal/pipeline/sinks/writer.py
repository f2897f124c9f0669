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

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from shoal.base.errors import ShoalError, UsageError
from shoal.base.outbox_requests import (
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
from shoal.identity.stream_message import BINARY, CONTENT_BYTES_MAX, TEXT
from shoal.pipeline.replays import RowsDigest, planned_batch, shown_digest
from shoal.pipeline.sinks.client import OutboxClient
from shoal.pipeline.sinks.options import SinkOptions, check_columns, parse_options

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
