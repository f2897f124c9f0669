"""Readers that hold retention back, each for a while.

A lease says: the rows of this log after this seq are still needed. It is kept in the database, so
that a restart of the storage node does not cost a running query its rows.

A lease keeps rows beyond their age, and `RetentionStep.blocked` says that it does. It keeps nothing
in a store that is too large: there the oldest rows go as if there were no leases, so that a leased
stream never costs another one a row. A reader that was too slow hears that its rows have expired.
"""

from __future__ import annotations

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.storage.config import StoreConfig
from shoal.storage.database import Database
from shoal.storage.layout import (
    HEAD_KEY_BYTES,
    Place,
    Tables,
    Txn,
    head_key,
    lease_value,
    read_lease,
    split_head_key,
)
from shoal.storage.logs import Logs, check_available
from shoal.storage.names import Names
from shoal.storage.rows import Lease, LogId


class Leases:
    """Leases of a whole store."""

    def __init__(self, database: Database, names: Names, logs: Logs, config: StoreConfig) -> None:
        self._database = database
        self._tables = database.tables
        self._names = names
        self._logs = logs
        self._config = config

    def take(self, lease: Lease, now_ns: int) -> None:
        """Take, renew or move a lease, durably; OffsetExpired if its rows are gone already."""
        lasts_ns = lease.expires_ns - now_ns
        if not 0 < lasts_ns <= self._config.lease_ns_max:
            raise UsageError(
                f"a lease of {lasts_ns} ns: it lasts up to {self._config.lease_ns_max} ns, and is"
                " renewed before it expires"
            )
        holder = self._holder(lease.holder)

        def work(txn: Txn) -> None:
            at = self._logs.find(txn, lease.log, lease.stream, lease.partition)
            check_available(at, lease.after_seq)
            place = at.place or self._names.place_or_new(txn, lease.stream, lease.partition)
            key = head_key(place, at.number) + holder
            is_new = txn.get(key, db=self._tables.leases) is None
            if is_new:
                self._make_room(txn, now_ns)
            value = lease_value(lease.after_seq, lease.expires_ns)
            txn.put(key, value, db=self._tables.leases)

        self._database.write(work)

    def release(self, holder: str, log: LogId, stream: StreamId, partition: int) -> bool:
        """Give a lease up; False if there was none."""
        name = self._holder(holder)

        def work(txn: Txn) -> bool:
            at = self._logs.find(txn, log, stream, partition)
            if at.place is None:
                return False
            return txn.delete(head_key(at.place, at.number) + name, db=self._tables.leases)

        return self._database.write(work)

    def all(self) -> list[Lease]:
        """Every lease, also expired ones that no step has dropped yet."""

        def work(txn: Txn) -> list[Lease]:
            found = []
            for key, value in _leases_from(txn, self._tables, b""):
                place, number = split_head_key(key[:HEAD_KEY_BYTES])
                stream, partition = self._names.stream_of(txn, place)
                after_seq, expires_ns = read_lease(value)
                log, holder = self._names.log_of(txn, number), key[HEAD_KEY_BYTES:].decode()
                found.append(Lease(holder, log, stream, partition, after_seq, expires_ns))
            return found

        return self._database.read(work)

    def _make_room(self, txn: Txn, now_ns: int) -> None:
        table, most = self._tables.leases, self._config.leases_max
        if txn.stat(table)["entries"] < most:
            return
        for key, value in _leases_from(txn, self._tables, b""):
            if read_lease(value)[1] <= now_ns:
                txn.delete(key, db=table)
        if txn.stat(table)["entries"] >= most:
            raise UsageError(f"all {most} leases are taken: let readers release theirs")

    def _holder(self, holder: str) -> bytes:
        if not 0 < len(holder) <= self._config.holder_chars_max:
            raise UsageError(
                f"a lease's holder has 1 to {self._config.holder_chars_max} characters,"
                f" not {len(holder)}"
            )
        return holder.encode()


def leased_after(
    txn: Txn, tables: Tables, place: Place, now_ns: int, most_ns: int | None = None
) -> dict[int, int]:
    """Log number -> the lowest seq after which rows are still needed at this place. Drops leases
    that have expired, and those that would last beyond a time up to which none can."""
    lowest: dict[int, int] = {}
    for key, value in _leases_from(txn, tables, place):
        after_seq, expires_ns = read_lease(value)
        if expires_ns <= now_ns or (most_ns is not None and expires_ns > most_ns):
            txn.delete(key, db=tables.leases)
            continue
        number = split_head_key(key[:HEAD_KEY_BYTES])[1]
        lowest[number] = min(after_seq, lowest.get(number, after_seq))
    return lowest


def _leases_from(txn: Txn, tables: Tables, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of the leases at a place, or of all."""
    found = []
    with txn.cursor(tables.leases) as cursor:
        if cursor.set_range(prefix):
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    break
                found.append((key, value))
    return found
