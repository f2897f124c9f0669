"""What an executor does: read its range of a log, page by page, from whoever has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from shoal.base.errors import OffsetExpired, UsageError
from shoal.base.ids import INT63_MAX, parse_node_id, show_node_id
from shoal.base.offsets import Offset
from shoal_spark.source.follower import Follower, Target
from shoal_spark.source.log_client import LEASE_S, LeaseKeeper, LogServers, RowsDamaged, take
from shoal_spark.source.offsets import (
    EVERYTHING,
    Checkpoint,
    LogRange,
    RowFilter,
    from_spark,
    ranges_between,
    skipped,
    split,
    to_spark,
)
from shoal_spark.source.options import SourceOptions
from shoal_spark.source.rows import arrow_batch, event_fields, message_fields
from shoal_spark.source.stream_keys import Opener, StreamKey, read_stream_keys

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("shoal.pipeline")


def read_range(
    options: SourceOptions, part: LogRange, wanted: RowFilter, keys: Sequence[StreamKey] = ()
) -> Iterator[pa.RecordBatch]:
    """Batches of the rows of a range, the same whichever server gives them."""
    opener = Opener(options.stream, keys)
    fields_of = event_fields if options.is_topic else partial(message_fields, opener=opener)
    servers = LogServers(options)
    try:
        after = part.after
        while after < part.upto:
            try:
                page = servers.rows(part, after, wanted)
            except OffsetExpired as error:
                after = skipped(error, part, after, fail=options.fail_on_data_loss)
                continue
            except RowsDamaged as error:
                if options.fail_on_data_loss:
                    raise
                log.warning("%s; they are skipped", error)
                page = error.page
            if page.rows:
                yield arrow_batch(
                    options.stream,
                    part,
                    page.rows,
                    fail_fast=options.fail_fast,
                    fields_of=fields_of,
                )
            after = page.through
    finally:
        servers.close()


# Filters of a batch read that servers apply: message time, ingest time, publisher.
#
# Spark applies all of them again to what comes, so a server may let more through: times go to it in
# whole milliseconds, and a record that it knows under one publisher may turn out to be forged.


_EPOCH = datetime.fromtimestamp(0, UTC)
_FROM = (EqualTo, GreaterThan, GreaterThanOrEqual)
_TO = (EqualTo, LessThan, LessThanOrEqual)


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What servers leave out."""

    wanted: RowFilter = RowFilter()
    ingest_from_ms: int | None = None
    ingest_to_ms: int | None = None


def pushed(filters: Iterable[Filter], *, topic: bool = False) -> Pushed:
    """What can be pushed of some filters, all of which hold. Servers know the events of a topic by
    their authors, not by who published them."""
    bounds: dict[tuple[str, bool], int] = {}
    publisher = None
    for one in filters:
        column = ".".join(getattr(one, "attribute", ()))
        value = getattr(one, "value", None)
        if column == "publisher" and isinstance(one, EqualTo) and not topic:
            publisher = _publisher(value) or publisher
        elif column in ("timestamp", "ingest_timestamp"):
            when_ms = _ms(value)
            if when_ms is None:
                continue
            if isinstance(one, _FROM):
                key = column, True
                bounds[key] = max(when_ms, bounds.get(key, when_ms))
            if isinstance(one, _TO):
                key = column, False
                bounds[key] = min(when_ms, bounds.get(key, when_ms))
    return Pushed(
        wanted=RowFilter(
            from_ms=bounds.get(("timestamp", True)),
            to_ms=bounds.get(("timestamp", False)),
            publisher=publisher,
        ),
        ingest_from_ms=bounds.get(("ingest_timestamp", True)),
        ingest_to_ms=bounds.get(("ingest_timestamp", False)),
    )


def _publisher(value: Any) -> str | None:
    """As the column has it; another spelling matches no row, which Spark finds out itself."""
    try:
        node = show_node_id(parse_node_id(value)) if isinstance(value, str) else None
    except UsageError:
        return None
    return node if node == value else None


def _ms(value: Any) -> int | None:
    """Rounded down; both ends are included."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return max(0, (value - _EPOCH) // timedelta(milliseconds=1))


# `spark.read.format("shoal")`: the end is pinned on the driver, when the query is planned.


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


# `spark.readStream.format("shoal")`: what Spark asks on the driver, trigger by trigger.


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
