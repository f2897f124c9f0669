"""Everything that must be true of a store, checked against everything in it.

Reads all of it in one transaction: for tests, campaigns and doubt, not for every day.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.base.errors import InvariantViolated
from shoal.storage.database import Database
from shoal.storage.layout import (
    OWN,
    Head,
    Place,
    Tables,
    Txn,
    entry_key,
    read_entry,
    read_head,
    read_message,
    read_variant,
    split_head_key,
)
from shoal.storage.logs import Entries, holders_of


def audit(database: Database) -> None:
    """InvariantViolated says what is wrong; StoreDamaged if the file is."""
    problem = database.read(lambda txn: next(_Audit(txn, database.tables).problems(), None))
    if problem is not None:
        raise InvariantViolated(f"{database.file}: {problem}")


class _Audit:
    def __init__(self, txn: Txn, tables: Tables) -> None:
        self._txn = txn
        self._tables = tables

    def problems(self) -> Iterator[str]:
        own_rows = 0
        for key, value in self._txn.cursor(self._tables.heads):
            place, number = split_head_key(key)
            head = read_head(value)
            if not 1 <= head.first <= head.last + 1:
                yield f"log {number} at {place.hex()} is available from {head.first} to {head.last}"
            yield from self._log(place, number, head)
            own_rows += head.last + 1 - head.first if number == OWN else 0
        yield from self._counts(own_rows)
        yield from self._names()

    def _log(self, place: Place, number: int, head: Head) -> Iterator[str]:
        """Rows without a hole, each with its message, in the order of their ingest times."""
        newest_ns = 0
        entries = Entries(self._txn, self._tables, place, number)
        for seq in range(head.first, head.last + 1):
            where = f"row {seq} of log {number} at {place.hex()}"
            entry = entries.find(seq)
            if entry is None:
                yield f"{where} is missing"
                continue
            if not newest_ns <= entry.ingest_ns <= head.ingest_ns:
                yield f"{where} goes back in time"
            newest_ns = entry.ingest_ns
            key = place + entry.tail
            held = self._txn.get(key, db=self._tables.messages)
            if entry.lost:
                continue
            message = read_message(key, held)
            variant = self._txn.get(entry_key(number, place, seq), db=self._tables.variants)
            if entry.variant != (read_variant(variant) is not None):
                yield f"{where} should have bytes of its own, or should not"
            owned = number == OWN or seq <= entries.shared
            if not owned and (number, seq) not in holders_of(self._txn, self._tables, key):
                yield f"{where} is not known to its message"
            came_ns = entries.ingest_ns(seq, message.ingest_ns)
            if owned and (message.seq, came_ns) != (seq, entry.ingest_ns):
                yield f"{where} is row {message.seq} by its message"
            if owned and entry.variant:
                yield f"{where} has other bytes than its message"

    def _counts(self, own_rows: int) -> Iterator[str]:
        """Nothing beside what the logs name."""
        messages = self._txn.stat(self._tables.messages)["entries"]
        if messages != own_rows:
            yield f"{messages} messages, but {own_rows} rows of the own log"
        own_prefix = OWN.to_bytes(4)
        entries = sum(key.startswith(own_prefix) for key in self._keys("entries"))
        if entries != own_rows:
            yield f"{entries} rows of the own log are kept, {own_rows} are available"
        for key in self._keys("variants"):
            raw = self._txn.get(key, db=self._tables.entries)
            if raw is None or not read_entry(raw).variant:
                yield f"bytes of row {key.hex()} are kept, which has none of its own"
        for key in self._keys("holders"):
            if self._txn.get(key, db=self._tables.messages) is None:
                yield f"replicas hold message {key.hex()}, which is not here"

    def _names(self) -> Iterator[str]:
        """Names and numbers belong to each other."""
        for names, numbers in (("stream_names", "stream_numbers"), ("log_ids", "log_numbers")):
            keys = list(self._keys(names))
            counted = [number.to_bytes(4) for number in range(len(keys))]
            if names == "log_ids" and keys != counted:  # streams may be forgotten, logs never are
                yield f"{names} does not count from 0"
            back = [value for _, value in self._txn.cursor(getattr(self._tables, numbers))]
            if sorted(back) != keys:
                yield f"{numbers} is not the inverse of {names}"

    def _keys(self, table: str) -> Iterator[bytes]:
        cursor = self._txn.cursor(getattr(self._tables, table))
        return cursor.iternext(keys=True, values=False)
