"""Rows that are not as they were written: what is known of them, and how one is put right.

lmdb does not check its pages. A message has a CRC-32 over its key and all of its value; a row of
the own log and its message name each other. So a changed byte in a body, a header, a key or a row
is found when it is read. Such a row is passed over, which its reader is told; it is noted here,
counted, and asked for from the other storage nodes, which copy our log (history/sync.py). What is
found is what reads have met since the start; `shoal storage verify` reads everything.

A page of lmdb that is damaged is another thing: then the file as a whole cannot be trusted, which
the errors of lmdb_file.py and opening.py say.
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from shoal.storage.lmdb_file import Txn
from shoal.storage.message_store.layout import (
    OWN,
    PLACE_BYTES,
    SEQ_BYTES,
    Place,
    Rotten,
    Tables,
    Tail,
    entry_key,
    entry_value,
    message_value,
    read_entry,
    read_header,
    read_message,
    seq_of,
)

NOTED_MAX = 10_000
"""Damaged rows that are remembered, to be asked for: a megabyte. A file that has more is lost."""

COUNTS_TOLD = frozenset(10**power for power in range(1, 10))

log = logging.getLogger("shoal.storage")


class Broken(NamedTuple):
    """A row of the own log that cannot be read."""

    place: Place
    seq: int
    """0 if no row names what was found."""


class Damage:
    """What reads of one store have met. For several threads."""

    def __init__(self, file: str) -> None:
        self.met = 0
        """Rows that were passed over, each time one was."""
        self.mended = 0
        """Rows that were put right."""
        self._file = file
        self._noted: dict[Broken, None] = {}
        self._seqs: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._noted)

    @property
    def problem(self) -> str | None:
        """For people; None if nothing is known to be damaged."""
        count = len(self._noted)
        if not count:
            return None
        rows = "row" if count == 1 else f"rows{' or more' if count >= NOTED_MAX else ''}"
        return (
            f"{count} damaged {rows} in {self._file} cannot be read: the stream's other storage"
            " nodes are asked for what is missing; `shoal storage verify` says how many there are,"
            " and `shoal storage repair` puts them right"
        )

    def note(self, place: Place, seq: int, key: bytes | None = None) -> None:
        """A row of the own log cannot be read; the key is that of the message that it names."""
        row = Broken(place, seq)
        if key is not None and seq and len(self._seqs) < NOTED_MAX:
            self._seqs[key] = seq
        with self._lock:
            self.met += 1
            is_new = row not in self._noted and len(self._noted) < NOTED_MAX
            if is_new:
                self._noted[row] = None
            count = len(self._noted)
        if is_new and (count == 1 or count in COUNTS_TOLD):
            what = "%s: row %d of its own log is damaged (table key %s); %s"
            log.error(what, self._file, seq, place.hex(), self.problem)

    def note_message(self, txn: Txn, tables: Tables, key: bytes) -> None:
        """A message cannot be read, by whatever row it was come to."""
        seq = self._seqs.get(key)
        if seq is None:
            seq = own_seq(txn, tables, key)
            if len(self._seqs) < NOTED_MAX:
                self._seqs[key] = seq
        self.note(Place(key[:PLACE_BYTES]), seq)

    def forget(self, place: Place, seq: int) -> None:
        """The row is gone."""
        with self._lock:
            self._noted.pop(Broken(place, seq), None)

    def mend(self, place: Place, seq: int) -> None:
        """The row is as it was written again."""
        self.mended += 1
        self.forget(place, seq)

    def row_without(self, key: bytes) -> int | None:
        """The own row that names a message, if it was met, and could not be read."""
        seq = self._seqs.get(key)
        return seq if seq and self.is_noted(Place(key[:PLACE_BYTES]), seq) else None

    def is_noted(self, place: Place, seq: int) -> bool:
        """Whether a row was met that cannot be read."""
        return Broken(place, seq) in self._noted

    def next_rows(self, most: int) -> list[Broken]:
        """Rows of one place that others may have; the next time those after them."""
        with self._lock:
            named = [row for row in self._noted if row.seq]
            rows = [row for row in named if row.place == named[0].place][:most]
            for row in rows:
                self._noted[row] = self._noted.pop(row)
            return rows


def own_seq(txn: Txn, tables: Tables, key: bytes) -> int:
    """The own seq of a message that cannot be read: what its header says, if the log says the same.
    If not, the log is looked through, which takes seconds for millions of rows. 0 if no row names
    it: then its key is wrong."""
    place, tail = Place(key[:PLACE_BYTES]), key[PLACE_BYTES:]
    header = read_header(txn.get(key, db=tables.messages) or b"")
    if header is not None:
        raw = txn.get(entry_key(OWN, place, header[0]), db=tables.entries)
        if raw is not None and read_entry(raw).tail == tail:
            return header[0]
    prefix = entry_key(OWN, place, 0)[:-SEQ_BYTES]
    with txn.cursor(tables.entries) as cursor:
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            if read_entry(cursor.value()).tail == tail:
                return seq_of(cursor.key())
            found = cursor.next()
    return 0


def mend(
    txn: Txn, tables: Tables, place: Place, seq: int, tail: Tail, signed: bytes, *, exact: bool
) -> bool:
    """Put a row of the own log right, its message too. The bytes are exactly those of the row if a
    copy of our log says so; if not, the CRC that is left has to."""
    key = place + tail
    raw, value = txn.get(entry_key(OWN, place, seq), db=tables.entries), b""
    entry = None if raw is None else read_entry(raw)
    if entry is not None and entry.tail != tail:
        # The row names another message. If there is one, the row is right, and the bytes are not.
        header = read_header(txn.get(place + entry.tail, db=tables.messages) or b"")
        if header is not None and header[0] == seq:
            return False
    try:
        value = txn.get(key, db=tables.messages) or b""
        held = read_message(key, value)
    except Rotten:
        header = read_header(value)
        known = header is not None and message_value(key, *header, signed)[:20] == value[:20]
        if not (known and header is not None and header[0] == seq) and not exact:
            return False
        if known and header is not None:
            ingest_ns = header[1]
        elif entry is not None:
            ingest_ns = entry.ingest_ns
        else:
            ingest_ns = _ingest_before(txn, tables, place, seq)
        txn.put(key, message_value(key, seq, ingest_ns, signed), db=tables.messages)
    else:
        if held.seq != seq:
            return False  # this message is another row's
        ingest_ns = held.ingest_ns
        if held.signed != signed:  # what was written was not what its publisher had signed
            txn.put(key, message_value(key, seq, ingest_ns, signed), db=tables.messages)
    whole = entry_value(ingest_ns, False, tail)
    if raw != whole:
        txn.put(entry_key(OWN, place, seq), whole, db=tables.entries)
    return True


def _ingest_before(txn: Txn, tables: Tables, place: Place, seq: int) -> int:
    """The ingest time of the row before, of which nothing is left but its neighbours."""
    with txn.cursor(tables.entries) as cursor:
        begin = entry_key(OWN, place, seq)
        found = cursor.prev() if cursor.set_range(begin) else cursor.last()
        if found and cursor.key().startswith(begin[:-SEQ_BYTES]):
            return read_entry(cursor.value()).ingest_ns
    return 0
