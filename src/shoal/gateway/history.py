"""History over HTTP: messages as lines of JSON, and on a storage node its logs, page by page.

A line is read when there is room for it on the way to the client: a slow client slows the read
down, and one that goes away, or takes nothing for a minute, ends it.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from aiohttp import web

from shoal.base.errors import (
    HistoryUnavailable,
    NotFound,
    OffsetExpired,
    ShoalError,
    UsageError,
)
from shoal.base.ids import (
    PARTITIONS_MAX,
    NodeId,
    StreamId,
    parse_node_id,
    parse_stream_id,
    show_node_id,
)
from shoal.base.times import parse_time
from shoal.gateway.answers import json_answer, not_found, problem
from shoal.protocols.streams.wire import decode_body
from shoal.storage.errors import StoreError
from shoal.storage.rows import LogPage, Row
from shoal.storage.store import Store

LAST_MAX = 100_000
LIMIT_MAX = 1_000
LIMIT_DEFAULT = 100
STALLED_S = 60.0  # a client that takes nothing for so long holds up others
DIGITS_MAX = 19  # of 2**63 - 1

T = TypeVar("T")


class HistoryQuery(msgspec.Struct, frozen=True):
    """What a client wants to read."""

    stream: StreamId
    last: int | None = None
    begin: datetime | None = None
    end: datetime | None = None
    partition: int | None = None
    publisher: str | None = None


ReadLines = Callable[[HistoryQuery], AsyncIterator[bytes]]
"""Lines of JSON, one message each; whoever makes the gateway knows how to read them."""


class History:
    """The part of a gateway that serves history.

    GET /streams/{id}/messages?last=N                          the newest N of each partition
    GET /streams/{id}/messages?from=T&to=T&partition=P&publisher=0x...
    GET /streams/{id}/log?partition=P&log=UUID&after=SEQ&limit=N     on a storage node
    GET /streams/{id}/log/heads?partition=P                          on a storage node
    """

    def __init__(self, lines: ReadLines | None, store: Store | None) -> None:
        self._lines = lines
        self._store = store
        # One at a time, beside the disk thread: a reader of logs must not take the machine over.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="shoal-log")

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Serve."""
        router.add_get("/streams/{id:.+}/messages", self._messages)
        router.add_get("/streams/{id:.+}/log/heads", self._heads)
        router.add_get("/streams/{id:.+}/log", self._log)

    def close(self) -> None:
        """Leave no thread behind."""
        self._reading.shutdown()

    # Messages

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        with _Explained():
            query = _history_query(request)
            if self._lines is None:
                raise NotFound("this node knows no tracker, and so no storage: ask another one")
            lines = self._lines(query)
        async with aclosing(lines):  # type: ignore[type-var]
            with _Explained():
                first = await anext(lines, None)
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            try:
                if first is not None:
                    await _write(response, first)
                    async for line in lines:
                        await _write(response, line)
                await response.write_eof()
            except (ConnectionResetError, TimeoutError):
                _hang_up(request)  # it went away, or does as if
            except ShoalError as error:
                # The status is out already: say it in the last line, and end without an end, so
                # that nobody takes what came for all of it.
                with suppress(ConnectionResetError, TimeoutError):
                    await _write(response, problem(str(error)).encode() + b"\n")
                _hang_up(request)
        return response

    # Logs

    async def _log(self, request: web.Request) -> web.Response:
        with _Explained():
            store, values = self._asked_store(request), _Values(request)
            stream = parse_stream_id(request.match_info["id"])
            partition = values.number("partition", 0, PARTITIONS_MAX - 1, 0)
            log = values.uuid("log")
            after = values.number("after", 0, 2**63 - 1, 0)
            limit = values.number("limit", 1, LIMIT_MAX, LIMIT_DEFAULT)
            values.check_all_known()
            page: LogPage = await self._read(
                store.log_read, log or store.log, stream, partition, after, limit
            )
            return json_answer(
                {
                    "log": str(log or store.log),
                    "first": page.head.first,
                    "last": page.head.last,
                    "through": page.through,
                    "rows": [_log_row(row) for row in page.rows],
                }
            )

    async def _heads(self, request: web.Request) -> web.Response:
        with _Explained():
            store, values = self._asked_store(request), _Values(request)
            stream = parse_stream_id(request.match_info["id"])
            partition = values.number("partition", 0, PARTITIONS_MAX - 1, 0)
            values.check_all_known()
            heads = await self._read(store.heads, stream, partition)
            logs = [
                {"log": str(log), "first": head.first, "last": head.last}
                for log, head in heads.items()
            ]
            return json_answer({"own": str(store.log), "logs": logs})

    def _asked_store(self, request: web.Request) -> Store:
        if self._store is None:
            raise NotFound("this node keeps nothing: ask a storage node of the stream")
        return self._store

    async def _read(self, read: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading, read, *arguments)


async def _write(response: web.StreamResponse, line: bytes) -> None:
    """Waits for a client that is slow, but not for ever."""
    async with asyncio.timeout(STALLED_S):
        await response.write(line)


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


def _log_row(row: Row) -> dict[str, Any]:
    body = decode_body(row.signed)
    return {
        "seq": row.seq,
        "ingest_ns": row.ingest_ns,
        "timestamp_ms": body.id.timestamp_ms,
        "sequence": body.id.sequence,
        "publisher": show_node_id(NodeId(body.id.publisher)),
        "chain": body.id.chain,
        "content_type": body.content_type,
        "content": b64encode(body.content).decode(),
    }


def _history_query(request: web.Request) -> HistoryQuery:
    values = _Values(request)
    last = values.number("last", 1, LAST_MAX, None)
    begin, end = values.time("from"), values.time("to")
    if last is not None and (begin is not None or end is not None):
        raise UsageError("last= and from= or to=: give one or the other")
    partition = values.number("partition", 0, PARTITIONS_MAX - 1, None)
    publisher = values.get("publisher")
    if publisher is not None:
        parse_node_id(publisher)
    values.check_all_known()
    stream = parse_stream_id(request.match_info["id"])
    return HistoryQuery(stream, last, begin, end, partition, publisher)


class _Values:
    """The query of a request: what is wrong with a value is said with the value."""

    def __init__(self, request: web.Request) -> None:
        self._query = request.query
        self._known: list[str] = []

    def get(self, name: str) -> str | None:
        self._known.append(name)
        return self._query.get(name)

    def number(self, name: str, least: int, most: int, otherwise: Any) -> Any:
        text = self.get(name)
        if text is None:
            return otherwise
        digits = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
        if not digits or not least <= int(text) <= most:
            raise UsageError(f"{name}={text}: give a whole number, {least} to {most}")
        return int(text)

    def time(self, name: str) -> datetime | None:
        text = self.get(name)
        if text is None:
            return None
        # A plus in a query is a space, unless it was written as %2B.
        return parse_time(name, text.replace(" ", "+"))

    def uuid(self, name: str) -> UUID | None:
        text = self.get(name)
        try:
            return None if text is None else UUID(text)
        except ValueError:
            raise UsageError(f"{name}={text}: give a log's id, as log/heads names them") from None

    def check_all_known(self) -> None:
        for name in self._query:
            if name not in self._known:
                raise UsageError(f"{name}=: no such value: give {', '.join(self._known)}")


_STATUS: tuple[tuple[type[ShoalError], type[web.HTTPException]], ...] = (
    (OffsetExpired, web.HTTPGone),
    (UsageError, web.HTTPBadRequest),
    (HistoryUnavailable, web.HTTPServiceUnavailable),
    (StoreError, web.HTTPServiceUnavailable),
)


class _Explained:
    """Turns what Shoal raises into the status that says so."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, NotFound):
            raise not_found(str(error)) from error
        for raised, status in _STATUS:
            if isinstance(error, raised):
                text = problem(str(error))
                raise status(text=text, content_type="application/json") from error
