"""`spark.read.format("shoal")`: the end is pinned on the driver, when the query is planned."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from shoal.base.ids import INT63_MAX
from shoal.base.offsets import Offset
from shoal.pipeline.sources.client import LogServers
from shoal.pipeline.sources.filters import Pushed, pushed
from shoal.pipeline.sources.following import Follower
from shoal.pipeline.sources.leases import LEASE_S, take
from shoal.pipeline.sources.options import SourceOptions
from shoal.pipeline.sources.ranges import LogRange, split
from shoal.pipeline.sources.reading import read_range
from shoal.pipeline.sources.stream_keys import StreamKey, read_stream_keys

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: LogRange, keys: tuple[StreamKey, ...] = ()) -> None:
        super().__init__(part)
        self.part = part
        self.keys = keys
        """Of the stream, if it is encrypted."""


class _Pushing:
    """`pushFilters` of a reader, which Spark calls if its session has push-down switched on. Where
    that is off, Spark refuses readers that have a `pushFilters` of their own: it tells by
    `__func__`, and this one passes for none."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.pushed = pushed(filters, topic=self._reader.options.is_topic)
        return filters  # Spark applies all of them again


class BatchReader(DataSourceReader):
    """One batch read."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.pushed = Pushed()
        self.pushFilters = _Pushing(self)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, each a range of a log."""
        follower = Follower(self.options)
        try:
            to_ms, ending = self.pushed.wanted.to_ms, self.options.ending
            # What comes in later is no part of a batch that ends at an offset, or at a time of
            # ingest that has been.
            ends_ms = [] if self.pushed.ingest_to_ms is None else [self.pushed.ingest_to_ms]
            if isinstance(ending, datetime):
                ends_ms.append(round(ending.timestamp() * 1000))
            is_past = min(ends_ms, default=INT63_MAX) < time.time() * 1000
            is_open = not (is_past or isinstance(ending, Offset))
            whole = follower.whole(to_ms) if is_open else None
            start = follower.place_of(self.options.starting)
            ranges = follower.ranges(start, self.options.ending)
            if whole is not None:
                follower.check_whole(whole, ranges, to_ms)
            _hold(self.options, ranges)
            narrowed = [self._narrowed(follower, part) for part in ranges]
        finally:
            follower.close()
        rows = self.options.rows_per_task
        keys = read_stream_keys(self.options.keystore, self.options.stream)
        return [RangePartition(task, keys) for part in narrowed for task in split(part, rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        if isinstance(partition, RangePartition):  # another one stands for no tasks at all
            wanted = self.pushed.wanted
            yield from read_range(self.options, partition.part, wanted, partition.keys)

    def _narrowed(self, follower: Follower, part: LogRange) -> LogRange:
        """Only what came in while the filters say: ingest times never go back in a log."""
        after, upto = part.after, part.upto
        if self.pushed.ingest_from_ms is not None:
            after = max(after, follower.seek(part, self.pushed.ingest_from_ms) - 1)
        if self.pushed.ingest_to_ms is not None:
            upto = min(upto, follower.seek(part, self.pushed.ingest_to_ms + 1) - 1)
        return msgspec.structs.replace(part, after=after, upto=max(after, upto))


def _hold(options: SourceOptions, ranges: Sequence[LogRange]) -> None:
    """Nobody says when a batch read is over: it has as long as a lease lasts."""
    servers = LogServers(options, patience_s=0.0)
    holder = f"spark-batch-{uuid4().hex}"
    for part in ranges:
        take(servers, holder, part.partition, part.log, part.after, LEASE_S)
    servers.close()
