"""Sealed parts on their way out: which is next, where it stands for good, and its end."""

from __future__ import annotations

from shoal.base.units import MS_NS
from shoal.identity.stream_message import Position
from shoal.protocols.streams.config import CHAIN_AHEAD_NS
from shoal.storage.layout import Txn
from shoal.storage.outbox_file import (
    Head,
    OutboxFile,
    Part,
    Sealed,
    chain_key,
    query_key,
    sealed_key,
    sealed_of,
)


def next_part(file: OutboxFile, txn: Txn, query: int, after: int) -> tuple[bytes, Sealed] | None:
    """The first part of a query behind a place, and its key."""
    first = sealed_key(query, after + 1)
    return next(file.after(txn, file.sealed, query_key(query), first, Sealed), None)


def begin_part(
    file: OutboxFile, txn: Txn, key: bytes, sealed: Sealed, now_ns: int, stale_ns: int
) -> Sealed:
    """Fix the place of a part in its chain, before any of it is sent. It is the one that its seal
    gave, unless that was too long ago, or the part before it had to move past it."""
    at = chain_key(sealed_of(key)[0], sealed.part.partition)
    head = file.get(txn, file.chains, at, Head)
    assert head is not None  # its batch was sealed
    go_on(head, now_ns)
    first, sent = sealed.first, head.sent
    is_stale = now_ns - first.timestamp_ms * MS_NS > stale_ns
    is_elsewhere = sealed.chain != head.chain or is_ahead(first, now_ns)
    if is_stale or is_elsewhere or (sent is not None and first <= sent):
        first = position_after(sent, now_ns)
    head.sent = Position(first.timestamp_ms, first.sequence + sealed.part.count - 1)
    head.given = head.sent if head.given is None else max(head.given, head.sent)
    file.put(txn, file.chains, at, head)
    begun = Sealed(sealed.part, sealed.batch, first, True, sent, head.chain)
    file.put(txn, file.sealed, key, begun)
    return begun


def begin_restored(file: OutboxFile, txn: Txn) -> None:
    """An outbox goes on from a copy: its node may have sent since what is sealed here. So all of it
    has its place for good, however long ago that was given: storage nodes know what they have by
    its place, and keep it once."""
    for key, sealed in list(file.after(txn, file.sealed, b"", b"", Sealed)):
        if not sealed.begun:
            # Judged at the time of its own place, which is then neither late nor ahead.
            at_ns = sealed.first.timestamp_ms * MS_NS
            begin_part(file, txn, key, sealed, now_ns=at_ns, stale_ns=0)
    file.settle_restored(txn)


def is_ahead(position: Position, now_ns: int) -> bool:
    """Whether a position is so far ahead of the clock that nodes may refuse it."""
    return position.timestamp_ms * MS_NS - now_ns > CHAIN_AHEAD_NS


def go_on(head: Head, now_ns: int) -> None:
    """Have a chain whose positions can be used now: what was given too far ahead, and not sent, is
    given anew; a chain that was sent too far ahead ends, and the next one begins."""
    if head.sent is not None and is_ahead(head.sent, now_ns):
        head.ended, head.given, head.sent = head.sent, None, None
        head.chain += 1
    if head.given is not None and is_ahead(head.given, now_ns):
        head.given = head.sent


def drop_part(file: OutboxFile, txn: Txn, key: bytes) -> Part:
    """Forget a part that everybody has who should."""
    sealed = file.get(txn, file.sealed, key, Sealed)
    assert sealed is not None  # one thread, and it was sent
    file.drop_rows(txn, sealed.part)
    txn.delete(key, db=file.sealed)
    return sealed.part


def position_after(last: Position | None, now_ns: int) -> Position:
    """The next position of a chain; its time never falls behind the one before."""
    now_ms = now_ns // MS_NS
    if last is None or last.timestamp_ms < now_ms:
        return Position(now_ms, 0)
    return Position(last.timestamp_ms, last.sequence + 1)
