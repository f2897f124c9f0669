"""Accepting messages: id, seq and log row in one transaction.

A message is new if its id is. The same body again is a duplicate, whoever else signed it again;
another body under the same id is a conflict, and the first one stays.
"""

from __future__ import annotations

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX, MessageId, StreamId
from shoal.identity import SIGNATURE_BYTES
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.storage.damage import Damage, mend
from shoal.storage.layout import (
    OWN,
    PLACE_BYTES,
    Head,
    Place,
    Rotten,
    Tables,
    Tail,
    Txn,
    entry_key,
    entry_value,
    head_key,
    head_value,
    message_value,
    read_head,
    read_header,
    read_message,
    tail_of,
)
from shoal.storage.names import Names
from shoal.storage.rows import Appended, Conflict, Duplicate, Stored


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
