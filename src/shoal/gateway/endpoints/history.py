"""History over HTTP: messages as lines of JSON.

A line is read when there is room for it on the way to the client: a slow client slows the read
down, and one that goes away, or takes nothing for a minute, ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, suppress
from typing import Annotated

from aiohttp import web
from msgspec import Meta

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.base.ids import PARTITIONS_MAX, Partition, parse_node_id, parse_stream_id
from shoal.base.units import check_order
from shoal.gateway.config import STALLED_S
from shoal.gateway.live_feeds import HistoryQuery, StreamDoor
from shoal.gateway.requests import Explained, Values, problem
from shoal.gateway.route_table import NDJSON, Parameter, Route

LAST_MAX = 100_000

LAST = Parameter(
    "last", Annotated[int, Meta(ge=1, le=LAST_MAX)], "The newest so many of each partition."
)
PARTITION = Parameter("partition", Partition, "One partition; all of them otherwise.")
FROM = Parameter("from", str, "A time: milliseconds since 1970, or as in 2026-01-31T12:00:00Z.")
TO = Parameter("to", str, "A time, included.")
PUBLISHER = Parameter("publisher", str, "An address, 0x...")


class History:
    """The part of a gateway that serves history.

    GET /streams/{id}/messages?last=N                          the newest N of each partition
    GET /streams/{id}/messages?from=T&to=T&partition=P&publisher=0x...
    """

    def __init__(self, door: StreamDoor | None) -> None:
        self._door = door

    def routes(self) -> Iterable[Route]:
        """Serve."""
        yield Route(
            method="GET",
            path="/streams/{id}/messages",
            handler=self._messages,
            summary="History of a stream, one message a line",
            access="read",
            parameters=(LAST, FROM, TO, PARTITION, PUBLISHER),
            media=NDJSON,
        )

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        with Explained():
            query = _history_query(request)
            if self._door is None:
                raise NotFound("this node knows no tracker, and so no storage: ask another one")
            lines = self._door.read(query)
        return await serve_lines(request, lines)


async def serve_lines(request: web.Request, lines: AsyncIterator[bytes]) -> web.StreamResponse:
    """Lines of JSON, as they are had. What is wrong before the first is said by the status."""
    async with aclosing(lines):  # type: ignore[type-var]
        with Explained():
            first = await anext(lines, None)
        response = web.StreamResponse(headers={"Content-Type": NDJSON})
        await response.prepare(request)
        try:
            if first is not None:
                await _write(response, first)
                async for line in lines:
                    await _write(response, line)
            await response.write_eof()
        except (ConnectionResetError, TimeoutError):
            hang_up(request)  # it went away, or does as if
        except ShoalError as error:
            # The status is out already: say it in the last line, and end without an end, so
            # that nobody takes what came for all of it.
            with suppress(ConnectionResetError, TimeoutError):
                await _write(response, problem(str(error)).encode() + b"\n")
            hang_up(request)
    return response


async def _write(response: web.StreamResponse, line: bytes) -> None:
    """Waits for a client that is slow, but not for ever."""
    async with asyncio.timeout(STALLED_S):
        await response.write(line)


def hang_up(request: web.Request) -> None:
    """End without an end."""
    if request.transport is not None:
        request.transport.close()


def _history_query(request: web.Request) -> HistoryQuery:
    values = Values(request)
    last = values.number("last", 1, LAST_MAX, None)
    begin, end = values.time("from"), values.time("to")
    if last is not None and (begin is not None or end is not None):
        raise UsageError("last= and from= or to=: give one or the other")
    check_order("from", begin, "to", end)
    partition = values.number("partition", 0, PARTITIONS_MAX - 1, None)
    publisher = values.get("publisher")
    if publisher is not None:
        parse_node_id(publisher)
    values.check_all_known()
    stream = parse_stream_id(request.match_info["id"])
    return HistoryQuery(stream, last, begin, end, partition, publisher)
