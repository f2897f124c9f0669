"""A whole store, read row by row: what is damaged, and what of it can be put right without others.

Every row of every log is read, page by page in transactions of their own, so that a store that is
in use is not held up; every signature is checked. What is wrong is noted in the store's `damage`,
from where the other storage nodes are asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from shoal.base.errors import InvariantViolated, MalformedMessage, OffsetExpired
from shoal.base.ids import StreamId
from shoal.identity import verify_signed
from shoal.protocols.streams.history.log_entries import read_kept
from shoal.storage.lmdb_file import Txn
from shoal.storage.message_store.damage import own_seq
from shoal.storage.message_store.database import Database
from shoal.storage.message_store.layout import (
    OWN,
    PLACE_BYTES,
    SEQ_BYTES,
    Head,
    Place,
    Rotten,
    Tables,
    end_of,
    entry_key,
    entry_value,
    head_key,
    head_value,
    holder_value,
    read_entry,
    read_head,
    read_message,
    read_variant,
    seq_of,
    split_head_key,
)
from shoal.storage.message_store.logs import Entries, heads_from, holders_of
from shoal.storage.message_store.store_types import LogId

if TYPE_CHECKING:
    from shoal.storage.message_store.store import Store

PAGE_ROWS = 1_000
LISTED_MAX = 10_000
"""Damaged rows that are listed one by one, and fetched by one `repair`: as many as are noted."""

Tell = Callable[["Checked"], None]


class BadRow(msgspec.Struct, frozen=True):
    """A row that is not as it was written."""

    stream: StreamId
    partition: int
    log: LogId
    seq: int
    problem: str
    own: bool = True


class Checked(msgspec.Struct):
    """What was read so far, and what was found."""

    total: int = 0
    """Rows that there are to read."""
    rows: int = 0
    """Rows that were read, of all logs."""
    damaged: int = 0
    lost: int = 0
    """Rows of other nodes' logs that those could not read either."""
    unnamed: int = 0
    """Messages that no row names."""
    bad: list[BadRow] = []

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.rows:,} of {self.total:,} rows, {self.damaged:,} damaged"

    @property
    def fraction(self) -> float:
        """The part that is done."""
        return self.rows / self.total if self.total else 0.0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damaged and not self.unnamed


def check_store(store: Store, tell: Tell) -> Checked:
    """Read everything."""
    checked = Checked(bad=[])
    places = store.places()
    for stream, partition in places:
        heads = store.heads(stream, partition)
        checked.total += sum(head.last + 1 - head.first for head in heads.values())
    for stream, partition in places:
        for log, head in store.heads(stream, partition).items():
            _check_log(store, stream, partition, log, head.first - 1, checked, tell)
    checked.unnamed = store.unnamed()
    tell(checked)
    return checked


def newest_rows(store: Store, most: int) -> tuple[int, int]:
    """How many of the newest rows of the own log were read, at all places in turn, and how many of
    them are damaged."""
    places, rows, damaged = store.places(), 0, 0
    for number, (stream, partition) in enumerate(places):
        share = min(PAGE_ROWS, max(1, (most - rows) // (len(places) - number)))
        head = store.heads(stream, partition)[store.log]
        try:
            after = max(head.first - 1, head.last - share)
            page = store.log_read(store.log, stream, partition, after, share)
        except OffsetExpired:
            continue
        rows += page.through - after
        damaged += len(page.damaged)
        if rows >= most:
            break
    return rows, damaged


def _check_log(
    store: Store,
    stream: StreamId,
    partition: int,
    log: LogId,
    after: int,
    checked: Checked,
    tell: Tell,
) -> None:
    own = log == store.log

    def bad(seq: int, problem: str) -> None:
        checked.damaged += 1
        if len(checked.bad) < LISTED_MAX:
            checked.bad.append(BadRow(stream, partition, log, seq, problem, own))

    while True:
        try:
            page = store.log_read(log, stream, partition, after, PAGE_ROWS)
        except OffsetExpired as error:  # retention of a node that runs
            checked.rows += error.first_seq - 1 - after
            after = error.first_seq - 1
            continue
        for row in page.rows:
            # The messages of a replica are those of the own log, where they are checked.
            if own and not _is_signed(stream, row.signed):
                store.unread(stream, partition, row.seq)
                bad(row.seq, "its signature is not that of its publisher")
        for lost in page.damaged:
            if lost.lost:
                checked.lost += 1
            elif lost.id is None:
                bad(lost.seq, "it is not there")
            else:
                bad(lost.seq, "it is not as it was written")
        checked.rows += page.through - after
        tell(checked)
        after = page.through
        if page.through >= page.head.last:
            return


def _is_signed(stream: StreamId, signed: bytes) -> bool:
    try:
        kept = read_kept(stream, signed)
    except MalformedMessage:
        return False
    return all(verify_signed(claim.signer, claim.signed) for claim in kept.claims)


# What can be put right without others


def put_right(database: Database) -> int:
    """Make the rows of the own log say again what the messages say, drop what no row can name, and
    cut replicas before rows that are damaged: the rest of them is copied again. Says how many rows
    and messages were changed. Nobody else may use the store meanwhile."""
    places = database.read(
        lambda txn: list(dict.fromkeys(at for at, _, _ in heads_from(txn, database.tables, b"")))
    )
    return sum(
        _own_rows(database, place) + _own_keys(database, place) + _replicas(database, place)
        for place in places
    )


def _own_rows(database: Database, place: Place) -> int:
    """Every message that can be read has its row."""
    changed, start = 0, bytes(place)
    while start < end_of(place):
        changes, start = database.write(_own_page, database, place, start)
        changed += changes
    return changed


def _own_page(txn: Txn, database: Database, place: Place, start: bytes) -> tuple[int, bytes]:
    tables, end, changed = database.tables, end_of(place), 0
    head = read_head(txn.get(head_key(place, OWN), db=tables.heads))
    last, gone = head.last, list[bytes]()
    with txn.cursor(tables.messages) as cursor:
        found, seen = cursor.set_range(start), 0
        while found and cursor.key() < end and seen < PAGE_ROWS:
            key, value = cursor.item()
            seen += 1
            found = cursor.next()
            try:
                message = read_message(key, value)
            except Rotten:
                if not own_seq(txn, tables, key):
                    gone.append(key)
                continue
            if message.seq < head.first:
                gone.append(key)
                continue
            row = entry_key(OWN, place, message.seq)
            whole = entry_value(message.ingest_ns, False, key[PLACE_BYTES:])
            if txn.get(row, db=tables.entries) != whole:
                txn.put(row, whole, db=tables.entries)
                changed += 1
            last = max(last, message.seq)
        after = cursor.key() if found else end
    for key in gone:
        txn.delete(key, db=tables.messages)
        txn.delete(key, db=tables.holders)
    if last > head.last:
        txn.put(head_key(place, OWN), head_value(head._replace(last=last)), db=tables.heads)
    return changed + len(gone), min(after, end)


def _own_keys(database: Database, place: Place) -> int:
    """No row has a seq that was never given."""

    def work(txn: Txn) -> int:
        tables = database.tables
        head = read_head(txn.get(head_key(place, OWN), db=tables.heads))
        wrong = _seqs(txn, database, place, 0, head.first)
        wrong += _seqs(txn, database, place, head.last + 1, 2**64 - 1)
        for seq in wrong:
            txn.delete(entry_key(OWN, place, seq), db=tables.entries)
        return len(wrong)

    return database.write(work)


def _seqs(txn: Txn, database: Database, place: Place, begin: int, end: int) -> list[int]:
    prefix = entry_key(OWN, place, 0)[:-SEQ_BYTES]
    found = []
    with txn.cursor(database.tables.entries) as cursor:
        more = cursor.set_range(entry_key(OWN, place, begin))
        while more and cursor.key().startswith(prefix) and seq_of(cursor.key()) < end:
            found.append(seq_of(cursor.key()))
            more = cursor.next()
    return found


def _replicas(database: Database, place: Place) -> int:
    """Rows of other logs name messages that are there, up to the last."""

    def work(txn: Txn) -> int:
        tables, changed = database.tables, 0
        for at, number, head in list(heads_from(txn, tables, place)):
            if number == OWN:
                continue
            entries = Entries(txn, tables, at, number)
            begin = max(head.first - 1, entries.shared)
            for seq, entry in entries.whole(begin, head.last):
                if entry is not None and (entry.lost or _is_there(txn, database, at, number, seq)):
                    continue
                changed += _cut(txn, database, at, number, seq, head)
                break
        return changed

    return database.write(work)


def _is_there(txn: Txn, database: Database, place: Place, number: int, seq: int) -> bool:
    """Whether a row of a replica has its message, or variant; a damaged message is for the own log
    to mend."""
    tables = database.tables
    entry = read_entry(txn.get(entry_key(number, place, seq), b"", db=tables.entries))
    if entry.variant:
        return read_variant(txn.get(entry_key(number, place, seq), db=tables.variants)) is not None
    return txn.get(place + entry.tail, db=tables.messages) is not None


def _cut(txn: Txn, database: Database, place: Place, number: int, seq: int, head: Head) -> int:
    """A replica ends before this row."""
    tables, cut = database.tables, 0
    prefix = entry_key(number, place, 0)[:-SEQ_BYTES]
    with txn.cursor(tables.entries) as cursor:
        more = cursor.set_range(entry_key(number, place, seq))
        while more and cursor.key().startswith(prefix):
            at, entry = seq_of(cursor.key()), read_entry(cursor.value())
            txn.delete(place + entry.tail, holder_value(number, at), db=tables.holders)
            txn.delete(entry_key(number, place, at), db=tables.variants)
            cut += 1
            more = cursor.delete()
    newest = Entries(txn, tables, place, number).find(seq - 1) if seq > 1 else None
    ingest_ns = 0 if newest is None else newest.ingest_ns
    left = head._replace(last=seq - 1, first=min(head.first, seq), ingest_ns=ingest_ns)
    txn.put(head_key(place, number), head_value(left), db=tables.heads)
    return max(cut, 1)


# Everything that must be true of a store, checked against everything in it.
#
# Reads all of it in one transaction: for tests, campaigns and doubt, not for every day.


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
