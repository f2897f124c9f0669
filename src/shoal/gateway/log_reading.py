"""One page of a log, of as many transactions as it takes, and no more than it may."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.base.errors import NotFound
from shoal.base.ids import NodeId, StreamId
from shoal.base.log_pages import PAGE_BYTES_MAX, LogRow, LogRows
from shoal.storage.rows import LogId, LogPage
from shoal.storage.store import Store

SCANS_MAX = 5
"""Transactions that find less than a page in them, of 20,000 rows each: a question whose filter
leaves everything out is answered after 0.1 s, with how far it came."""


class LogQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows a client wants."""

    log: LogId
    stream: StreamId
    partition: int
    after: int
    upto: int
    limit: int
    minus: Mapping[LogId, int]
    from_ms: int | None
    to_ms: int | None
    publisher: NodeId | None


def read_json_page(store: Store, question: LogQuestion) -> LogPage:
    """What one transaction gives: people see no more at once."""
    return _read(store, question, question.after, question.limit)


def read_page(store: Store, question: LogQuestion) -> LogRows:
    """As much as a page takes."""
    rows: list[LogRow] = []
    damaged: list[int] = []
    after, size_bytes, scans = question.after, 0, 0
    while True:
        page = _read(store, question, after, question.limit - len(rows) - len(damaged))
        damaged += [row.seq for row in page.damaged]
        rows += [LogRow(row.seq, row.ingest_ns, row.signed) for row in page.rows]
        size_bytes += sum(len(row.signed) for row in page.rows)
        scans += 1
        if (
            page.through >= min(question.upto, page.head.last)
            or len(rows) + len(damaged) >= question.limit
            or size_bytes >= PAGE_BYTES_MAX
            or (scans >= SCANS_MAX and page.through - question.after > len(rows))
        ):
            head = page.head
            return LogRows(question.log, head.first, head.last, page.through, rows, damaged)
        after = page.through


def _read(store: Store, question: LogQuestion, after: int, limit: int) -> LogPage:
    page = store.log_read(
        question.log,
        question.stream,
        question.partition,
        after,
        limit,
        question.minus,
        publisher=question.publisher,
        from_ms=question.from_ms,
        to_ms=question.to_ms,
    )
    if question.after > page.head.last:
        raise NotFound(
            f"log {question.log}, partition {question.partition}, is held here up to seq"
            f" {page.head.last}, and not to {question.after}: ask another storage node, or wait for"
            " this one"
        )
    if page.through <= question.upto:
        return page
    rows = [row for row in page.rows if row.seq <= question.upto]
    damaged = tuple(row for row in page.damaged if row.seq <= question.upto)
    return LogPage(rows, max(after, question.upto), page.head, damaged)
