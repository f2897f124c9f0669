"""Accepting messages: id, seq and log row in one transaction.

A message is new if its id is. The same body again is a duplicate, whoever else signed it again;
another body under the same id is a conflict, and the first one stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.errors import MalformedMessage, NotFound, UsageError
from shoal.base.ids import INT63_MAX, MessageId, StreamId
from shoal.identity import SIGNATURE_BYTES
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.errors import LogDiverged
from shoal.storage.lmdb_file import Txn
from shoal.storage.message_store.damage import Damage, mend
from shoal.storage.message_store.database import Names
from shoal.storage.message_store.layout import (
    OWN,
    PLACE_BYTES,
    Head,
    Place,
    Rotten,
    Tables,
    Tail,
    entry_key,
    entry_value,
    head_key,
    head_value,
    holder_value,
    message_value,
    read_head,
    read_header,
    read_message,
    tail_of,
    variant_value,
)
from shoal.storage.message_store.logs import Entries
from shoal.storage.message_store.store_types import (
    Appended,
    Conflict,
    Duplicate,
    LogId,
    ReplicaAppended,
    ReplicaRow,
    Stored,
)


class _Open:
    """A place that this transaction appends to."""

    __slots__ = ("entry", "head", "ingest_ns", "last", "place")

    def __init__(self, place: Place, head: Head, now_ns: int) -> None:
        self.place = place
        self.head = head
        self.last = head.last
        # Never backwards, whatever the clock does: a log is searched by ingest time.
        self.ingest_ns = max(now_ns, head.ingest_ns)
        self.entry = entry_value(self.ingest_ns, False, b"")
        """How all of its new rows begin."""


class Ingest:
    """One transaction's appends. Nothing is complete before `finish`."""

    def __init__(self, txn: Txn, tables: Tables, names: Names, damage: Damage, now_ns: int) -> None:
        if not 0 <= now_ns <= INT63_MAX:
            raise UsageError(f"now is {now_ns} ns: it is nanoseconds of Unix time")
        self._txn = txn
        self._tables = tables
        self._names = names
        self._damage = damage
        self._has_damage = len(damage) > 0
        self._now_ns = now_ns
        self._open: dict[tuple[StreamId, int], _Open] = {}
        self._entries: list[tuple[bytes, bytes]] = []

    def accept(self, message: VerifiedMessage) -> Appended:
        """Take one message in, if it is new."""
        id, signed = message.id, message.signed
        at = self._at(id)
        tail = tail_of(id)
        key = at.place + tail
        if self._has_damage:
            missing = self._damage.row_without(key)
            if missing is not None and self._is_mended(at.place, missing, tail, signed):
                return Duplicate(missing)
        seq = at.last + 1
        value = message_value(key, seq, at.ingest_ns, signed)
        if not self._txn.put(key, value, overwrite=False, db=self._tables.messages):
            return self._known(key, signed)
        at.last = seq
        self._entries.append((entry_key(OWN, at.place, seq), at.entry + tail))
        return Stored(seq)

    def finish(self) -> None:
        """Write what is written once per transaction: log rows and heads."""
        txn, tables = self._txn, self._tables
        with txn.cursor(tables.entries) as cursor:
            cursor.putmulti(self._entries)
        for at in self._open.values():
            if at.last > at.head.last:
                head = at.head._replace(last=at.last, ingest_ns=at.ingest_ns)
                txn.put(head_key(at.place, OWN), head_value(head), db=tables.heads)

    def _at(self, id: MessageId) -> _Open:
        at = self._open.get((id.stream, id.partition))
        if at is None:
            place = self._names.place_or_new(self._txn, id.stream, id.partition)
            raw = self._txn.get(head_key(place, OWN), db=self._tables.heads)
            head = read_head(raw)
            if raw is None:
                floor = self._names.seq_floor(self._txn)
                head = head._replace(first=floor + 1, last=floor)
            at = self._open[id.stream, id.partition] = _Open(place, head, self._now_ns)
        return at

    def _known(self, key: bytes, signed: bytes) -> Appended:
        raw = self._txn.get(key, db=self._tables.messages)
        try:
            held = read_message(key, raw)
        except Rotten:
            return self._mended(key, raw or b"", signed)
        if held.signed[SIGNATURE_BYTES:] == signed[SIGNATURE_BYTES:]:
            return Duplicate(held.seq)
        return Conflict(held.seq, held.signed, signed)

    def _is_mended(self, place: Place, seq: int, tail: Tail, signed: bytes) -> bool:
        """A row that was met lacks its message: it is this one, and not a new one."""
        if self._txn.get(place + tail, db=self._tables.messages) is not None:
            return False  # it is damaged, but there
        if not mend(self._txn, self._tables, place, seq, tail, signed, exact=True):
            return False
        self._damage.mend(place, seq)
        return True

    def _mended(self, key: bytes, raw: bytes, signed: bytes) -> Appended:
        """What is held is damaged. If these are its bytes, its CRC says so, and it is put right; if
        not, Rotten: nothing else can tell a copy from another message under the same id."""
        place, tail, header = Place(key[:PLACE_BYTES]), Tail(key[PLACE_BYTES:]), read_header(raw)
        if header is None or not mend(
            self._txn, self._tables, place, header[0], tail, signed, exact=False
        ):
            raise Rotten(key)
        self._damage.mend(place, header[0])
        return Duplicate(header[0])


# Copies of other storage nodes' logs.
#
# A replica is a contiguous range of rows, each naming a message that is held here too. A range may
# come again, in whole or in part; it must then say the same. What lies between the rows held and
# those offered cannot be skipped silently: the log would be served with a hole. If its owner has
# let go of them, `advance` says so, and the rows held before are given up.
#
# Where the owner holds another body for an id (equivocation), the replica keeps the owner's bytes
# for itself: whoever reads the log, here or there, gets the same rows.


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
