"""City vehicles as a job: read a stream, and write tables, once over its history or for ever.

    sinks = {
        "alerts": publish(outbox="http://127.0.0.1:7780", stream="0x7e5f…/city/alerts",
                          token="env:OUTBOX_TOKEN"),
        "late": write("parquet", path="lake/late"),
    }
    where = {"servers": "http://127.0.0.1:7780", "stream": "0x7e5f…/city/vehicles"}
    live = spark.readStream.format("shoal").options(**where).load()
    start_live(live, sinks, "checkpoints/vehicles").wait()

    history = spark.read.format("shoal").options(**where).load()
    write_history(history, sinks)

A sink is a function from a table to its writer; `publish` and `write` make those that most need.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from shoal.base.errors import ShoalError, UsageError
from shoal_city.tables.config import Rules
from shoal_city.tables.vehicle_tables import KEYS, vehicle_tables
from shoal_spark.commands import reason_of
from shoal_spark.restarting_query import PatientQuery

if TYPE_CHECKING:
    from pyspark.sql import Observation
    from pyspark.sql.streaming.listener import StreamingQueryProgress

LOOK_S = 0.2  # between two looks at the queries

RAN = "addBatch"  # what Spark calls the time that a batch ran

PUBLISHED = "published"  # what Spark calls the count of rows that go out

Sink = Callable[[DataFrame], Any]
"""Takes a table, and gives its DataFrameWriter or DataStreamWriter with format and options."""

TRIGGER = {"processingTime": "5 seconds"}
LOOK_EVERY_S = 60


def publish(**options: str) -> Sink:
    """Rows as messages of a stream, by Shoal's own sink: their key and their value."""
    return lambda table: _writer(table.select("key", "value")).format("shoal").options(**options)


def write(format: str, **options: str) -> Sink:
    """All columns, to any other format of Spark."""
    return lambda table: _writer(table).format(format).options(**options)


class RowsDropped(ShoalError):
    """Spark dropped rows that are in no table."""


def write_history(
    source: DataFrame,
    sinks: Mapping[str, Sink],
    rules: Rules | None = None,
    *,
    include_late: bool = True,
) -> None:
    """Write these tables of a batch source, one after the other."""
    _check(source, sinks, streaming=False)
    tables = vehicle_tables(source, rules or Rules(), include_late=include_late)
    for name, sink in sinks.items():
        sink(tables[name]).mode("append").save()


def start_live(
    source: DataFrame,
    sinks: Mapping[str, Sink],
    checkpoints: str,
    rules: Rules | None = None,
    *,
    trigger: Mapping[str, Any] = TRIGGER,
) -> Live:
    """Start one query per sink; each goes on where its folder in `checkpoints` says it was."""
    _check(source, sinks, streaming=True)
    tables = vehicle_tables(source, rules or Rules())
    queries = {}
    for name, sink in sinks.items():
        writer = sink(tables[name]).queryName(f"vehicles_{name}").outputMode("append")
        writer = writer.option("checkpointLocation", f"{checkpoints}/{name}")
        queries[name] = PatientQuery(writer.trigger(**trigger))
    return Live(queries)


class Live:
    """The running queries, by table."""

    def __init__(self, queries: Mapping[str, PatientQuery]) -> None:
        self._patient = dict(queries)

    @property
    def queries(self) -> dict[str, StreamingQuery]:
        """As Spark has them now."""
        return {name: query.current for name, query in self._patient.items()}

    def wait(self) -> None:
        """Until all have ended; raises what ended one of them, or RowsDropped."""
        while running := [query for query in self.queries.values() if query.isActive]:
            with suppress(StreamingQueryException):  # `check` says what it means
                running[0].awaitTermination(LOOK_EVERY_S)
            self.check()
        self.check()

    def check(self) -> None:
        """Raises what ended a query; RowsDropped if Spark took a row for late that is not late by
        the rules. Spark remembers a hundred batches: look more often than that."""
        for query in self._patient.values():
            query.check()
        dropped = {
            name: rows
            for name, query in self.queries.items()
            if (rows := sum(_dropped(progress) for progress in query.recentProgress))
        }
        if dropped:
            raise RowsDropped(
                f"Spark dropped rows behind its watermark, by table: {dropped}. Partitions were "
                "read further apart than skew_s: raise it, or read less at a time, and start with "
                "new checkpoints"
            )

    def stop(self) -> None:
        """End all queries; their checkpoints stay."""
        for query in self.queries.values():
            query.stop()


def _writer(table: DataFrame) -> Any:
    return table.writeStream if table.isStreaming else table.write


def _dropped(progress: Any) -> int:
    return sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)


def _check(source: DataFrame, sinks: Collection[str], *, streaming: bool) -> None:
    if source.isStreaming != streaming:
        called, other = ("readStream", "read") if streaming else ("read", "readStream")
        raise UsageError(f"the source comes from spark.{other}: make it with spark.{called}")
    if unknown := sorted(set(sinks) - set(KEYS)):
        raise UsageError(f"no table {unknown[0]}: there are {', '.join(KEYS)}")


class PipelineFailed(ShoalError):
    """A query ended with an error; it can be started again."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What a micro-batch of a table did."""

    table: str
    batch: int
    rows: int
    """Messages that were read."""
    out: int
    """Rows that were published."""
    behind: int
    """Messages that were stored and not read when it began."""
    seconds: float


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """What a table came to."""

    table: str
    batches: int
    rows: int
    out: int
    seconds: float


def publish_to(outbox: str, stream: str, token: str) -> Sink:
    """The sink of a table."""

    return publish(outbox=outbox, stream=stream, token=token)


def start_counted(
    frame: DataFrame,
    sinks: Mapping[str, Sink],
    checkpoints: str,
    rules: Rules,
    trigger: Mapping[str, Any],
) -> Live:
    """Start the queries, such that Spark counts what each publishes."""

    counting = {table: _counted(sink, PUBLISHED) for table, sink in sinks.items()}
    return start_live(frame, counting, checkpoints, rules, trigger=trigger)


def follow(live: Live, tell: Callable[[Batch], None], stop: threading.Event) -> list[Sum]:
    """Say what every batch did, until all queries have ended or it is to stop; then the sums.
    Queries are stopped in any case."""
    begin_s = time.monotonic()
    said: dict[str, list[Batch]] = {table: [] for table in live.queries}

    def look() -> None:
        for table, query in live.queries.items():
            for progress in query.recentProgress:
                known = said[table][-1].batch if said[table] else -1
                # A query that waits reports as well, under the number of the batch to come.
                if progress.batchId > known and RAN in progress.durationMs:
                    said[table].append(_batch_of(table, progress))
                    tell(said[table][-1])

    try:
        while not stop.wait(LOOK_S) and any(query.isActive for query in live.queries.values()):
            look()
            _check_vehicles(live)
        look()
        _check_vehicles(live)
    finally:
        live.stop()
    spent_s = round(time.monotonic() - begin_s, 3)
    return [
        Sum(
            table=table,
            batches=len(batches),
            rows=sum(batch.rows for batch in batches),
            out=sum(batch.out for batch in batches),
            seconds=spent_s,
        )
        for table, batches in said.items()
    ]


def _check_vehicles(live: Live) -> None:
    from pyspark.errors import StreamingQueryException

    try:
        live.check()
    except StreamingQueryException as error:
        raise PipelineFailed(
            f"{reason_of(error)}; what is published stays, and the same command goes on from there"
            " when that is mended"
        ) from error


def _batch_of(table: str, progress: StreamingQueryProgress) -> Batch:
    (source,) = progress.sources
    observed = progress.observedMetrics.get(PUBLISHED)
    return Batch(
        table=table,
        batch=progress.batchId,
        rows=progress.numInputRows,
        out=0 if observed is None else observed["rows"],
        behind=_behind(source.endOffset, source.latestOffset),
        seconds=round(progress.batchDuration / 1000, 3),
    )


def _behind(end: str | None, latest: str | None) -> int:
    """Messages between two offsets of the source, in logs that are in both."""
    if end is None or latest is None:
        return 0
    reached, newest = _seqs(end), _seqs(latest)
    return sum(max(0, seq - reached[place]) for place, seq in newest.items() if place in reached)


def _seqs(offset: str) -> dict[tuple[str, str], int]:
    partitions = msgspec.json.decode(offset)["p"]
    return {(number, at["log"]): at["seq"] for number, at in partitions.items()}


def _counted(sink: Sink, by: str | Observation) -> Sink:
    return lambda table: sink(_observed(table, by))


def _observed(frame: DataFrame, by: str | Observation) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

    return frame.observe(by, F.count(F.lit(1)).alias("rows"))
