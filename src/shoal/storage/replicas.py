"""Copies of other storage nodes' logs.

A replica is a contiguous range of rows, each naming a message that is held here too. A range may
come again, in whole or in part; it must then say the same. What lies between the rows held and
those offered cannot be skipped silently: the log would be served with a hole. If its owner has let
go of them, `advance` says so, and the rows held before are given up.

Where the owner holds another body for an id (equivocation), the replica keeps the owner's bytes
for itself: whoever reads the log, here or there, gets the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.errors import MalformedMessage, NotFound, UsageError
from shoal.base.ids import INT63_MAX, StreamId
from shoal.storage.damage import Damage
from shoal.storage.errors import LogDiverged
from shoal.storage.ingest import Ingest
from shoal.storage.layout import (
    Head,
    Place,
    Rotten,
    Tables,
    Txn,
    entry_key,
    entry_value,
    head_key,
    head_value,
    holder_value,
    read_head,
    tail_of,
    variant_value,
)
from shoal.storage.logs import Entries
from shoal.storage.names import Names
from shoal.storage.rows import Conflict, LogId, ReplicaAppended, ReplicaRow, Stored


class ReplicaIngest:
    """One transaction that appends a range to a replica."""

    def __init__(self, txn: Txn, tables: Tables, names: Names, damage: Damage, now_ns: int) -> None:
        self._txn = txn
        self._tables = tables
        self._names = names
        self._ingest = Ingest(txn, tables, names, damage, now_ns)

    def append(
        self, log: LogId, stream: StreamId, partition: int, rows: Sequence[ReplicaRow]
    ) -> ReplicaAppended:
        """Append what is new of a range; the range itself has no holes."""
        number = self._names.log_or_new(self._txn, log)
        place = self._names.place_or_new(self._txn, stream, partition)
        key = head_key(place, number)
        raw = self._txn.get(key, db=self._tables.heads)
        head = read_head(raw) if raw else Head(first=rows[0].seq, last=rows[0].seq - 1)
        if rows[0].seq > head.last + 1:
            raise UsageError(
                f"the replica of log {log} ends at {head.last}, this range begins at {rows[0].seq}:"
                f" begin at {head.last + 1}, or advance the replica if its owner has it no more"
            )
        entries = Entries(self._txn, self._tables, place, number)
        appended, stored, conflicts = 0, 0, []
        for row in rows:
            if row.seq <= head.last:
                self._check_known(log, entries, row)
                continue
            if row.ingest_ns < head.ingest_ns:
                raise MalformedMessage(f"log {log} goes back in time at seq {row.seq}")
            result = self._append_row(number, place, row)
            appended += 1
            stored += isinstance(result, Stored)
            if isinstance(result, Conflict):
                conflicts.append(result)
            head = head._replace(last=row.seq, ingest_ns=row.ingest_ns)
        self._ingest.finish()
        self._txn.put(key, head_value(head), db=self._tables.heads)
        return ReplicaAppended(appended, stored, tuple(conflicts))

    def _append_row(self, number: int, place: Place, row: ReplicaRow) -> Stored | Conflict | None:
        txn, tables = self._txn, self._tables
        tail = tail_of(row.id)
        result, variant, lost = None, None, False
        if row.message is not None:
            try:
                accepted = self._ingest.accept(row.message)
            except Rotten:
                variant = row.message.signed  # ours is damaged, and may have been another one
            else:
                result = accepted if isinstance(accepted, Stored | Conflict) else None
                variant = accepted.offered if isinstance(accepted, Conflict) else None
        elif row.lost:
            lost = True
        elif txn.get(place + tail, db=tables.messages) is None:
            raise NotFound(
                f"row {row.seq} names message {row.id}, which is not held: send it along"
            )
        key = entry_key(number, place, row.seq)
        if variant is not None:
            txn.put(key, variant_value(variant), db=tables.variants)
        value = entry_value(row.ingest_ns, variant is not None, tail, lost=lost)
        txn.put(key, value, db=tables.entries)
        if not lost:
            txn.put(place + tail, holder_value(number, row.seq), db=tables.holders)
        return result

    def _check_known(self, log: LogId, entries: Entries, row: ReplicaRow) -> None:
        """A row that the replica has, or had, must be the same one."""
        held = entries.find(row.seq)
        if held is None:
            return  # let go of since
        if held.tail != tail_of(row.id) or held.ingest_ns != row.ingest_ns:
            raise LogDiverged(
                f"log {log} has another message at seq {row.seq} than before: its node was"
                " restored from an old copy; it needs a new log (`shoal storage new-log`)"
            )


def check_range(
    own: LogId, log: LogId, stream: StreamId, partition: int, rows: Sequence[ReplicaRow]
) -> None:
    """UsageError or MalformedMessage for rows that are no range of a log at one place."""
    if log == own:
        raise UsageError(f"log {log} is our own: it grows by `append` alone")
    seq = rows[0].seq
    if not 1 <= seq <= INT63_MAX - len(rows):
        raise MalformedMessage(f"log {log} has a row {seq}: they begin at 1")
    for row in rows:
        if not 0 <= row.ingest_ns <= INT63_MAX:
            raise MalformedMessage(f"row {seq} of log {log} came in at {row.ingest_ns} ns")
        if row.seq != seq:
            raise MalformedMessage(f"log {log} lacks row {seq}: after it comes {row.seq}")
        if (row.id.stream, row.id.partition) != (stream, partition):
            raise MalformedMessage(f"row {seq} of log {log} is of another stream: {row.id}")
        if row.message is not None and row.message.id != row.id:
            raise MalformedMessage(f"row {seq} of log {log} comes with another message")
        seq += 1


def advance(txn: Txn, tables: Tables, names: Names, log: LogId, place: Place, first: int) -> bool:
    """The owner has nothing below `first`: if rows are missing up to there, give up what is held
    before them. Says whether that was so."""
    number = names.log_or_new(txn, log)
    key = head_key(place, number)
    raw = txn.get(key, db=tables.heads)
    if raw and first <= read_head(raw).last + 1:
        return False
    head = read_head(raw)._replace(first=first, last=first - 1)
    txn.put(key, head_value(head), db=tables.heads)
    return True
