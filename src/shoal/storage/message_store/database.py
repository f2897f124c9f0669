"""The lmdb file of a store of messages: its tables, and the id of its own log."""

from __future__ import annotations

import hashlib
import struct
from itertools import islice
from pathlib import Path
from uuid import UUID

import lmdb
import lmdb.verify

from shoal.base.errors import UsageError
from shoal.base.ids import KEYS_PARTITION, STREAM_ID_CHARS_MAX, StreamId
from shoal.identity import Entropy
from shoal.storage.config import StoreConfig
from shoal.storage.errors import RowDamaged, StoreDamaged, StoreError, StoreFormatUnknown, StoreGone
from shoal.storage.lmdb_file import LmdbFile, Table, Txn, data_file, holds_something
from shoal.storage.message_store.damage import Damage
from shoal.storage.message_store.layout import (
    LOG,
    OWN,
    STORE_FORMAT,
    Head,
    Place,
    Rotten,
    Tables,
    entry_key,
    number_bytes,
    number_of,
    place_of,
    read_head,
    split_head_key,
    split_place,
)
from shoal.storage.message_store.store_types import LogId

_FORMAT = b"format"

_LOG_BYTES = 16


class Database(LmdbFile):
    """The file of a store, open in this process and in no other."""

    def __init__(
        self,
        folder: Path,
        entropy: Entropy,
        config: StoreConfig,
        *,
        may_create: bool = True,
        readonly: bool = False,
    ) -> None:
        """Open it, or make it if it may be made; StoreError of some kind if that cannot be."""
        if not may_create and not holds_something(folder):
            raise StoreGone(f"there is no store in {folder}")
        self._entropy = entropy
        self.damage = Damage(str(data_file(folder)))
        self._readonly = readonly
        super().__init__(folder, config, readonly=readonly)
        self._page_bytes = self._environment.stat()["psize"]

    def _open_tables(self, environment: lmdb.Environment) -> None:
        self.tables, log = open_tables(
            environment, self.file, self._entropy, readonly=self._readonly
        )
        self.log = UUID(bytes=log)

    def new_log_id(self) -> UUID:
        """The id of a log that was never heard of here. Entropy that is seeded, as in tests, gives
        the same again."""
        while True:
            log = new_log_id(self._entropy)
            if self.read(lambda txn, id: txn.get(id, db=self.tables.log_numbers), log) is None:
                return UUID(bytes=log)

    def file_bytes(self) -> int:
        """Of the whole file."""
        try:
            return self.file.stat().st_size
        except OSError as error:
            raise StoreGone(f"{self.file} is not there any more: {error.strerror}") from error

    def size_bytes(self, txn: Txn) -> int:
        """Pages in use. The file may be larger: pages that were freed wait in it for reuse."""
        pages = 0
        for table in self.tables:
            stat = txn.stat(table)
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * self._page_bytes

    _errors = (lmdb.Error, Rotten)

    def _named(self, error: Exception) -> StoreError:
        if isinstance(error, Rotten):
            return RowDamaged(
                f"{self.file} holds a message that is not as it was written, {error}: run"
                " `shoal storage repair`, or restore a copy"
            )
        return super()._named(error)


# Numbers in place of long names, given at first sight and never reused.
#
# A stream of which nothing is held, since retention has let go of all of it, may be forgotten when
# there is little room for others. Its next row has another number, and its seq is above all that
# were ever given to a stream that was forgotten: an offset never names two messages.


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


def open_tables(
    environment: lmdb.Environment, file: Path, entropy: Entropy, *, readonly: bool = False
) -> tuple[Tables, bytes]:
    """The tables and the own log's id; made now, all or none, if the file is new."""
    with environment.begin() as txn:
        is_new = txn.stat()["entries"] == 0
    if not is_new or readonly:
        _check_format(environment, file)
    if readonly:
        tables = Tables(*(environment.open_db(n.encode(), create=False) for n in Tables._fields))
        with environment.begin() as txn:
            return tables, _log_of(txn, tables, file)
    # Handles last only if their transaction commits, which for lmdb a read does not.
    with environment.begin(write=True) as txn:
        tables = Tables(*(_open_table(environment, txn, name, is_new) for name in Tables._fields))
        if is_new:
            log = new_log_id(entropy)
            txn.put(_FORMAT, number_bytes(STORE_FORMAT), db=tables.meta)
            txn.put(LOG, log, db=tables.meta)
            txn.put(number_bytes(OWN), log, db=tables.log_ids)
            txn.put(log, number_bytes(OWN), db=tables.log_numbers)
        return tables, _log_of(txn, tables, file)


def _log_of(txn: Txn, tables: Tables, file: Path) -> bytes:
    found = txn.get(LOG, db=tables.meta)
    if found is None or len(found) != _LOG_BYTES:
        raise StoreDamaged(f"{file} has lost the id of its log: restore a copy")
    return found


def _check_format(environment: lmdb.Environment, file: Path) -> None:
    try:
        meta = environment.open_db(Tables._fields[0].encode(), create=False)
        with environment.begin(db=meta) as txn:
            raw = txn.get(_FORMAT)
    except (lmdb.NotFoundError, lmdb.IncompatibleError):
        raw = None
    if raw is None or len(raw) != 4:
        raise StoreFormatUnknown(f"{file} is an lmdb file, but no store: name another folder")
    found = number_of(raw)
    if found > STORE_FORMAT:
        raise StoreFormatUnknown(
            f"store {file} has format {found}, this Shoal reads up to {STORE_FORMAT}: upgrade Shoal"
        )
    if found < STORE_FORMAT:
        raise StoreFormatUnknown(
            f"store {file} has format {found}, this Shoal reads {STORE_FORMAT} alone: move it away,"
            " and let another storage node fill a new one"
        )


def _open_table(environment: lmdb.Environment, txn: Txn, name: str, create: bool) -> Table:
    return environment.open_db(name.encode(), txn=txn, create=create, dupsort=name == "holders")


def new_log_id(entropy: Entropy) -> bytes:
    """The id of a log that never was."""
    return UUID(bytes=entropy.token(_LOG_BYTES), version=4).bytes
