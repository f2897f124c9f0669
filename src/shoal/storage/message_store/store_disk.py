"""A store behind the disk port: the machines of a storage node ask it by Store and Load.

All messages of a batch are appended in one transaction, whoever asked for it; then come changes of
replicas, then the questions. What cannot be done fails alone, and is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from shoal.base.errors import (
    MalformedMessage,
    NotFound,
    OffsetExpired,
    RemoteError,
    ShoalError,
    UsageError,
)
from shoal.base.ids import MessageId, NodeId
from shoal.base.log_line_limit import log_of_others
from shoal.base.units import S_NS
from shoal.kernel.disk import DiskRequest, DiskResult
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.config import PAGE_BYTES_MAX
from shoal.protocols.streams.history.disk_requests import (
    CONFLICT,
    DISK_FAILED,
    DIVERGED,
    MALFORMED,
    NOT_HELD,
    STORE_GONE,
    Compared,
    ComparedKey,
    DamagedRows,
    DiskAnswer,
    FindCompared,
    FindDamaged,
    FindGranted,
    FindLast,
    FindMissing,
    Granted,
    GrantedKey,
    KeptRow,
    Lacking,
    Lacks,
    MendKey,
    Missing,
    ReplicaKey,
    Retain,
    Retained,
    decode_change,
    decode_key,
    decode_question,
    encode,
)
from shoal.protocols.streams.history.log_entries import read_kept
from shoal.protocols.streams.history.log_follower import LOST, body_digest
from shoal.protocols.streams.history.messages import (
    BEHIND,
    HEADS_MAX,
    LISTED_STREAMS_MAX,
    LOGS_MAX,
    PAGE_ROWS_MAX,
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    Counted,
    CountKept,
    Cursor,
    Head,
    Heads,
    LogRow,
    LogRows,
    PlaceHeads,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    RowName,
    Rows,
    SeqMessage,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
    TellStreams,
)
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.errors import LogDiverged, RowDamaged, StoreDamaged, StoreError, StoreGone
from shoal.storage.message_store.position_reader import Page, PageLimits
from shoal.storage.message_store.store import Store as MessageStore
from shoal.storage.message_store.store_types import (
    Claim,
    Conflict,
    DamagedRow,
    LogHead,
    LogId,
    LogPage,
    ReplicaRow,
    Row,
)

log = logging.getLogger("shoal.storage")
log_others = log_of_others("shoal.storage")

RETENTION_SETTLES_NS = 3600 * S_NS
"""After the start, and after the clock was set: retention has time, and clocks are set right within
minutes, where they are."""
LOG_AHEAD_NS = 60 * S_NS  # what clocks may differ
LOG_SETTLES_NS = 20 * S_NS
"""After the clock was set, for it may be set again. Until the next pass of retention, every 10 s,
rows come in at the time of the newest."""

COUNTS_TOLD = frozenset(10**power for power in range(1, 10))  # of failures of one kind


class StoreDisk:
    """The disk of a storage node. What goes wrong is in the log, and in `problem`."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self._problem: str | None = None
        self.unanswered: dict[str, int] = {}
        """How many questions failed, by what went wrong."""
        self._answers = Answers(store)
        self.wall = WallClock()
        self.wall_is_wrong = False
        """Trackers and storage nodes say so: nothing is let go for its age by the time of day."""
        self._begun_ns: int | None = None
        self.refused: str | None = None
        """Why nothing may be stored here any more, if so."""

    @property
    def problem(self) -> str | None:
        """Why the last batch could not be stored, or the next one cannot; None if all is well."""
        try:
            self.store.check_present()
        except StoreGone as error:
            return str(error)
        return self._problem

    @problem.setter
    def problem(self, problem: str | None) -> None:
        self._problem = problem

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        steady_ns, now_ns = now_ns, self.wall.read(now_ns)  # rows carry the time of day
        if self._begun_ns is None:
            self._begin(steady_ns, now_ns)
        results: dict[int, DiskResult] = {}
        messages: dict[int, VerifiedMessage] = {}
        changes: dict[int, tuple[ReplicaKey | ComparedKey | GrantedKey, bytes]] = {}
        mended: dict[int, tuple[MendKey, VerifiedMessage]] = {}
        for at, (_, effect) in enumerate(requests):
            if isinstance(effect, Load):
                continue
            try:
                key = decode_key(effect.key)
                if isinstance(key, ReplicaKey | ComparedKey | GrantedKey):
                    changes[at] = key, effect.value or b""
                elif isinstance(key, MendKey):
                    mended[at] = key, read_kept(key.stream, effect.value or b"").message
                else:
                    messages[at] = read_kept(key.id.stream, effect.value or b"").message
            except (MalformedMessage, msgspec.MsgspecError) as error:
                log_others.error("a message that cannot be read was to be stored: %s", error)
                results[at] = StoreFailed(effect.token, MALFORMED)
        for at, failure in self._append(messages, now_ns).items():
            results[at] = _result(requests[at][1], failure)
        for at, (key, value) in changes.items():
            results[at] = _result(requests[at][1], self._change(key, value, now_ns))
        for at, (place, message) in mended.items():
            results[at] = _result(requests[at][1], self._mend(place, message))
        for at, (_, effect) in enumerate(requests):
            if isinstance(effect, Load):
                results[at] = Loaded(effect.token, self._answer(effect.key, steady_ns))
        return [results[at] for at in range(len(requests))]

    def refuse(self, problem: str) -> None:
        """Store nothing from now on: another node goes on under the name of this one's log. What
        is held is still told."""
        self.refused = self.problem = problem
        log.error("nothing can be stored: %s", problem)

    def clear(self) -> None:
        raise UsageError("a store is not cleared: close it, and remove its folder")

    def close(self) -> None:
        self.store.close()

    def _append(self, messages: dict[int, VerifiedMessage], now_ns: int) -> dict[int, str | None]:
        """Why each message could not be stored, or None."""
        if not messages:
            return {}
        if self.refused is not None:
            return dict.fromkeys(messages, DISK_FAILED)
        try:
            appended = self.store.append(list(messages.values()), now_ns)
        except (UsageError, StoreDamaged) as error:
            if len(messages) > 1:  # one that cannot be stored must not keep out the others
                every, half = list(messages.items()), len(messages) // 2
                first = self._append(dict(every[:half]), now_ns)
                return first | self._append(dict(every[half:]), now_ns)
            if isinstance(error, RowDamaged):
                return dict.fromkeys(messages, DISK_FAILED)  # that one alone cannot be told apart
            return dict.fromkeys(messages, self._failed(error))
        except ShoalError as error:
            return dict.fromkeys(messages, self._failed(error))
        self._problem = None
        return {
            at: CONFLICT if isinstance(result, Conflict) else None
            for at, result in zip(messages, appended, strict=True)
        }

    def _granted_name(self, node: NodeId) -> str:
        """What another log was, as of a copy that was restored, says nothing of this one."""
        return f"granted {self.store.log.hex} {node.hex()}"

    def _change(
        self, key: ReplicaKey | ComparedKey | GrantedKey, value: bytes, now_ns: int
    ) -> str | None:
        """Why rows could not be appended to a replica, or a note could not be made; or None."""
        if self.refused is not None:
            return DISK_FAILED
        if not isinstance(key, ReplicaKey):
            is_limit = isinstance(key, GrantedKey)
            name = self._granted_name(key.node) if is_limit else _note_name(key.node)
            try:
                self.store.put_note(name, value)
            except StoreError as error:
                return self._failed(error)
            return None
        replica = UUID(bytes=key.log)
        try:
            change = decode_change(value)
            rows = [_replica_row(key, row) for row in change.rows]
            if change.advance and rows:
                self.store.advance_replica(replica, key.stream, key.partition, rows[0].seq)
            self.store.append_replica(replica, key.stream, key.partition, rows, now_ns)
        except LogDiverged as error:
            log_others.warning("%s", error)
            return DIVERGED
        except NotFound:
            return NOT_HELD  # retention was faster than the peer's answer
        except (RemoteError, msgspec.MsgspecError, UsageError) as error:
            log_others.warning("rows of a replica were refused: %s", error)
            return MALFORMED
        except StoreError as error:
            return self._failed(error)
        self._problem = None
        return None

    def _mend(self, key: MendKey, message: VerifiedMessage) -> str | None:
        """Why a row could not be put right, or None."""
        try:
            done = self.store.mend(key.stream, key.partition, key.seq, message)
        except ShoalError as error:
            return self._failed(error)
        return None if done else NOT_HELD

    def _answer(self, key: bytes, steady_ns: int) -> bytes | None:
        try:
            question = decode_question(key)
            if isinstance(question, Retain):
                return encode(self._retain(steady_ns))
            if isinstance(question, FindCompared):
                return self.store.note(_note_name(question.node)) or encode(Compared())
            if isinstance(question, FindGranted):
                return self.store.note(self._granted_name(question.node)) or encode(Granted())
            return encode(self._answers.answer(question))
        except StoreGone as error:
            self._failed(error)
            return None
        except (ShoalError, msgspec.MsgspecError) as error:
            self._count_unanswered(error)
            return None

    def _begin(self, steady_ns: int, wall_ns: int) -> None:
        self._begun_ns = steady_ns
        try:
            self.store.begin_time(steady_ns, wall_ns)
        except ShoalError as error:
            self._failed(error)

    def _retain(self, steady_ns: int) -> Retained:
        wall_ns = self.wall.read(steady_ns)
        assert self._begun_ns is not None  # in `work`
        age_ns = min(steady_ns - self._begun_ns, steady_ns - self.wall.stepped_ns)
        settled = age_ns >= RETENTION_SETTLES_NS and not self.wall_is_wrong
        step = self.store.retain_carefully(steady_ns, wall_ns, settled=settled)
        certain_ns, ahead_ns = self.store.certain_ns, self.store.newest_ingest_ns - wall_ns
        if (
            ahead_ns > LOG_AHEAD_NS
            and self.wall.is_settled(steady_ns, LOG_SETTLES_NS)
            and not self.wall_is_wrong
            and certain_ns is not None
            and wall_ns > certain_ns - LOG_AHEAD_NS  # or the clock was set back, and is wrong now
        ):
            self._begin_log(ahead_ns, wall_ns)
        return Retained(step.removed, step.more)

    def _begin_log(self, ahead_ns: int, wall_ns: int) -> None:
        old = self.store.log
        try:
            new = self.store.new_log(wall_ns)
        except ShoalError as error:  # retention has done its step all the same
            self._count_unanswered(error)
            return
        log.warning(
            "rows of log %s came in up to %.0f s ahead of the clock, which was wrong then: the"
            " store goes on under log %s",
            *(old, ahead_ns / S_NS, new),
        )

    def _count_unanswered(self, error: Exception) -> None:
        """Tell the operator in full once for each kind; peers may ask the same without end."""
        kind = type(error).__name__
        count = self.unanswered[kind] = self.unanswered.get(kind, 0) + 1
        if count == 1:
            log.error("a question could not be answered: %s", error, exc_info=error)
        elif count in COUNTS_TOLD:
            log.error("%d questions could not be answered: %s, the last: %s", count, kind, error)

    def _failed(self, error: ShoalError) -> str:
        """Tell the operator, once for each new problem."""
        problem = str(error)
        if problem != self._problem:  # messages of others may bring it about, and in turn
            log_others.error("nothing can be stored: %s", problem)
        self._problem = problem
        return STORE_GONE if isinstance(error, StoreGone) else DISK_FAILED


def _note_name(node: NodeId) -> str:
    return f"compared {node.hex()}"


def _replica_row(key: ReplicaKey, row: KeptRow) -> ReplicaRow:
    id = MessageId(
        key.stream, key.partition, row.timestamp_ms, row.sequence, row.publisher, row.chain
    )
    message = None if row.signed is None else read_kept(key.stream, row.signed).message
    return ReplicaRow(row.seq, row.ingest_ns, id, message, row.lost)


def _result(effect: Store | Load, failure: str | None) -> DiskResult:
    return Stored(effect.token) if failure is None else StoreFailed(effect.token, failure)


# Answers out of a store to the questions of the history protocol, one page each.


LAST_STEPS_MAX = 25  # half a million keys, a quarter of a second: a rare publisher's last messages
PLACE_BYTES, HEAD_BYTES = 32, 37  # on the wire, at most; of a place without its stream's id
COUNT_PAGES_MAX = 8  # what one question counts: a publisher asks about a page or two
DAMAGED_MAX = 100  # rows asked for at once: a page of messages
STRETCHES_MAX = 16  # reads for one question for messages, a megabyte each at most


class Answers:
    """One store, asked."""

    def __init__(self, store: MessageStore) -> None:
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
