"""Numbers in place of long names, given at first sight and never reused."""

from __future__ import annotations

import hashlib
from itertools import islice
from uuid import UUID

from shoal.base.errors import UsageError
from shoal.base.ids import KEYS_PARTITION, STREAM_ID_CHARS_MAX, StreamId
from shoal.storage.config import StoreConfig
from shoal.storage.layout import (
    LOG,
    OWN,
    Place,
    Table,
    Tables,
    Txn,
    number_bytes,
    number_of,
    place_of,
    split_place,
)
from shoal.storage.rows import LogId


class Names:
    """Streams and logs by number. Nothing is remembered outside the tables: what a transaction
    that failed has numbered never was."""

    def __init__(self, tables: Tables, config: StoreConfig) -> None:
        self._tables = tables
        self._config = config

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
            txn, self._tables.stream_names, self._config.streams_max, f"stream {stream!r}"
        )
        txn.put(number_bytes(number), stream.encode(), db=self._tables.stream_names)
        txn.put(_stream_key(stream), number_bytes(number), db=self._tables.stream_numbers)
        return place_of(number, partition)

    def stream_of(self, txn: Txn, place: Place) -> tuple[StreamId, int]:
        """Stream and partition of a place."""
        number, partition = split_place(place)
        raw = txn.get(number_bytes(number), b"", db=self._tables.stream_names)
        return StreamId(raw.decode()), partition

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


def _next_number(txn: Txn, table: Table, most: int, name: str) -> int:
    number = txn.stat(table)["entries"]
    if number >= most:
        raise UsageError(f"{name} is one more than the {most} that this store may know")
    return number
