"""Answers out of a store to the questions of the history protocol, one page each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from shoal.base.errors import NotFound, OffsetExpired
from shoal.base.ids import MessageId
from shoal.protocols.streams.history.config import PAGE_BYTES_MAX
from shoal.protocols.streams.history.disk import (
    DamagedRows,
    DiskAnswer,
    FindDamaged,
    FindLast,
    FindMissing,
    Lacking,
    Lacks,
    Missing,
)
from shoal.protocols.streams.history.messages import (
    BEHIND,
    LOGS_MAX,
    PAGE_ROWS_MAX,
    Counted,
    CountKept,
    Cursor,
    Head,
    Heads,
    LogRow,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
)
from shoal.protocols.streams.history.sync_messages import (
    HEADS_MAX,
    LISTED_STREAMS_MAX,
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    PlaceHeads,
    RowName,
    SeqMessage,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
    TellStreams,
)
from shoal.protocols.streams.history.tail import LOST, body_digest
from shoal.storage.reading import Page, PageLimits
from shoal.storage.rows import Claim, DamagedRow, LogHead, LogId, LogPage, Row
from shoal.storage.store import Store

LAST_STEPS_MAX = 25  # half a million keys, a quarter of a second: a rare publisher's last messages
PLACE_BYTES, HEAD_BYTES = 32, 37  # on the wire, at most; of a place without its stream's id
COUNT_PAGES_MAX = 8  # what one question counts: a publisher asks about a page or two
DAMAGED_MAX = 100  # rows asked for at once: a page of messages
STRETCHES_MAX = 16  # reads for one question for messages, a megabyte each at most


class Answers:
    """One store, asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_type: dict[type, Callable[[Any], DiskAnswer]] = {
            ReadRange: self._range,
            ReadLast: self._last,
            FindLast: self._more_of_last,
            ReadLog: self._log,
            ReadHeads: self._heads,
            CountKept: self._count,
            AskHeads: self._stream_heads,
            AskRows: self._rows,
            AskMessages: self._messages,
            AskStreams: self._streams,
            Lacking: self._lacking,
            FindMissing: self._missing,
            FindDamaged: self._damaged,
        }

    def answer(self, question: Any) -> DiskAnswer:
        """The answer, or a refusal; StoreError if the store fails."""
        return self._by_type[type(question)](question)

    # Readers

    def _range(self, question: ReadRange) -> Rows | Refused:
        after = None if question.after is None else _id(question, question.after)
        page = self._store.page(
            question.stream,
            question.partition,
            PageLimits(question.rows_max, PAGE_BYTES_MAX),
            from_position=question.begin,
            to_position=question.end,
            publisher=question.publisher,
            chain=question.chain,
            after=after,
        )
        return _page(question, page)

    def _last(self, question: ReadLast) -> Rows | Refused | FindLast:
        return self._find_last(question, question.count, None, 0)

    def _more_of_last(self, find: FindLast) -> Rows | Refused | FindLast:
        before = _id(find.question, find.before)
        return self._find_last(find.question, find.left, before, find.steps)

    def _find_last(
        self, question: ReadLast, left: int, before: MessageId | None, steps: int
    ) -> Rows | Refused | FindLast:
        page = self._store.last_page(
            question.stream,
            question.partition,
            left,
            PageLimits(min(question.rows_max, question.count), PAGE_BYTES_MAX),
            publisher=question.publisher,
            before=before,
        )
        if isinstance(page, Page):
            return _page(question, page)
        if steps + 1 >= LAST_STEPS_MAX:
            return Refused(question.request, "too-far")
        return FindLast(question, page.left, _cursor(page.before), steps + 1)

    def _log(self, question: ReadLog) -> LogRows | Refused:
        try:
            page = self._log_page(question, question.after_seq, question.rows_max)
        except OffsetExpired:
            return Refused(question.request, "expired")
        except NotFound:
            return Refused(question.request, "no-such-log")
        rows = tuple(LogRow(row.seq, row.ingest_ns, row.signed) for row in page.rows)
        damaged = tuple(row.seq for row in page.damaged)
        own = question.log == self._store.log.bytes
        head = page.head
        return LogRows(question.request, rows, head.first, head.last, damaged, own=own)

    def _heads(self, question: ReadHeads) -> Heads:
        heads = self._store.heads(question.stream, question.partition)
        own = self._store.log
        first = [_head(own, heads.pop(own))]
        others = [_head(log, head) for log, head in heads.items()]
        return Heads(question.request, own.bytes, tuple([*first, *others][:LOGS_MAX]))

    def _count(self, question: CountKept) -> Counted:
        count, after = 0, None
        for _ in range(COUNT_PAGES_MAX):
            page = self._store.page(
                question.stream,
                question.partition,
                PageLimits(PAGE_ROWS_MAX, PAGE_BYTES_MAX),
                from_position=question.begin,
                to_position=question.end,
                publisher=question.publisher,
                chain=question.chain,
                after=after,
            )
            count, after = count + len(page.rows), page.next
            if after is None:
                break
        return Counted(question.request, count)

    # Other storage nodes

    def _stream_heads(self, question: AskHeads) -> TellHeads:
        places: list[PlaceHeads] = []
        room, room_bytes = HEADS_MAX, PAGE_BYTES_MAX
        for number, stream in enumerate(question.streams):
            begin = 0 if number else question.from_partition
            for partition, (horizon_ms, logs) in self._store.stream_heads(stream).items():
                if partition < begin:
                    continue
                size_bytes = PLACE_BYTES + 4 * len(stream) + HEAD_BYTES * len(logs)
                if places and (len(logs) > room or size_bytes > room_bytes):
                    return TellHeads(question.request, self._store.log.bytes, tuple(places), True)
                room, room_bytes = room - len(logs), room_bytes - size_bytes
                heads = tuple(_head(log, head) for log, head in logs.items())
                places.append(PlaceHeads(stream, partition, horizon_ms, heads[:HEADS_MAX]))
        return TellHeads(question.request, self._store.log.bytes, tuple(places), False)

    def _streams(self, question: AskStreams) -> TellStreams:
        own = self._store.log.bytes
        # Numbers have 32 bits in a store; streams begin at 0, so `after` is one more than the last.
        after = min(question.after, 2**32 - 1) if question.log == own else 0
        found = self._store.streams_after(after - 1, LISTED_STREAMS_MAX + 1)
        page = found[:LISTED_STREAMS_MAX]
        last = page[-1][0] + 1 if page else after
        names = tuple(stream for _, stream in page)
        return TellStreams(question.request, own, names, last, len(found) > len(page))

    def _rows(self, question: AskRows) -> TellRows | SyncRefused:
        log, stream, partition = UUID(bytes=question.log), question.stream, question.partition
        after = question.after_seq
        try:
            if question.since_ns:
                begin = self._store.first_seq_at(log, stream, partition, question.since_ns)
                after = max(after, begin - 1)
            page = self._store.log_read(log, stream, partition, after, question.rows_max)
        except OffsetExpired as error:
            after = error.first_seq - 1
            page = self._store.log_read(log, stream, partition, after, question.rows_max)
        except NotFound:
            return SyncRefused(question.request, "no-such-log")
        names = {row.seq: _name(row) for row in page.rows}
        names |= {row.seq: _lost(row, row.id) for row in page.damaged if row.id is not None}
        # It ends before a row of which nothing is known: what follows waits until that is mended.
        unknown = min((row.seq for row in page.damaged if row.id is None), default=page.through + 1)
        rows = tuple([names[seq] for seq in sorted(names) if seq < unknown])
        return TellRows(question.request, rows, page.head.first, page.head.last)

    def _messages(self, question: AskMessages) -> TellMessages | SyncRefused:
        found: list[SeqMessage] = []
        size_bytes = 0
        wanted = dict.fromkeys(sorted(question.seqs))
        for _ in range(STRETCHES_MAX):
            if not wanted:
                break
            # Those asked for are mostly neighbours: one read gives a stretch of them.
            first, last = next(iter(wanted)), next(reversed(wanted))
            try:
                page = self._log_page(
                    question, max(0, first - 1), min(PAGE_ROWS_MAX, last - first + 1)
                )
            except OffsetExpired:
                del wanted[first]
                continue
            except NotFound:
                return SyncRefused(question.request, "no-such-log")
            for row in page.rows:
                if row.seq in wanted:
                    size_bytes += len(row.signed)
                    if found and size_bytes > PAGE_BYTES_MAX:
                        return TellMessages(question.request, tuple(found))
                    del wanted[row.seq]
                    found.append(SeqMessage(row.seq, row.signed))
            wanted.pop(first, None)  # it is no row of this log
        return TellMessages(question.request, tuple(found))

    def _lacking(self, question: Lacking) -> Lacks:
        # A message that was let go and came again is in a log twice: its first row brings it.
        rows: dict[MessageId, RowName] = {}
        for row in question.rows:
            rows.setdefault(_id(question, row), row)
        lacking = self._store.lacking([Claim(id, row.digest) for id, row in rows.items()])
        return Lacks(tuple(rows[id].seq for id in lacking))

    def _missing(self, question: FindMissing) -> Missing:
        missing = dict.fromkeys(self._store.missing(question.ids))
        return Missing(tuple([at for at, id in enumerate(question.ids) if id in missing]))

    def _damaged(self, question: FindDamaged) -> DamagedRows | None:
        found = self._store.damaged_rows(DAMAGED_MAX)
        if found is None:
            return None
        stream, partition, seqs = found
        return DamagedRows(stream, partition, self._store.log.bytes, tuple(seqs))

    def _log_page(
        self, question: ReadLog | AskRows | AskMessages, after_seq: int, limit: int
    ) -> LogPage:
        """A page of a log, cut where it would be too large."""
        log = UUID(bytes=question.log)
        page = self._store.log_read(log, question.stream, question.partition, after_seq, limit)
        size_bytes = 0
        for number, row in enumerate(page.rows):
            size_bytes += len(row.signed)
            if number and size_bytes > PAGE_BYTES_MAX:
                through = page.rows[number - 1].seq
                damaged = tuple(lost for lost in page.damaged if lost.seq <= through)
                return LogPage(page.rows[:number], through, page.head, damaged)
        return page


def _page(question: ReadRange | ReadLast, page: Page) -> Rows | Refused:
    if page.damaged and question.whole:
        return Refused(question.request, BEHIND)  # another storage node has those rows, perhaps
    rows = tuple(row.signed for row in page.rows)
    after = None if page.next is None else _cursor(page.next)
    return Rows(question.request, rows, after, damaged=bool(page.damaged))


def _cursor(id: MessageId) -> Cursor:
    return Cursor(id.timestamp_ms, id.sequence, id.publisher, id.chain)


def _id(question: ReadRange | ReadLast | Lacking, at: Cursor | RowName) -> MessageId:
    return MessageId(
        question.stream,
        question.partition,
        at.timestamp_ms,
        at.sequence,
        at.publisher,
        at.chain,
    )


def _head(log: LogId, head: LogHead) -> Head:
    return Head(log.bytes, head.first, head.last)


def _name(row: Row) -> RowName:
    id = row.id
    return RowName(
        row.seq,
        row.ingest_ns,
        id.timestamp_ms,
        id.sequence,
        id.publisher,
        id.chain,
        body_digest(row.signed),
    )


def _lost(row: DamagedRow, id: MessageId) -> RowName:
    return RowName(
        row.seq, row.ingest_ns, id.timestamp_ms, id.sequence, id.publisher, id.chain, LOST
    )
