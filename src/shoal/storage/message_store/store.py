"""The door to a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from shoal.base.errors import OffsetExpired, UsageError
from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import Entropy
from shoal.identity.message_body import Position
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import DEFAULTS, Retention, StoreConfig
from shoal.storage.lmdb_file import Txn, with_checksum, without_checksum
from shoal.storage.message_store.damage import mend
from shoal.storage.message_store.database import Database, Names
from shoal.storage.message_store.ingest import Ingest, ReplicaIngest, advance, check_range
from shoal.storage.message_store.integrity import audit, put_right
from shoal.storage.message_store.layout import (
    OWN,
    Place,
    head_key,
    read_head,
    split_head_key,
    tail_of,
)
from shoal.storage.message_store.logs import Logs, PlaceHeads, heads_from
from shoal.storage.message_store.position_reader import (
    LastScan,
    Page,
    PageLimits,
    Reader,
    in_log,
    matching,
)
from shoal.storage.message_store.retention import Leases, Retainer, newest_ingest
from shoal.storage.message_store.store_types import (
    Appended,
    Claim,
    Lease,
    LogHead,
    LogId,
    LogPage,
    ReplicaAppended,
    ReplicaRow,
    RetentionStep,
    Row,
    StoreInfo,
)

_NOTHING: Mapping[LogId, int] = {}
_NOTE = b"note "  # keys of notes, in the table of the format and the log


class Store:
    """Messages and logs in one folder, of which this process is the owner until `close`.

    Everything that changes the store is durable when it returns. Time is an argument: nanoseconds
    of Unix time.
    """

    def __init__(
        self,
        folder: Path,
        entropy: Entropy,
        config: StoreConfig = DEFAULTS,
        *,
        may_create: bool = True,
        readonly: bool = False,
    ) -> None:
        """Open the store in this folder, or make one; StoreError if that cannot be, StoreGone if
        there is none and none may be made. What is opened only to be read may be open in another
        process, too."""
        self._config = config
        self._database = Database(
            folder, entropy, config, may_create=may_create and not readonly, readonly=readonly
        )
        self._tables = self._database.tables
        self._names = Names(self._tables, config)
        self._reader = Reader(self._database, self._names, config)
        self._logs = Logs(self._database, self._names, config)
        self._leases = Leases(self._database, self._names, self._logs, config)
        self._retainer = Retainer(self._database, config)
        self._map_bytes_max = config.map_bytes_max
        self.newest_ingest_ns: int = self._database.read(newest_ingest, self._tables)
        """When the newest row of the own log came in."""
        self.damage = self._database.damage
        """What was met that cannot be read."""

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder. Closing twice is fine."""
        self._database.close()

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._database.file.parent

    @property
    def log(self) -> LogId:
        """The id of the own log: the same until `new_log`."""
        return self._database.log

    def new_log(self, now_ns: int, *, keep_old: bool = True) -> LogId:
        """Go on under a new log id, durably: where the own log may be another one than readers
        know, as after a restore, or where its ingest times lie ahead of the clock. The new log has
        all rows of the old one. That is closed: it can be read, and readers go on along the new
        one. Without `keep_old` nothing is known of it any more: for a store that has given seqs to
        other rows than those that readers have. Not beside other users of the store: the thread
        that owns its disk calls it."""
        log = self._database.new_log_id()
        self._logs.begin_new(log, now_ns, None if keep_old else self._database.new_log_id())
        self._database.log = log
        self._retainer.rows_given_up()  # a pass over everything: it goes by other times now
        self.newest_ingest_ns = min(self.newest_ingest_ns, now_ns)
        return log

    # Writing

    def append(self, messages: Sequence[VerifiedMessage], now_ns: int) -> list[Appended]:
        """Store what is new, all in one transaction: what this says of each message is durable."""
        self._check_batch(messages)
        if not messages:
            return []

        def work(txn: Txn) -> list[Appended]:
            ingest = Ingest(txn, self._tables, self._names, self.damage, now_ns)
            results = [ingest.accept(message) for message in messages]
            ingest.finish()
            return results

        appended = self._database.write(work)
        self._came_in(now_ns)
        return appended

    def append_replica(
        self,
        log: LogId,
        stream: StreamId,
        partition: int,
        rows: Sequence[ReplicaRow],
        now_ns: int,
    ) -> ReplicaAppended:
        """Append a range of another node's log, and to the own log what of it is new here.

        MalformedMessage if the rows cannot be of a log, LogDiverged if they are of another one.
        """
        self._check_batch([row.message for row in rows])
        if not rows:
            return ReplicaAppended(0, 0, ())
        check_range(self.log, log, stream, partition, rows)

        def work(txn: Txn) -> ReplicaAppended:
            ingest = ReplicaIngest(txn, self._tables, self._names, self.damage, now_ns)
            return ingest.append(log, stream, partition, rows)

        appended = self._database.write(work)
        self._came_in(now_ns)
        return appended

    def advance_replica(self, log: LogId, stream: StreamId, partition: int, first: int) -> bool:
        """The log's owner has nothing below `first`: where rows are missing up to there, give up
        those held before them, so that `append_replica` can go on. Says whether that was so."""
        if log == self.log or first < 1:
            raise UsageError(f"log {log} cannot be advanced to {first}")

        def work(txn: Txn) -> bool:
            place = self._names.place_or_new(txn, stream, partition)
            return advance(txn, self._tables, self._names, log, place, first)

        advanced = self._database.write(work)
        if advanced:
            self._retainer.rows_given_up()
        return advanced

    def put_note(self, name: str, value: bytes) -> None:
        """Keep what a machine notes beside the messages: a copy of the store has both, of one
        moment."""

        def work(txn: Txn) -> None:
            txn.put(_NOTE + name.encode(), with_checksum(value), db=self._tables.meta)

        self._database.write(work)

    def note(self, name: str) -> bytes | None:
        """What was noted; None also if it is not as it was written."""

        def work(txn: Txn) -> bytes | None:
            return txn.get(_NOTE + name.encode(), db=self._tables.meta)

        raw = self._database.read(work)
        return None if raw is None else without_checksum(raw)

    def mend(self, stream: StreamId, partition: int, seq: int, message: VerifiedMessage) -> bool:
        """Put a damaged row of the own log right with the message that a copy of this log has
        there; False if it cannot be that row's."""

        def work(txn: Txn) -> Place | None:
            place = self._names.place(txn, stream, partition)
            if place is None or (message.id.stream, message.id.partition) != (stream, partition):
                return None
            head = read_head(txn.get(head_key(place, OWN), db=self._tables.heads))
            if not self.damage.is_noted(place, seq):
                return None  # what can be read is not changed
            if not head.first <= seq <= head.last:
                return None
            tail = tail_of(message.id)
            done = mend(txn, self._tables, place, seq, tail, message.signed, exact=True)
            return place if done else None

        place = self._database.write(work)
        if place is not None:
            self.damage.mend(place, seq)
        return place is not None

    def damaged_rows(self, most: int) -> tuple[StreamId, int, list[int]] | None:
        """Rows of the own log at one place that were met and cannot be read; each time others."""
        rows = self.damage.next_rows(most)
        if not rows:
            return None
        stream, partition = self._database.read(self._names.stream_of, rows[0].place)
        return stream, partition, sorted(row.seq for row in rows)

    def unread(self, stream: StreamId, partition: int, seq: int) -> None:
        """Somebody found that a row of the own log is not what its publisher signed."""
        place = self._database.read(self._names.place, stream, partition)
        if place is not None:
            self.damage.note(place, seq)
            with suppress(OffsetExpired):  # its message is noted, too
                self.log_read(self.log, stream, partition, seq - 1, 1)

    def unnamed(self) -> int:
        """Messages that no row of the own log names, by their number."""

        def work(txn: Txn) -> int:
            heads = heads_from(txn, self._tables, b"")
            named = sum(head.last + 1 - head.first for _, number, head in heads if number == OWN)
            return max(0, txn.stat(self._tables.messages)["entries"] - named)

        return self._database.read(work)

    def put_right(self) -> int:
        """Mend what needs no other storage node (checking.py): how many rows were changed."""
        return put_right(self._database)

    # Reading by position

    def range(
        self,
        stream: StreamId,
        partition: int,
        from_position: Position | None = None,
        to_position: Position | None = None,
        publisher: NodeId | None = None,
        chain: str | None = None,
    ) -> Iterator[list[Row]]:
        """Pages of messages by (timestamp, sequence, publisher, chain), both ends included. A page
        may be empty where a filter finds nothing for a while."""
        match = matching(publisher, chain)
        return self._reader.range(stream, partition, from_position, to_position, match)

    def last(
        self, stream: StreamId, partition: int, n: int, publisher: NodeId | None = None
    ) -> Iterator[list[Row]]:
        """Pages of the newest n messages by position, oldest first; pages may be empty."""
        if not 0 <= n <= self._config.last_rows_max:
            raise UsageError(f"the last {n}: at most {self._config.last_rows_max}, or a range")
        return self._reader.last(stream, partition, n, matching(publisher, None))

    def page(
        self,
        stream: StreamId,
        partition: int,
        limits: PageLimits,
        *,
        from_position: Position | None = None,
        to_position: Position | None = None,
        publisher: NodeId | None = None,
        chain: str | None = None,
        after: MessageId | None = None,
    ) -> Page:
        """One page of a range, for readers that say themselves where they are."""
        match = matching(publisher, chain)
        return self._reader.page(
            stream, partition, from_position, to_position, match, after, limits
        )

    def last_page(
        self,
        stream: StreamId,
        partition: int,
        n: int,
        limits: PageLimits,
        *,
        publisher: NodeId | None = None,
        before: MessageId | None = None,
    ) -> Page | LastScan:
        """The first page of the newest n, to be gone on with by `page`; or, if one transaction does
        not find them, what is left and where to go on."""
        match = matching(publisher, None)
        return self._reader.last_page(stream, partition, n, match, limits, before)

    def get(self, ids: Sequence[MessageId]) -> Iterator[list[Row]]:
        """Pages of those messages that are held, in the order asked for."""
        return self._reader.by_id(ids)

    # Reading by offset

    def log_read(
        self,
        log: LogId,
        stream: StreamId,
        partition: int,
        after_seq: int,
        limit: int,
        minus: Mapping[LogId, int] = _NOTHING,
        *,
        publisher: NodeId | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> LogPage:
        """One page of a log's rows after a seq, without messages that are in the logs of `minus`
        up to their seqs; of one publisher, or of a message time, if so asked. OffsetExpired if the
        first of them is gone."""
        match = in_log(publisher, from_ms, to_ms)
        return self._logs.read(log, stream, partition, after_seq, limit, minus, match)

    def heads(self, stream: StreamId, partition: int) -> dict[LogId, LogHead]:
        """First and last seq available of every log held at a place, the own one included."""
        return self._logs.heads(stream, partition)

    def stream_heads(self, stream: StreamId) -> dict[int, PlaceHeads]:
        """The same for every partition of a stream that ever had a row, and its horizon."""
        return self._logs.stream_heads(stream)

    def first_seq_at(self, log: LogId, stream: StreamId, partition: int, ingest_ns: int) -> int:
        """The first available seq that came in at this time or later, or the next to be given."""
        return self._logs.first_seq_at(log, stream, partition, ingest_ns)

    # Leases and retention

    def limit(self, limits: Retention) -> None:
        """Keep by other limits from now on; UsageError if the store was not opened for so much."""
        if limits.size_bytes_max is not None and 2 * limits.size_bytes_max > self._map_bytes_max:
            raise UsageError("a store that may grow so large has to be opened again")
        self._retainer.limit(limits)

    def lease(self, lease: Lease, now_ns: int) -> None:
        """Keep the rows after a seq until the lease expires; the same holder's is replaced."""
        self._leases.take(lease, now_ns)

    def release(self, holder: str, log: LogId, stream: StreamId, partition: int) -> bool:
        """Give a lease up; False if there was none."""
        return self._leases.release(holder, log, stream, partition)

    def leases(self) -> list[Lease]:
        """Every lease; expired ones go when something needs their place."""
        return self._leases.all()

    def retain(self, now_ns: int) -> RetentionStep:
        """One step of retention: a bounded number of messages in one transaction, by a time that
        is right."""
        return self._retainer.step(now_ns)

    def begin_time(self, now_ns: int, wall_ns: int) -> None:
        """From here on a monotonic time is counted, for `retain_carefully`."""
        self._retainer.begin_time(now_ns, wall_ns)

    def retain_carefully(self, now_ns: int, wall_ns: int, *, settled: bool) -> RetentionStep:
        """The same by a monotonic time, and the time of day, which may be wrong (retention.py)."""
        return self._retainer.careful_step(now_ns, wall_ns, settled=settled)

    @property
    def certain_ns(self) -> int | None:
        """The time that has certainly passed, as Unix time; None before the first step."""
        return self._retainer.certain_ns

    @property
    def uncertain_ns(self) -> int:
        """By how much the time of day is ahead of it."""
        return self._retainer.uncertain_ns

    @property
    def retention_waits(self) -> bool:
        """Whether messages have expired by a time of day that is not to be trusted now."""
        return self._retainer.waits

    # Anti-entropy

    def places(self) -> list[tuple[StreamId, int]]:
        """Every (stream, partition) that ever had a row here."""

        def work(txn: Txn) -> list[tuple[StreamId, int]]:
            with txn.cursor(self._tables.heads) as cursor:
                found = {split_head_key(key)[0] for key in cursor.iternext(values=False)}
            return [self._names.stream_of(txn, place) for place in sorted(found)]

        return self._database.read(work)

    def streams_after(self, number: int, limit: int) -> list[tuple[int, StreamId]]:
        """The next streams after a number, in the order in which they first had a row here."""
        return self._database.read(lambda txn: self._names.after(txn, number, limit))

    def lacking(self, claims: Sequence[Claim]) -> list[MessageId]:
        """Ids of these that are not held, or held with another body than the claim's digest."""
        self._check_claims(len(claims))
        return self._reader.lacking(claims)

    def missing(self, ids: Sequence[MessageId]) -> list[MessageId]:
        """Those of these that are not held, and that retention has not let go of."""
        self._check_claims(len(ids))

        def work(txn: Txn) -> list[MessageId]:
            return [id for id in ids if self._reader.is_missing(txn, id)]

        return self._database.read(work)

    def forget_empty(self, streams_max: int) -> list[StreamId]:
        """Forget streams of which nothing is held any more, so that others find room: one step,
        which looks at so many. Their seqs are not given again."""
        return self._database.write(lambda txn: self._names.forget_empty(txn, streams_max))

    # The store itself

    def check_present(self) -> None:
        """StoreGone if the store was deleted, or unmounted, since it was opened."""
        self._database.check_present()

    def info(self) -> StoreInfo:
        """Sizes and counts."""

        def work(txn: Txn) -> StoreInfo:
            return StoreInfo(
                log=self.log,
                messages=txn.stat(self._tables.messages)["entries"],
                size_bytes=self._database.size_bytes(txn),
                file_bytes=self._database.file_bytes(),
                streams=txn.stat(self._tables.stream_names)["entries"],
            )

        return self._database.read(work)

    def check_invariants(self) -> None:
        """Read everything, and raise InvariantViolated if anything contradicts anything."""
        audit(self._database)

    def _came_in(self, now_ns: int) -> None:
        self._retainer.appended(now_ns)
        self.newest_ingest_ns = max(self.newest_ingest_ns, now_ns)

    def _check_batch(self, messages: Sequence[VerifiedMessage | None]) -> None:
        rows_max, bytes_max = self._config.batch_rows_max, self._config.batch_bytes_max
        if len(messages) > rows_max:
            raise UsageError(f"a batch of {len(messages)}: at most {rows_max}, split it")
        size_bytes = sum(len(message.signed) for message in messages if message is not None)
        if size_bytes > bytes_max:
            raise UsageError(f"a batch of {size_bytes} bytes: at most {bytes_max}, split it")

    def _check_claims(self, count: int) -> None:
        if count > self._config.claims_max:
            raise UsageError(f"{count} ids: at most {self._config.claims_max} at once, split them")
