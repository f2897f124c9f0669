"""Following one log of another storage node, page by page: what is known, and what is checked.

A page begins with the last row that is held already: if that one differs, the log is not the one
that it was. Then come the names of new rows; those whose messages are not held are asked for, and
every signature among them is checked before any of it is stored.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.base.ids import MessageId, StreamId
from shoal.base.units import MS_NS
from shoal.identity import SIGNATURE_BYTES
from shoal.kernel.effects import Verify
from shoal.protocols.streams.config import FUTURE_NS
from shoal.protocols.streams.history.disk_requests import KeptRow, ReplicaChange
from shoal.protocols.streams.history.log_entries import Permits, read_kept
from shoal.protocols.streams.history.messages import (
    PAGE_ROWS_MAX,
    AskMessages,
    AskRows,
    RowName,
    TellMessages,
    TellRows,
)

Place: TypeAlias = tuple[StreamId, int]
PlaceLog: TypeAlias = tuple[Place, bytes]


LOST = bytes(16)
"""In place of a digest: the peer's row is damaged, and it does not know its message any more."""


def body_digest(signed: bytes) -> bytes:
    """Tells two bodies apart. The signature is left out: one body may be signed twice. An event of
    a topic begins with its topic and author, in which events with the same core do not differ."""
    return blake2b(memoryview(signed)[SIGNATURE_BYTES:], digest_size=16).digest()


class Tail(msgspec.Struct, eq=False):
    """A log of which a peer has more than we."""

    place: Place
    log: bytes
    held_last: int
    """Our replica ends here."""
    held: bool
    """We have a replica, be it empty."""
    horizon_ms: int
    """The message time below which lies what we have let go of: a new replica begins with the first
    row that does not."""
    target: int
    """The peer has rows up to this one."""
    may_skip: bool
    """Rows before those that the peer has may be given up: it is the log's owner, or nothing of
    the log is held."""
    owned: bool = False
    """The log is the peer's own: with all of it we have every message of the peer."""
    passed_over: int = 0
    """Rows up to this one lie below the horizon."""
    due_ns: int = 0
    """If its next row is from the future: from then on it may be taken."""

    @property
    def key(self) -> PlaceLog:
        return self.place, self.log

    def ask(self, request: int, rows_max: int) -> AskRows:
        """The question for the next page."""
        stream, partition = self.place
        # Logs are searched by ingest time, and a message may come in before its own time: a
        # publisher's clock may be ahead by so much.
        since_ns = 0 if self.held else max(0, self.horizon_ms * MS_NS - FUTURE_NS)
        after = max(0, self.held_last - 1, self.passed_over)
        return AskRows(request, stream, partition, self.log, after, since_ns, rows_max)


class Lie(Exception):
    """A peer said what cannot be true; the text is the reason it is counted under."""


class Page(msgspec.Struct, eq=False):
    """Rows of a log on their way into our replica."""

    tail: Tail
    rows: tuple[RowName, ...]
    advance: bool
    lacking: dict[int, RowName] = {}
    messages: dict[int, bytes] = {}
    unchecked: int = 0
    forged: bool = False

    def lack(self, seqs: tuple[int, ...]) -> None:
        """The disk says of which rows the messages are not held."""
        names = {row.seq: row for row in self.rows}
        self.lacking = {seq: names[seq] for seq in seqs}

    def ask(self, request: int) -> AskMessages:
        """The question for the messages that are lacking."""
        stream, partition = self.tail.place
        seqs = tuple(self.lacking)[:PAGE_ROWS_MAX]
        return AskMessages(request, stream, partition, self.tail.log, seqs)

    def take(self, told: TellMessages, permits: Permits, token: object) -> list[Verify]:
        """Messages came: signatures to check, or Lie."""
        checks: list[Verify] = []
        for seq, signed in ((row.seq, row.signed) for row in told.rows):
            name = self.lacking.get(seq)
            if name is None or seq in self.messages:
                raise Lie("unasked-message")
            try:
                kept = read_kept(self.tail.place[0], signed)
            except MalformedMessage:
                raise Lie("malformed-body") from None
            named = id_of(self.tail.place, name)
            digests = (body_digest(signed), LOST)
            if kept.message.id != named or name.digest not in digests:
                raise Lie("another-message")
            if kept.event is not None and not permits(kept.event):
                raise Lie("not-allowed")
            self.messages[seq] = signed
            checks += [Verify(claim.signer, claim.signed, token) for claim in kept.claims]
        self.unchecked = len(checks)
        return checks

    def change(self) -> tuple[ReplicaChange, int]:
        """What can be stored now, and the last seq of it: rows up to the first whose message is
        lacking still. Rows that the peer itself has lost are passed over: what follows them must
        not wait for ever."""
        kept: list[KeptRow] = []
        for row in self.rows:
            lost = row.seq in self.lacking and row.seq not in self.messages
            if lost and row.digest != LOST:
                break
            name = row.seq, row.ingest_ns, row.timestamp_ms, row.sequence, row.publisher, row.chain
            kept.append(KeptRow(*name, self.messages.get(row.seq), lost))
        return ReplicaChange(tuple(kept), self.advance), kept[-1].seq if kept else 0


def page_of(tail: Tail, asked: AskRows, told: TellRows, now_ns: int) -> Page | None:
    """The page that a peer told of, None if there is nothing to be had of it, or Lie."""
    rows = told.rows
    if not rows:
        return None
    first = rows[0].seq
    if first <= asked.after_seq or len(rows) > asked.rows_max:
        raise Lie("unasked-rows")
    newest_ns = 0
    for number, row in enumerate(rows):
        if row.seq != first + number or row.ingest_ns < newest_ns:
            raise Lie("no-log")
        newest_ns = row.ingest_ns
    rows = _upto_future(tail, rows, now_ns)
    if not tail.held and rows:
        kept = [row for row in rows if row.timestamp_ms >= tail.horizon_ms][:1]
        tail.passed_over = kept[0].seq - 1 if kept else rows[-1].seq
        rows = rows[tail.passed_over + 1 - first :]
    if not rows or rows[-1].seq <= tail.held_last:
        return None
    first = rows[0].seq
    advance = first > tail.held_last + 1
    if advance and not tail.may_skip:
        return None
    return Page(tail, rows, advance)


def _upto_future(tail: Tail, rows: tuple[RowName, ...], now_ns: int) -> tuple[RowName, ...]:
    """The rows before the first whose message would not be taken live either, for its time has not
    come: a log has no holes, so what follows it waits as well."""
    for number, row in enumerate(rows):
        due_ns = row.timestamp_ms * MS_NS - FUTURE_NS
        if due_ns > now_ns:
            tail.due_ns, tail.target = due_ns, row.seq - 1
            return rows[:number]
    return rows


def id_of(place: Place, name: RowName) -> MessageId:
    """The id of a row's message."""
    return MessageId(*place, name.timestamp_ms, name.sequence, name.publisher, name.chain)
