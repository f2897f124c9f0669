"""Numbers in place of long names, given at first sight and never reused.

A stream of which nothing is held, since retention has let go of all of it, may be forgotten when
there is little room for others. Its next row has another number, and its seq is above all that were
ever given to a stream that was forgotten: an offset never names two messages.
"""

from __future__ import annotations

import hashlib
import struct
from itertools import islice
from uuid import UUID

from shoal.base.errors import UsageError
from shoal.base.ids import KEYS_PARTITION, STREAM_ID_CHARS_MAX, StreamId
from shoal.storage.config import StoreConfig
from shoal.storage.layout import (
    LOG,
    OWN,
    Head,
    Place,
    Table,
    Tables,
    Txn,
    entry_key,
    number_bytes,
    number_of,
    place_of,
    read_head,
    split_head_key,
    split_place,
)
from shoal.storage.rows import LogId

FORGOTTEN = b"forgotten"  # in `meta`
SEQ_BYTES = 8
_FLOORS = struct.Struct(">QI")


class Names:
    """Streams and logs by number. Nothing is remembered outside the tables: what a transaction
    that failed has numbered never was."""

    def __init__(self, tables: Tables, config: StoreConfig) -> None:
        self._tables = tables
        self._config = config
        self._looked_at = -1  # stream numbers up to here, for empty ones: a hint

    def place(self, txn: Txn, stream: StreamId, partition: int) -> Place | None:
        """The place, if anything was ever stored there."""
        _check_partition(partition)
        raw = txn.get(_stream_key(stream), db=self._tables.stream_numbers)
        return None if raw is None else place_of(number_of(raw), partition)

    def place_or_new(self, txn: Txn, stream: StreamId, partition: int) -> Place:
        """The place, with a new number if its stream has none."""
        place = self.place(txn, stream, partition)
        if place is not None:
            return place
        number = _next_number(
            txn,
            self._tables.stream_names,
            self._config.streams_max,
            f"stream {stream!r}",
            self._floors(txn)[1],
        )
        txn.put(number_bytes(number), stream.encode(), db=self._tables.stream_names)
        txn.put(_stream_key(stream), number_bytes(number), db=self._tables.stream_numbers)
        return place_of(number, partition)

    def stream_of(self, txn: Txn, place: Place) -> tuple[StreamId, int]:
        """Stream and partition of a place."""
        number, partition = split_place(place)
        raw = txn.get(number_bytes(number), b"", db=self._tables.stream_names)
        return StreamId(raw.decode()), partition

    def seq_floor(self, txn: Txn) -> int:
        """Seqs up to this one were given in streams that are forgotten."""
        return self._floors(txn)[0]

    def _floors(self, txn: Txn) -> tuple[int, int]:
        """What was given and is forgotten: seqs up to the first, numbers below the second."""
        raw = txn.get(FORGOTTEN, db=self._tables.meta)
        return (0, 0) if raw is None else _FLOORS.unpack(raw)

    def forget_empty(self, txn: Txn, streams_max: int) -> list[StreamId]:
        """Look at so many streams, from where the last look ended, and forget the empty ones."""
        names = self.after(txn, self._looked_at, streams_max)
        self._looked_at = names[-1][0] if len(names) == streams_max else -1
        forgotten: list[StreamId] = []
        seq_floor, number_floor = self._floors(txn)
        for number, stream in names:
            last = self._last_of_empty(txn, number)
            if last is None:
                continue
            seq_floor, number_floor = max(seq_floor, last), max(number_floor, number + 1)
            self._forget(txn, number, stream)
            forgotten.append(stream)
        if forgotten:
            raw = _FLOORS.pack(seq_floor, number_floor)
            txn.put(FORGOTTEN, raw, db=self._tables.meta)
        return forgotten

    def _last_of_empty(self, txn: Txn, number: int) -> int | None:
        """The last seq of the own log that was given in a stream of which nothing is left; None if
        something is: rows, of a log that was closed as well, or leases."""
        tables, prefix = self._tables, number_bytes(number)
        for table in (tables.messages, tables.leases):
            if _begins_with(txn, table, prefix):
                return None
        last = 0
        for key, head in self._heads(txn, prefix):
            place, log = split_head_key(key)
            if _begins_with(txn, tables.entries, entry_key(log, place, 0)[:-SEQ_BYTES]):
                return None
            last = max(last, head.last if log == OWN else 0)
        return last

    def _heads(self, txn: Txn, prefix: bytes) -> list[tuple[bytes, Head]]:
        found: list[tuple[bytes, Head]] = []
        with txn.cursor(self._tables.heads) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        break
                    found.append((key, read_head(value)))
        return found

    def _forget(self, txn: Txn, number: int, stream: StreamId) -> None:
        for key, _ in self._heads(txn, number_bytes(number)):
            txn.delete(key, db=self._tables.heads)
            txn.delete(key, db=self._tables.closed)
        txn.delete(number_bytes(number), db=self._tables.stream_names)
        txn.delete(_stream_key(stream), db=self._tables.stream_numbers)

    def after(self, txn: Txn, number: int, limit: int) -> list[tuple[int, StreamId]]:
        """The next streams after a number, in the order in which they were first seen."""
        found: list[tuple[int, StreamId]] = []
        with txn.cursor(self._tables.stream_names) as cursor:
            if not cursor.set_range(number_bytes(number + 1)):
                return found
            for key, name in islice(cursor.iternext(), limit):
                found.append((number_of(key), StreamId(name.decode())))
        return found

    def log(self, txn: Txn, log: LogId) -> int | None:
        """A log's number, if any of it was ever here."""
        raw = txn.get(log.bytes, db=self._tables.log_numbers)
        return None if raw is None else number_of(raw)

    def log_or_new(self, txn: Txn, log: LogId) -> int:
        """A log's number, new if it has none."""
        number = self.log(txn, log)
        if number is None:
            number = _next_number(txn, self._tables.log_ids, self._config.logs_max, f"log {log}")
            txn.put(number_bytes(number), log.bytes, db=self._tables.log_ids)
            txn.put(log.bytes, number_bytes(number), db=self._tables.log_numbers)
        return number

    def rename_own(self, txn: Txn, log: LogId, forgotten: LogId | None) -> int:
        """Number 0 is this log from now on. The number that the old one has got: under its own id,
        or, if it is to be forgotten, under one that nobody knows."""
        tables, own = self._tables, number_bytes(OWN)
        old = txn.get(own, b"", db=tables.log_ids)
        txn.put(LOG, log.bytes, db=tables.meta)
        txn.put(own, log.bytes, db=tables.log_ids)
        txn.put(log.bytes, own, db=tables.log_numbers)
        txn.delete(old, db=tables.log_numbers)
        return self.log_or_new(txn, forgotten or UUID(bytes=old))

    def log_of(self, txn: Txn, number: int) -> LogId:
        """And back."""
        return UUID(bytes=txn.get(number_bytes(number), b"", db=self._tables.log_ids))


def _stream_key(stream: StreamId) -> bytes:
    if not 0 < len(stream) <= STREAM_ID_CHARS_MAX:
        raise UsageError(
            f"a stream id has 1 to {STREAM_ID_CHARS_MAX} characters, this one has {len(stream)}"
        )
    try:
        return hashlib.sha256(stream.encode()).digest()
    except UnicodeEncodeError:
        raise UsageError(f"stream id {stream!r} holds half a character: write it anew") from None


def _check_partition(partition: int) -> None:
    if not 0 <= partition <= KEYS_PARTITION:
        raise UsageError(f"partition {partition}: choose one of 0..{KEYS_PARTITION}")


def _next_number(txn: Txn, table: Table, most: int, name: str, floor: int = 0) -> int:
    if txn.stat(table)["entries"] >= most:
        raise UsageError(f"{name} is one more than the {most} that this store may know")
    with txn.cursor(table) as cursor:
        return max(floor, number_of(cursor.key()) + 1 if cursor.last() else 0)


def _begins_with(txn: Txn, table: Table, prefix: bytes) -> bool:
    with txn.cursor(table) as cursor:
        return cursor.set_range(prefix) and cursor.key().startswith(prefix)
