"""Messages by offset: the rows of a log after a seq, heads, and seqs by ingest time.

A store goes on under a new log id when its own log may be, or has become, another one than readers
know: after a restore, or when its ingest times lie ahead of the clock. The new log has all rows of
the old one, with the same seqs, and goes on behind them. The old log is *closed* at its last row:
it keeps its id and can be read, is a log that may be left out of another (`minus`), and as it is
nobody's own now, it grows only by rows that other storage nodes have of it. So no seq of a log id
ever names a second row. A reader of the old log reads it to its end, and goes on along the new one
without what it has already.

The rows that both have are kept once, as rows of the own log. In the new log none of them came in
after the moment of the change: ingest times never go back in a log, and new rows come in then or
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from shoal.base.errors import NotFound, OffsetExpired, UsageError
from shoal.base.ids import INT63_MAX, StreamId
from shoal.storage.config import StoreConfig
from shoal.storage.lmdb_file import Txn
from shoal.storage.message_store.database import Database, Names
from shoal.storage.message_store.layout import (
    HEAD_KEY_BYTES,
    OWN,
    Entry,
    Head,
    Place,
    Rotten,
    Tables,
    closed_value,
    entry_key,
    head_key,
    head_value,
    id_of,
    read_closed,
    read_entry,
    read_head,
    read_holder,
    read_message,
    read_variant,
    seq_of,
    split_head_key,
    split_place,
)
from shoal.storage.message_store.store_types import DamagedRow, LogHead, LogId, LogPage, Row

INT64_MAX = 2**64 - 1  # of a seq in a key

Match = Callable[[bytes], bool]
"""Whether a key of `messages` is asked for."""


class LogAt(NamedTuple):
    """One log at one place, as one transaction sees it."""

    log: LogId
    number: int
    stream: StreamId
    partition: int
    place: Place | None
    """None if nothing was ever stored there: an own log without rows."""
    head: Head


class PlaceHeads(NamedTuple):
    """Every log at one place, and the message time below which retention has removed messages."""

    horizon_ms: int
    logs: dict[LogId, LogHead]


class Logs:
    """Reads by offset, of a whole store."""

    def __init__(self, database: Database, names: Names, config: StoreConfig) -> None:
        self._database = database
        self._tables = database.tables
        self._names = names
        self._config = config

    def begin_new(self, log: LogId, now_ns: int, forgotten: LogId | None) -> None:
        """The own log is this one from now on, and has all rows that it had. The old one is closed,
        or forgotten, if an id is given that nobody knows: then it is as if this store never had a
        row of it."""
        tables, names = self._tables, self._names

        def work(txn: Txn) -> None:
            old = names.rename_own(txn, log, forgotten)
            for place, number, head in list(heads_from(txn, tables, b"")):
                if number == OWN:
                    closed = closed_value(head.last, now_ns)
                    txn.put(head_key(place, old), closed, db=tables.closed)
                    if forgotten is None:
                        txn.put(head_key(place, old), head_value(head), db=tables.heads)
                    capped = head._replace(ingest_ns=min(head.ingest_ns, now_ns))
                    txn.put(head_key(place, OWN), head_value(capped), db=tables.heads)
            for key, value in list(txn.cursor(tables.leases)):
                place, number = split_head_key(key[:HEAD_KEY_BYTES])
                if number == OWN:
                    txn.delete(key, db=tables.leases)
                    if forgotten is None:
                        moved = head_key(place, old) + key[HEAD_KEY_BYTES:]
                        txn.put(moved, value, db=tables.leases)

        self._database.write(work)

    def find(self, txn: Txn, log: LogId, stream: StreamId, partition: int) -> LogAt:
        """The log at a place; NotFound if this store never held any of it."""
        place = self._names.place(txn, stream, partition)
        number = self._names.log(txn, log)
        raw = None
        if place is not None and number is not None:
            raw = txn.get(head_key(place, number), db=self._tables.heads)
        if raw is None and number != OWN:
            raise NotFound(
                f"no row of log {log} at {stream!r}, partition {partition}, is held here:"
                f" `heads` names the logs that are (the own one is {self._names.log_of(txn, OWN)})"
            )
        return LogAt(log, number or OWN, stream, partition, place, read_head(raw))

    def read(
        self,
        log: LogId,
        stream: StreamId,
        partition: int,
        after_seq: int,
        limit: int,
        minus: Mapping[LogId, int],
        match: Match | None = None,
    ) -> LogPage:
        """One page of rows after a seq, without those that are in another log up to a seq, and
        without those whose key does not match."""
        if limit < 1:
            raise UsageError(f"a page of {limit} rows: ask for 1 or more")

        def work(txn: Txn) -> LogPage:
            at = self.find(txn, log, stream, partition)
            check_available(at, after_seq)
            rows_max = min(limit, self._config.page_rows_max)
            return self._page(txn, at, after_seq, rows_max, self._minus(txn, at, minus), match)

        return self._database.read(work)

    def heads(self, stream: StreamId, partition: int) -> dict[LogId, LogHead]:
        """What is held of each log at a place; the own one is always among them."""

        def work(txn: Txn) -> dict[LogId, LogHead]:
            found = {self._names.log_of(txn, OWN): Head()}
            place = self._names.place(txn, stream, partition)
            for number, head in () if place is None else heads_at(txn, self._tables, place):
                found[self._names.log_of(txn, number)] = head
            return {log: LogHead(head.first, head.last) for log, head in found.items()}

        return self._database.read(work)

    def stream_heads(self, stream: StreamId) -> dict[int, PlaceHeads]:
        """What is held of each log at every partition of a stream that ever had a row."""

        def work(txn: Txn) -> dict[int, PlaceHeads]:
            found: dict[int, PlaceHeads] = {}
            place = self._names.place(txn, stream, 0)
            if place is None:
                return found
            prefix = place[:-1]  # without the partition
            for other, number, head in heads_from(txn, self._tables, prefix):
                at = found.setdefault(split_place(other)[1], PlaceHeads(0, {}))
                at.logs[self._names.log_of(txn, number)] = LogHead(head.first, head.last)
                if number == OWN:
                    found[split_place(other)[1]] = PlaceHeads(head.horizon_ms, at.logs)
            return found

        return self._database.read(work)

    def first_seq_at(self, log: LogId, stream: StreamId, partition: int, ingest_ns: int) -> int:
        """The first available seq that came in at this time or later, or the next to be given."""

        def work(txn: Txn) -> int:
            found = self.find(txn, log, stream, partition)
            low, high = found.head.first, found.head.last + 1
            if found.place is None:
                return low
            entries = Entries(txn, self._tables, found.place, found.number)
            while low < high:  # ingest times never go back, so it can be searched
                middle = at = (low + high) // 2
                while at < high and (entry := entries.find(at)) is None:
                    at += 1  # a row that is damaged
                if at < high and entry is not None and entry.ingest_ns < ingest_ns:
                    low = at + 1
                else:
                    high = middle
            return low

        return self._database.read(work)

    def _page(
        self,
        txn: Txn,
        at: LogAt,
        after_seq: int,
        limit: int,
        minus: Mapping[int, int],
        match: Match | None,
    ) -> LogPage:
        head = LogHead(at.head.first, at.head.last)
        rows: list[Row] = []
        if at.place is None or after_seq >= head.last:
            return LogPage(rows, after_seq, head)
        damaged: list[DamagedRow] = []
        size_bytes, through, place = 0, after_seq, at.place
        entries = Entries(txn, self._tables, place, at.number)
        config, get, messages = self._config, txn.get, self._tables.messages
        for seq, entry in entries.after(after_seq):
            if seq > through + 1:
                end = min(seq, head.last + 1)
                most = limit - len(rows)
                through = self._missing(entries, place, through, end, most, damaged)
                if through + 1 < seq or seq > head.last or len(damaged) >= most:
                    break
            through = seq
            key = place + entry.tail
            if (match is None or match(key)) and not (minus and self._is_in(txn, key, minus)):
                signed = None
                if not entry.variant:
                    try:
                        message = read_message(key, get(key, db=messages))
                    except Rotten:
                        pass
                    else:
                        if message.seq == seq or seq > entries.own_upto:
                            signed = message.signed
                if signed is None:
                    signed = self._signed(txn, entries, place, seq, entry)
                id = id_of(at.stream, at.partition, entry.tail)
                if signed is None:
                    damaged.append(DamagedRow(seq, entry.ingest_ns, id, entry.lost))
                else:
                    rows.append(Row(id, seq, entry.ingest_ns, signed))
                    size_bytes += len(signed)
            if (
                through == head.last
                or len(rows) + len(damaged) >= limit
                or size_bytes >= config.page_bytes_max
                or through - after_seq >= config.scan_rows_max
            ):
                break
        else:
            through = self._missing(
                entries, place, through, head.last + 1, limit - len(rows), damaged
            )
        return LogPage(rows, through, head, tuple(damaged))

    def _missing(
        self,
        entries: Entries,
        place: Place,
        through: int,
        end: int,
        limit: int,
        damaged: list[DamagedRow],
    ) -> int:
        """Rows after a seq and before another are not there, as they have to be: they are damaged.
        How far that was noted."""
        for seq in range(through + 1, end):
            if len(damaged) >= limit:
                return seq - 1
            self._database.damage.note(place, seq if seq <= entries.own_upto else 0)
            damaged.append(DamagedRow(seq, 0, None))
        return max(through, end - 1)

    def _signed(
        self, txn: Txn, entries: Entries, place: Place, seq: int, entry: Entry
    ) -> bytes | None:
        """The bytes of a row; None if they are not as they were written, which is noted."""
        damage, tables = self._database.damage, self._tables
        if entry.variant:
            raw = txn.get(entry_key(entries.number, place, seq), db=tables.variants)
            signed = read_variant(raw)
            if signed is None:
                damage.note(place, 0)
            return signed
        key = place + entry.tail
        value = txn.get(key, db=tables.messages)
        try:
            message = read_message(key, value)
        except Rotten:
            if seq <= entries.own_upto:
                damage.note(place, seq, key)
            elif value is not None or not entry.lost:
                damage.note_message(txn, tables, key)
            return None
        if seq <= entries.own_upto and message.seq != seq:
            again = entries.find(message.seq)
            if again is None or again.tail != entry.tail:  # not one that came again
                damage.note(place, seq)
                return None
        return message.signed

    def _minus(self, txn: Txn, at: LogAt, minus: Mapping[LogId, int]) -> dict[int, int]:
        """Log number -> seq; NotFound if what is to be left out is not known here."""
        numbers: dict[int, int] = {}
        for log, seq in minus.items():
            other = self.find(txn, log, at.stream, at.partition)
            if other.number == at.number:
                raise UsageError(f"log {log} minus itself: leave it out of `minus`")
            if other.head.last < seq:
                raise NotFound(
                    f"the rows of log {log} up to {seq} are to be left out, but it is held here up"
                    f" to {other.head.last} only: ask another storage node, or wait for this one"
                )
            numbers[other.number] = seq
        if at.place is not None:  # rows that closed logs share are found by their seqs here
            for closed in closed_at(txn, self._tables, at.place):
                shared = min(numbers.get(closed.number, 0), closed.last)
                if shared:
                    numbers[OWN] = max(numbers.get(OWN, 0), shared)
        return numbers

    def _is_in(self, txn: Txn, key: bytes, minus: Mapping[int, int]) -> bool:
        """Whether a message is in one of these logs, up to its seq."""
        if OWN in minus:
            try:
                message = read_message(key, txn.get(key, db=self._tables.messages))
            except Rotten:
                return False  # it is told as damaged, whoever has it
            if message.seq <= minus[OWN]:
                return True
        return any(
            seq <= minus.get(number, 0) for number, seq in holders_of(txn, self._tables, key)
        )


class Closed(NamedTuple):
    """A log at one place that was the own one."""

    number: int
    last: int
    """Its rows up to this one are those of the own log."""
    until_ns: int


def closed_at(txn: Txn, tables: Tables, place: Place) -> list[Closed]:
    """The logs that were the own one, the oldest first: each got its number when it was closed."""
    found = []
    with txn.cursor(tables.closed) as cursor:
        more = cursor.set_range(place)
        while more and cursor.key().startswith(place):
            found.append(Closed(split_head_key(cursor.key())[1], *read_closed(cursor.value())))
            more = cursor.next()
    return found


class Entries:
    """The rows of one log at one place, wherever they are kept."""

    def __init__(self, txn: Txn, tables: Tables, place: Place, number: int) -> None:
        self._txn = txn
        self._table = tables.entries
        self._place = place
        self.number = number
        closed = closed_at(txn, tables, place)
        self.shared = next((log.last for log in closed if log.number == number), 0)
        """Rows up to this one are kept as rows of the own log."""
        self.own_upto = INT63_MAX if number == OWN else self.shared
        """The same; of the own log, all of them."""
        older = [log for log in closed if number == OWN or log.number < number]
        # What a log has of an older one came in when that was closed, at the latest.
        self._caps = older if number == OWN or self.shared else []
        self._capped = max((log.last for log in self._caps), default=0)

    def find(self, seq: int) -> Entry | None:
        """The row with this seq, available or not."""
        number = OWN if seq <= self.shared else self.number
        raw = self._txn.get(entry_key(number, self._place, seq), db=self._table)
        return None if raw is None else self._read(seq, raw)

    def whole(self, seq: int, last: int) -> Iterator[tuple[int, Entry | None]]:
        """Every seq after this one, up to the last; None where the row is not there, as it has to
        be."""
        for at, entry in self.after(seq):
            if at > last:
                break
            for missing in range(seq + 1, at):
                yield missing, None
            yield at, entry
            seq = at
        for missing in range(seq + 1, last + 1):
            yield missing, None

    def after(self, seq: int) -> Iterator[tuple[int, Entry]]:
        """Rows after this seq, with their seqs: those that are kept."""
        if self.shared and seq < self.shared:
            for at, entry in self._kept(OWN, seq):
                if at > self.shared:
                    break
                yield at, entry
        yield from self._kept(self.number, max(seq, self.shared))

    def ingest_ns(self, seq: int, kept_ns: int) -> int:
        """When a row came in, in this log."""
        if seq > self._capped:
            return kept_ns
        return min([kept_ns, *(log.until_ns for log in self._caps if seq <= log.last)])

    def _kept(self, number: int, seq: int) -> Iterator[tuple[int, Entry]]:
        end, capped = entry_key(number, self._place, INT64_MAX), self._capped
        with self._txn.cursor(self._table) as cursor:
            if cursor.set_range(entry_key(number, self._place, seq + 1)):
                for key, value in cursor.iternext():
                    if key > end:
                        return
                    at = seq_of(key)
                    yield at, read_entry(value) if at > capped else self._read(at, value)

    def _read(self, seq: int, raw: bytes) -> Entry:
        entry = read_entry(raw)
        if seq > self._capped:
            return entry
        return msgspec.structs.replace(entry, ingest_ns=self.ingest_ns(seq, entry.ingest_ns))


def check_available(at: LogAt, after_seq: int) -> None:
    """OffsetExpired if rows after this seq are gone."""
    if not 0 <= after_seq <= INT63_MAX:
        raise UsageError(f"after seq {after_seq}: they begin at 1, so 0 is before all of them")
    if after_seq + 1 < at.head.first:
        raise OffsetExpired(
            f"log {at.log} at {at.stream!r}, partition {at.partition}, is available from seq"
            f" {at.head.first} to {at.head.last}: what comes after {after_seq} has expired",
            first_seq=at.head.first,
            last_seq=at.head.last,
        )


def heads_at(txn: Txn, tables: Tables, place: Place) -> Iterator[tuple[int, Head]]:
    """Number and head of every log at a place."""
    for _, number, head in heads_from(txn, tables, place):
        yield number, head


def heads_from(txn: Txn, tables: Tables, prefix: bytes) -> Iterator[tuple[Place, int, Head]]:
    """Place, number and head of every log at the places that begin so."""
    with txn.cursor(tables.heads) as cursor:
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            place, number = split_head_key(cursor.key())
            yield place, number, read_head(cursor.value())
            found = cursor.next()


def holders_of(txn: Txn, tables: Tables, key: bytes) -> list[tuple[int, int]]:
    """(log number, seq) in each replica that has this message."""
    with txn.cursor(tables.holders) as cursor:
        if not cursor.set_key(key):
            return []
        return [read_holder(value) for value in cursor.iternext_dup()]
