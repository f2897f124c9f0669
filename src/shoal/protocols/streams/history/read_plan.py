"""One read of a partition's history: what to ask for next, and whether an answer is one.

A storage node is not believed. Each row must be of the stream, the partition, the range and the
publisher that were asked for, after the one before it, and signed. A page counts as a whole or not
at all: only then does the cursor move, so that the next storage node goes on exactly there. What no
check can show is a row that was left out; a reader finds those by the chains.

An honest storage node may lack what another one has, and says up to when it surely does not: a page
is the answer of all of them if that is late enough for what the page covers.
"""

from __future__ import annotations

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.base.ids import MessageId, NodeId
from shoal.identity.message_body import Body, Position, decode_body
from shoal.protocols.streams.commands import (
    HistoryRow,
    LastMessages,
    LogRange,
    MessageRange,
    ReadHistory,
)
from shoal.protocols.streams.config import LATE_MS, ClientConfig
from shoal.protocols.streams.history.messages import (
    BEHIND,
    EVERYTHING,
    Cursor,
    Heard,
    LogRows,
    ReadLast,
    ReadLog,
    ReadRange,
    Rows,
)
from shoal.protocols.streams.signed_message import VerifiedMessage

Question = ReadRange | ReadLast | ReadLog
Answer = Rows | LogRows


class Unchecked(msgspec.Struct, frozen=True):
    """A row whose signature was not checked yet."""

    body: Body
    signed: bytes
    seq: int | None = None

    def checked(self) -> HistoryRow:
        """The row, once its signature was found good."""
        body = self.body
        message = VerifiedMessage(
            body.id, body.previous, body.content_type, body.content, self.signed
        )
        return HistoryRow(message, self.seq)


class Page(msgspec.Struct, frozen=True):
    """An answer that says what was asked for."""

    rows: tuple[Unchecked, ...]
    after: Cursor | int | None
    """Where the next page begins."""
    last: bool
    upto_seq: int | None = None
    newest_ms: int = EVERYTHING
    """Up to this message time it must be the answer of all storage nodes; -1: no matter."""
    heard: tuple[Heard, ...] = ()
    """What it says of the others."""
    asked_ns: int = 0
    damaged: bool = False
    """Rows of it cannot be read there."""
    of_source: bool = True
    """It is all that the storage node has, and not what it has of a log that is not its own now."""

    def lacks(self, node: NodeId) -> bool:
        """Whether another storage node may have messages that belong into this page."""
        return self.newest_ms >= 0 and not any(
            heard.node == node
            and (heard.until_ms == EVERYTHING or self.newest_ms <= heard.until_ms - LATE_MS)
            for heard in self.heard
        )

    def until_ms(self, node: NodeId) -> int:
        """Up to when the page speaks for another storage node; 0 if it does not."""
        return next((heard.until_ms for heard in self.heard if heard.node == node), 0)


class Misfit(Exception):
    """An answer that is none; says why in a word."""


def cursor_of(id: MessageId) -> Cursor:
    """The place of a message among all of its partition."""
    return Cursor(id.timestamp_ms, id.sequence, id.publisher, id.chain)


class Reader:
    """How far a read has come."""

    def __init__(self, command: ReadHistory, config: ClientConfig, page_rows: int) -> None:
        self.command = command
        self._config = config
        self._page_rows = page_rows
        self._cursor: Cursor | None = None
        self._left = command.what.count if isinstance(command.what, LastMessages) else None
        self._seq = 0
        self._upto_seq: int | None = None  # of the log, when the read began
        self._upto_of: NodeId | None = None  # who said so
        self._empty = 0
        self._since: tuple[NodeId, int] | None = None  # when a storage node was first asked
        self.whole = True
        """Only the answer of all storage nodes counts."""
        self.log_ends_at: int | None = None
        """Of a log that does not reach to where the read begins: how far it goes, at most."""
        self.restart()

    def restart(self) -> None:
        """Nothing has come so far: begin anew."""
        what = self.command.what
        self._cursor, self._upto_seq, self._upto_of, self._empty = None, None, None, 0
        self._seq = what.after_seq if isinstance(what, LogRange) else 0

    @property
    def begun(self) -> bool:
        """Whether some of the range lies behind the read."""
        return self._cursor is not None or isinstance(self.command.what, LogRange)

    def settle(self) -> bool:
        """Take what storage nodes have that may not have all; False if that changes nothing."""
        changed, self.whole = self.whole, False
        return changed

    def question(self, request: int, source: NodeId, whole: bool) -> Question:
        """What to ask a storage node for next; `whole`: it is to compare first."""
        since = self._since
        since_ns = since[1] if since is not None and since[0] == source else 0
        command, rows = self.command, self._page_rows
        stream, partition = command.stream, command.partition
        match command.what:
            case LogRange(log):
                compare = whole and self._upto_seq is None
                return ReadLog(request, stream, partition, log, self._seq, rows, compare, since_ns)
            case LastMessages() if self._cursor is None:
                assert self._left is not None
                rows = min(rows, self._left)
                return ReadLast(
                    request,
                    stream,
                    partition,
                    self._left,
                    command.publisher,
                    rows,
                    whole,
                    since_ns,
                )
            case LastMessages():
                begin = end = None
                rows = min(rows, self._left or rows)
            case MessageRange(begin, end):
                pass
        return ReadRange(
            request,
            stream,
            partition,
            begin,
            end,
            command.publisher,
            command.chain,
            self._cursor,
            rows,
            whole,
            since_ns,
        )

    def check(self, answer: Answer, source: NodeId) -> Page:
        """The page that the answer of a storage node makes; Misfit if it is none."""
        if isinstance(self.command.what, LogRange):
            if not isinstance(answer, LogRows):
                raise Misfit("another-answer")
            return self._check_log(answer, source)
        if not isinstance(answer, Rows):
            raise Misfit("another-answer")
        return self._check_rows(answer)

    def took(self, page: Page, source: NodeId) -> None:
        """Its signatures are good: the read goes on behind it."""
        if page.asked_ns and (self._since is None or self._since[0] != source):
            self._since = source, page.asked_ns
        if isinstance(page.after, int):
            self._seq = page.after
            if self._upto_seq is None:
                self._upto_seq, self._upto_of = page.upto_seq, source
        else:
            self._cursor = page.after
        if self._left is not None:
            self._left -= len(page.rows)
        self._empty = 0 if page.rows else self._empty + 1

    def distrust(self, source: NodeId) -> None:
        """A storage node lied: it is not believed about where the log ends, either."""
        if source == self._upto_of:
            self._upto_seq = self._upto_of = None

    # By position

    def _check_rows(self, answer: Rows) -> Page:
        if len(answer.rows) > self._rows_max():
            raise Misfit("too-many-rows")
        at = self._cursor
        rows = []
        for signed in answer.rows:
            body = self._body(signed)
            here = cursor_of(body.id)
            if at is not None and here <= at:
                raise Misfit("out-of-order")
            at = here
            if not self._is_asked_for(body.id):
                raise Misfit("not-asked-for")
            rows.append(Unchecked(body, signed))
        if answer.next is not None:
            if at is not None and answer.next < at:
                raise Misfit("goes-back")
            if not rows and (answer.next == self._cursor or self._is_idling()):
                raise Misfit("no-progress")
            at = answer.next
        last = answer.next is None or (self._left is not None and len(rows) == self._left)
        newest_ms, what = EVERYTHING, self.command.what
        if isinstance(what, LastMessages) and self._cursor is None:
            pass  # which the last ones are depends on all that there are
        elif answer.next is not None:
            newest_ms = answer.next.timestamp_ms
        elif isinstance(what, MessageRange) and what.end is not None:
            newest_ms = what.end.timestamp_ms
        return Page(
            tuple(rows),
            at,
            last,
            newest_ms=newest_ms,
            heard=answer.heard,
            asked_ns=answer.asked_ns,
            damaged=answer.damaged,
        )

    def _rows_max(self) -> int:
        return self._page_rows if self._left is None else min(self._page_rows, self._left)

    def _is_asked_for(self, id: MessageId) -> bool:
        command = self.command
        if command.publisher not in (None, id.publisher) or command.chain not in (None, id.chain):
            return False
        if not isinstance(command.what, MessageRange):
            return True
        begin, end = command.what.begin, command.what.end
        here = Position(id.timestamp_ms, id.sequence)
        return (begin is None or begin <= here) and (end is None or here <= end)

    # By log

    def _check_log(self, answer: LogRows, source: NodeId) -> Page:
        if len(answer.rows) > self._page_rows:
            raise Misfit("too-many-rows")
        upto = answer.last if self._upto_seq is None else self._upto_seq
        seq, rows = self._seq, []
        damaged = set(answer.damaged)
        if damaged and self.whole:
            raise Misfit(BEHIND)  # another one may have these rows
        for row in answer.rows:
            while seq + 1 in damaged:
                seq += 1  # its chain shows the gap
            if row.seq != seq + 1 or row.seq > answer.last:
                raise Misfit("out-of-order")  # a log has no holes
            seq = row.seq
            body = self._body(row.signed)
            if seq <= upto and self.command.publisher in (None, body.id.publisher):
                rows.append(Unchecked(body, row.signed, seq))
        while seq + 1 in damaged and seq < answer.last:
            seq += 1
        if not answer.rows and not damaged:
            if answer.last > seq:
                raise Misfit("withheld")  # it says itself that there is more
            if seq < upto and source == self._upto_of:
                raise Misfit("went-back")  # it said itself that there is more
            if answer.last < seq and self._upto_seq is None:
                self.log_ends_at = max(answer.last, self.log_ends_at or 0)
            if seq < upto or answer.last < seq:
                raise Misfit(BEHIND)  # a replica that has not come so far
        if not rows and self._is_idling():
            raise Misfit("no-progress")
        after = min(seq, upto) if answer.rows or damaged else seq
        return Page(
            tuple(rows),
            after,
            seq >= upto,
            upto,
            # Where the log ends was settled by the first page.
            EVERYTHING if self._upto_seq is None else -1,
            answer.heard,
            answer.asked_ns,
            bool(damaged),
            answer.own or self._upto_seq is not None,
        )

    def _is_idling(self) -> bool:
        return self._empty >= self._config.empty_pages_max

    def _body(self, signed: bytes) -> Body:
        try:
            body = decode_body(signed)
        except MalformedMessage:
            raise Misfit("malformed") from None
        if (body.id.stream, body.id.partition) != (self.command.stream, self.command.partition):
            raise Misfit("not-asked-for")
        return body
