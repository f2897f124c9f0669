"""What Spark asks of a streaming source on the driver, without Spark around it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from shoal.base.errors import UsageError
from shoal_spark.source.offsets import RowFilter
from shoal_spark.source.options import parse_options
from shoal_spark.source.readers import BatchReader, RangePartition, StreamReader, pushed
from tests.support.log_server import START_MS, STREAM, LogServer, numbers, signed

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LogServer]:
    with LogServer(tmp_path / "a") as running:
        yield running


def reader(server: LogServer, **more: str) -> StreamReader:
    given = {"servers": server.address, "stream": STREAM, "patienceSeconds": "0", **more}
    return StreamReader(parse_options(given, streaming=True))


def read(of: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """On executors: they get the reader and the tasks as pickles."""
    found = []
    for task in of.partitions(start, end):
        # Of a reader that was asked nothing: that one plans the reading, this one the batches.
        there = pickle.loads(pickle.dumps(StreamReader(of._options)))
        for batch in there.read(pickle.loads(pickle.dumps(task))):
            found += batch.column("value").to_pylist()
    return numbers(found)


def test_a_batch_is_as_large_as_the_limit_says_and_the_next_goes_on(server: LogServer) -> None:
    server.append(signed(n) for n in range(100))
    query = reader(server, startingOffsets="earliest", maxRowsPerTrigger="30")
    limit = query.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    start = query.initialOffset()
    got = []
    for _ in range(4):
        end = query.latestOffset(start, limit)
        got.append(read(query, start, end))
        query.commit(end)
        start = end
    assert [len(batch) for batch in got] == [30, 30, 30, 10]
    assert [number for batch in got for number in batch] == list(range(100))
    again = query.latestOffset(start, limit)
    assert json.dumps(again) == json.dumps(start), "the same text, or Spark sees new data"
    server.append([signed(100)])
    newest = query.latestOffset(start, ReadAllAvailable())
    assert query.reportLatestOffset() == newest
    query.stop()


def test_the_first_batch_runs_again_as_it_was_planned(server: LogServer) -> None:
    """Spark keeps its end only, and asks a new reader where it began."""
    server.append(signed(n) for n in range(10))
    query = reader(server, startingOffsets="latest")
    start = query.initialOffset()
    server.append(signed(n) for n in range(10, 15))
    assert query.initialOffset() == start, "asked again, it has not moved"
    end = query.latestOffset(start, ReadAllAvailable())
    assert read(query, start, end) == list(range(10, 15))
    query.stop()
    restarted = reader(server, startingOffsets="latest")
    server.append([signed(15)])
    begin = restarted.initialOffset()
    assert begin != start
    assert read(restarted, begin, end) == list(range(10, 15))
    following = restarted.latestOffset(end, ReadAllAvailable())
    assert read(restarted, end, following) == [15]
    assert "begin" not in following
    restarted.stop()


def test_available_now_is_what_there_is_now(server: LogServer) -> None:
    server.append(signed(n) for n in range(10))
    query = reader(server, startingOffsets="earliest")
    query.prepareForTriggerAvailableNow()
    server.append(signed(n) for n in range(10, 20))
    start = query.initialOffset()
    end = query.latestOffset(start, ReadMaxRows(7))
    last = query.latestOffset(end, ReadMaxRows(7))
    assert read(query, start, end) + read(query, end, last) == list(range(10))
    assert query.latestOffset(last, ReadMaxRows(7)) == last
    query.stop()


def test_a_running_query_holds_a_lease_and_gives_it_back(server: LogServer) -> None:
    server.append(signed(n) for n in range(10))
    query = reader(server, startingOffsets="earliest")
    start = query.initialOffset()
    query.latestOffset(start, ReadAllAvailable())
    query.stop()
    leased = [asked.split()[0] for asked in server.asked if "/lease" in asked]
    assert leased == ["PUT", "DELETE"]
    assert server.store.leases() == []


def test_a_checkpoint_of_another_stream_ends_the_query(server: LogServer) -> None:
    server.append([signed(0)])
    query = reader(server)
    kept = {**query.initialOffset(), "stream": "0x/other"}
    with pytest.raises(UsageError, match="checkpointLocation of its own"):
        query.latestOffset(kept, ReadAllAvailable())
    query.stop()


# Batches


def test_a_large_batch_is_many_tasks(server: LogServer) -> None:
    server.append(signed(n, partition=n % 2) for n in range(100))
    given = {"servers": server.address, "stream": STREAM, "maxRecordsPerPartition": "20"}
    batch = BatchReader(parse_options(given, streaming=False))
    tasks = [task.part for task in batch.partitions() if isinstance(task, RangePartition)]
    assert [(t.partition, t.after, t.upto) for t in tasks] == [
        (0, 0, 20), (0, 20, 40), (0, 40, 50), (1, 0, 20), (1, 20, 40), (1, 40, 50),
    ]  # fmt: skip
    assert [lease.partition for lease in server.store.leases()] == [0, 1]


def test_ingest_times_narrow_what_is_read(server: LogServer) -> None:
    for number in range(10):
        server.append([signed(number)], now_ns=(START_MS + 1000 * number) * 1_000_000)
    given = {"servers": server.address, "stream": STREAM}
    batch = BatchReader(parse_options(given, streaming=False))
    begin = datetime.fromtimestamp(START_MS / 1000 + 3, UTC)
    filters: list[Filter] = [
        GreaterThanOrEqual(("ingest_timestamp",), begin),
        LessThan(("ingest_timestamp",), begin + timedelta(seconds=4)),
    ]
    assert batch.pushFilters(filters) == filters, "Spark applies them too"
    (task,) = batch.partitions()
    assert isinstance(task, RangePartition)
    assert (task.part.after, task.part.upto) == (3, 8), "4 to 7, and what Spark leaves out itself"


def test_a_reader_that_can_push_passes_where_that_is_off(server: LogServer) -> None:
    """As Spark tells them apart; it would refuse the read otherwise."""
    given = {"servers": server.address, "stream": STREAM}
    batch = BatchReader(parse_options(given, streaming=False))
    assert getattr(batch.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    copy = pickle.loads(pickle.dumps(batch))
    copy.pushFilters([EqualTo(("publisher",), "0x" + "ab" * 20)])
    assert copy.pushed.wanted == RowFilter(publisher="0x" + "ab" * 20)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], RowFilter()),
        ([GreaterThan(("timestamp",), NOON)], RowFilter(from_ms=NOON_MS)),
        (
            [
                GreaterThan(("timestamp",), NOON),
                GreaterThanOrEqual(("timestamp",), NOON + timedelta(microseconds=5_900)),
                LessThanOrEqual(("timestamp",), NOON + timedelta(microseconds=9_900)),
            ],
            RowFilter(from_ms=NOON_MS + 5, to_ms=NOON_MS + 9),
        ),
        ([EqualTo(("timestamp",), NOON)], RowFilter(from_ms=NOON_MS, to_ms=NOON_MS)),
        ([EqualTo(("timestamp",), NOON.replace(tzinfo=None))], RowFilter()),
        ([EqualTo(("publisher",), "bob")], RowFilter()),
        ([EqualTo(("publisher",), "0x" + "AB" * 20)], RowFilter()),
        ([EqualTo(("publisher",), "0x" + "ab" * 20)], RowFilter(publisher="0x" + "ab" * 20)),
        ([In(("publisher",), ("0x" + "ab" * 20,))], RowFilter()),
        ([EqualTo(("seq",), 5), EqualTo(("value", "timestamp"), NOON)], RowFilter()),
    ],
)
def test_only_what_servers_know_is_pushed(filters: list[Filter], wanted: RowFilter) -> None:
    assert pushed(filters).wanted == wanted
