"""`spark.readStream.format("shoal")`: what Spark asks on the driver, trigger by trigger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from shoal.base.offsets import Offset
from shoal.pipeline.sources.batch import RangePartition
from shoal.pipeline.sources.checkpoints import Checkpoint, from_spark, to_spark
from shoal.pipeline.sources.following import Follower
from shoal.pipeline.sources.leases import LeaseKeeper
from shoal.pipeline.sources.options import SourceOptions
from shoal.pipeline.sources.planning import Target
from shoal.pipeline.sources.ranges import EVERYTHING, ranges_between, split
from shoal.pipeline.sources.reading import read_range
from shoal.pipeline.sources.stream_keys import read_stream_keys

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. Spark sends a copy to executors, where only `read` is called: what holds
    connections and threads is made at the first question on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._follower: Follower | None = None
        self._leases: LeaseKeeper | None = None
        self._initial: dict[str, Any] | None = None
        self._newest: Offset | None = None
        self._target: Target | None = None
        """With Trigger.AvailableNow, where the query ends."""

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins: asked more than once, and the same each time."""
        if self._initial is None:
            place = self._following().place_of(self._options.starting)
            self._initial = to_spark(self._options.stream, Checkpoint(place))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say of one micro-batch."""
        rows = self._options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Whatever comes in from now on is for the next query."""
        self._target = self._following().pinned()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as the next batch goes; the start itself if there is nothing new."""
        at = from_spark(self._options.stream, start).offset
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self._hold(at)
        ahead = self._following().ahead(at, rows, self._target)
        self._newest = ahead.newest
        if ahead.offset == at:
            return start
        begin = at if start == self._initial else None
        return to_spark(self._options.stream, Checkpoint(ahead.offset, begin))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest there is: the query's lag is what lies between."""
        if self._newest is None:
            return None
        return to_spark(self._options.stream, Checkpoint(self._newest))

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: retention may have it."""
        self._hold(from_spark(self._options.stream, end).offset)

    def stop(self) -> None:
        """The query has ended."""
        if self._leases is not None:
            self._leases.release()
        if self._follower is not None:
            self._follower.close()

    # Rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, each a range of a log."""
        until = from_spark(self._options.stream, end)
        begin = until.begin or from_spark(self._options.stream, start).offset
        rows = self._options.rows_per_task
        keys = read_stream_keys(self._options.keystore, self._options.stream)
        return [
            RangePartition(task, keys)
            for part in ranges_between(begin, until.offset)
            for task in split(part, rows)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.part, EVERYTHING, partition.keys)

    def _following(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(self._options)
        return self._follower

    def _hold(self, offset: Offset) -> None:
        if self._leases is None:
            self._leases = LeaseKeeper(self._options)
        self._leases.hold(offset)
