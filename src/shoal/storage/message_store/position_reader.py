"""Messages by position: last, range, by id.

What is asked for may be long and its reader slow. So a read is an iterator of pages, each from a
read transaction of its own that has ended when the page is out: a slow reader holds no page of the
file back. A page may be empty, where a filter found nothing in one transaction's work: the reader
asks for the next. Messages that come in meanwhile are seen if they lie ahead; those that retention
removes are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shoal.base.ids import INT63_MAX, MessageId, NodeId, StreamId
from shoal.identity.message_body import Position
from shoal.protocols.streams.history.log_follower import LOST, body_digest
from shoal.storage.config import StoreConfig
from shoal.storage.lmdb_file import Txn
from shoal.storage.message_store.database import Database, Names
from shoal.storage.message_store.layout import (
    OWN,
    PLACE_BYTES,
    Message,
    Place,
    Rotten,
    chain_of,
    end_of,
    head_key,
    id_of,
    position_key,
    publisher_of,
    read_head,
    read_message,
    tail_of,
    timestamp_of,
)
from shoal.storage.message_store.logs import Match
from shoal.storage.message_store.store_types import Claim, Row


class _Span(NamedTuple):
    """Keys from start on, before end."""

    start: bytes
    end: bytes


class PageLimits(NamedTuple):
    """A page ends before it would be larger, but has one row at least."""

    rows: int
    size_bytes: int


class Page(NamedTuple):
    """Rows by position, and the id after which to go on: None if there is no more."""

    rows: list[Row]
    next: MessageId | None
    damaged: int = 0
    """Rows that should be among these, and cannot be read."""


class LastScan(NamedTuple):
    """So many of the newest are still to be found, before this message."""

    left: int
    before: MessageId


class Reader:
    """Reads by position, of a whole store."""

    def __init__(self, database: Database, names: Names, config: StoreConfig) -> None:
        self._database = database
        self._messages = database.tables.messages
        self._names = names
        self._config = config
        self._bytes_max = config.page_bytes_max

    def range(
        self,
        stream: StreamId,
        partition: int,
        begin: Position | None,
        end: Position | None,
        match: Match | None,
    ) -> Iterator[list[Row]]:
        """Pages of what lies from begin to end, both included."""
        place = self._place(stream, partition)
        if place is not None:
            yield from self._pages(stream, partition, _span(place, begin, end), match)

    def last(
        self, stream: StreamId, partition: int, n: int, match: Match | None
    ) -> Iterator[list[Row]]:
        """Pages of the newest n by position, oldest first, and what comes in between them
        meanwhile."""
        place = self._place(stream, partition)
        if place is None:
            return
        span, left = _span(place, None, None), n
        newest: bytes | None = None
        oldest = span.end
        while left and oldest > span.start:
            found, oldest = self._database.read(self._back, oldest, span.start, left, match)
            newest = newest or (found[0] if found else None)
            left -= len(found)
            if left and oldest > span.start:
                yield []  # the reader may have lost patience
        if newest is not None:
            yield from self._pages(stream, partition, _Span(oldest, newest + b"\0"), match)

    def page(
        self,
        stream: StreamId,
        partition: int,
        begin: Position | None,
        end: Position | None,
        match: Match | None,
        after: MessageId | None,
        limits: PageLimits,
    ) -> Page:
        """One page by itself, for readers that say where they are."""
        place = self._place(stream, partition)
        if place is None:
            return Page([], None)
        span = _span(place, begin, end)
        if after is not None:
            span = _Span(max(span.start, place + tail_of(after) + b"\0"), span.end)
        return self._database.read(self._limited, stream, partition, span, match, limits)

    def last_page(
        self,
        stream: StreamId,
        partition: int,
        n: int,
        match: Match | None,
        limits: PageLimits,
        before: MessageId | None = None,
    ) -> Page | LastScan:
        """The first page of the newest n, of those before a message if one is given; or how far
        one transaction has come in looking for them."""
        place = self._place(stream, partition)
        if place is None:
            return Page([], None)
        span = _span(place, None, None)
        above = span.end if before is None else place + tail_of(before)
        found, oldest = self._database.read(self._back, above, span.start, n, match)
        if len(found) < n and oldest > span.start:
            return LastScan(n - len(found), id_of(stream, partition, oldest[PLACE_BYTES:]))
        span = _Span(oldest, span.end)
        return self._database.read(self._limited, stream, partition, span, match, limits)

    def by_id(self, ids: Sequence[MessageId]) -> Iterator[list[Row]]:
        """Pages of those that are held, in the order asked for."""
        start = 0
        while start < len(ids):
            page, start = self._database.read(self._get, ids, start)
            yield page

    def is_missing(self, txn: Txn, id: MessageId) -> bool:
        """Whether a message is not held, and retention has not let go of it either."""
        place = self._names.place(txn, id.stream, id.partition)
        if place is None:
            return True
        if txn.get(place + tail_of(id), db=self._database.tables.messages) is not None:
            return False
        head = read_head(txn.get(head_key(place, OWN), db=self._database.tables.heads))
        return id.timestamp_ms >= head.horizon_ms

    def lacking(self, claims: Iterable[Claim]) -> list[MessageId]:
        """Ids that are not held, or held with another body than claimed."""

        def work(txn: Txn) -> list[MessageId]:
            return [claim.id for claim in claims if not self._holds(txn, claim)]

        return self._database.read(work)

    def _place(self, stream: StreamId, partition: int) -> Place | None:
        return self._database.read(self._names.place, stream, partition)

    def _pages(
        self, stream: StreamId, partition: int, span: _Span, match: Match | None
    ) -> Iterator[list[Row]]:
        while span.start < span.end:
            rows, start = self._database.read(self._page, stream, partition, span, match)
            yield rows
            span = _Span(start, span.end)

    def _page(
        self, txn: Txn, stream: StreamId, partition: int, span: _Span, match: Match | None
    ) -> tuple[list[Row], bytes]:
        """One page, and where the next begins."""
        config = self._config
        rows: list[Row] = []
        size_bytes = scanned = 0
        with txn.cursor(self._messages) as cursor:
            if not cursor.set_range(span.start):
                return rows, span.end
            # Values only where they are asked for: a filter may pass over many.
            for key in cursor.iternext(keys=True, values=False):
                if key >= span.end:
                    return rows, span.end
                if (
                    len(rows) >= config.page_rows_max
                    or size_bytes >= self._bytes_max
                    or scanned >= config.scan_rows_max
                ):
                    return rows, key
                scanned += 1
                if match is None or match(key):
                    try:
                        message = read_message(key, cursor.value())
                    except Rotten:
                        self._note(txn, key)
                        continue
                    size_bytes += len(message.signed)
                    id = id_of(stream, partition, key[PLACE_BYTES:])
                    rows.append(Row(id, message.seq, message.ingest_ns, message.signed))
        return rows, span.end

    def _limited(
        self,
        txn: Txn,
        stream: StreamId,
        partition: int,
        span: _Span,
        match: Match | None,
        limits: PageLimits,
    ) -> Page:
        rows: list[Row] = []
        size_bytes = damaged = 0
        seen: bytes | None = None  # the last key looked at
        with txn.cursor(self._messages) as cursor:
            if not cursor.set_range(span.start):
                return Page(rows, None)
            for scanned, key in enumerate(cursor.iternext(keys=True, values=False)):
                if key >= span.end:
                    return Page(rows, None, damaged)
                if len(rows) >= limits.rows or scanned >= self._config.scan_rows_max:
                    break
                if match is None or match(key):
                    try:
                        message = read_message(key, cursor.value())
                    except Rotten:
                        self._note(txn, key)
                        damaged, seen = damaged + 1, key
                        continue
                    size_bytes += len(message.signed)
                    if rows and size_bytes > limits.size_bytes:
                        break
                    id = id_of(stream, partition, key[PLACE_BYTES:])
                    rows.append(Row(id, message.seq, message.ingest_ns, message.signed))
                seen = key
            else:
                return Page(rows, None, damaged)
        next = None if seen is None else id_of(stream, partition, seen[PLACE_BYTES:])
        return Page(rows, next, damaged)

    def _back(
        self, txn: Txn, above: bytes, start: bytes, n: int, match: Match | None
    ) -> tuple[list[bytes], bytes]:
        """Up to n keys below `above`, newest first, and how far down this transaction looked."""
        keys: list[bytes] = []
        with txn.cursor(self._messages) as cursor:
            found = cursor.prev() if cursor.set_range(above) else cursor.last()
            for _ in range(self._config.scan_rows_max):
                if not found or cursor.key() < start:
                    return keys, start
                key = cursor.key()
                if match is None or match(key):
                    keys.append(key)
                    if len(keys) == n:
                        return keys, key
                found = cursor.prev()
            return keys, key

    def _get(self, txn: Txn, ids: Sequence[MessageId], start: int) -> tuple[list[Row], int]:
        rows: list[Row] = []
        size_bytes = 0
        for at in range(start, len(ids)):
            if (
                at - start >= self._config.page_rows_max
                or size_bytes >= self._config.page_bytes_max
            ):
                return rows, at
            place = self._names.place(txn, ids[at].stream, ids[at].partition)
            key = b"" if place is None else place + tail_of(ids[at])
            value = txn.get(key, db=self._messages) if key else None
            message = None if value is None else self._read(txn, key, value)
            if message is not None:
                size_bytes += len(message.signed)
                rows.append(Row(ids[at], message.seq, message.ingest_ns, message.signed))
        return rows, len(ids)

    def _holds(self, txn: Txn, claim: Claim) -> bool:
        place = self._names.place(txn, claim.id.stream, claim.id.partition)
        if place is None:
            return False
        key = place + tail_of(claim.id)
        value = txn.get(key, db=self._messages)
        message = None if value is None else self._read(txn, key, value)
        return message is not None and claim.digest in (body_digest(message.signed), LOST)

    def _read(self, txn: Txn, key: bytes, value: bytes) -> Message | None:
        """A message; None if it is not as it was written, which is noted."""
        try:
            return read_message(key, value)
        except Rotten:
            self._note(txn, key)
            return None

    def _note(self, txn: Txn, key: bytes) -> None:
        self._database.damage.note_message(txn, self._database.tables, key)


def matching(publisher: NodeId | None, chain: str | None) -> Match | None:
    """The filter of a resend; None lets everything through."""
    if chain is None:
        return None if publisher is None else lambda key: publisher_of(key) == publisher
    name = chain.encode()
    return lambda key: chain_of(key) == name and publisher in (None, publisher_of(key))


def in_log(publisher: NodeId | None, from_ms: int | None, to_ms: int | None) -> Match | None:
    """The filter of a log: by publisher, and by message time, both ends included."""
    by_publisher = matching(publisher, None)
    if from_ms is None and to_ms is None:
        return by_publisher
    begin, end = from_ms or 0, INT63_MAX if to_ms is None else to_ms
    if by_publisher is None:
        return lambda key: begin <= timestamp_of(key[PLACE_BYTES:]) <= end
    return lambda key: begin <= timestamp_of(key[PLACE_BYTES:]) <= end and by_publisher(key)


def _span(place: Place, begin: Position | None, end: Position | None) -> _Span:
    start = place if begin is None else position_key(place, begin.timestamp_ms, begin.sequence)
    if end is None:
        return _Span(start, end_of(place))
    return _Span(start, position_key(place, end.timestamp_ms, end.sequence + 1))
