"""History over HTTP: messages as lines of JSON.

A line is read when there is room for it on the way to the client: a slow client slows the read
down, and one that goes away, or takes nothing for a minute, ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from datetime import datetime

import msgspec
from aiohttp import web

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.base.ids import PARTITIONS_MAX, StreamId, parse_node_id, parse_stream_id
from shoal.gateway.answers import problem
from shoal.gateway.values import Explained, Values

LAST_MAX = 100_000
STALLED_S = 60.0  # a client that takes nothing for so long holds up others


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
    """

    def __init__(self, lines: ReadLines | None) -> None:
        self._lines = lines

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Serve."""
        router.add_get("/streams/{id:.+}/messages", self._messages)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        with Explained():
            query = _history_query(request)
            if self._lines is None:
                raise NotFound("this node knows no tracker, and so no storage: ask another one")
            lines = self._lines(query)
        async with aclosing(lines):  # type: ignore[type-var]
            with Explained():
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


async def _write(response: web.StreamResponse, line: bytes) -> None:
    """Waits for a client that is slow, but not for ever."""
    async with asyncio.timeout(STALLED_S):
        await response.write(line)


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


def _history_query(request: web.Request) -> HistoryQuery:
    values = Values(request)
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
