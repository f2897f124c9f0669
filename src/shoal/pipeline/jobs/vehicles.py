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

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from shoal.base.errors import ShoalError, UsageError
from shoal.pipeline.patient import PatientQuery
from shoal.pipeline.vehicles.rules import Rules
from shoal.pipeline.vehicles.tables import KEYS, vehicle_tables

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
