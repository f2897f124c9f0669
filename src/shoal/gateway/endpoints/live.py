"""Subscribing from browsers and scripts: server-sent events, and WebSocket.

    GET /streams/{id}/live     events; a client that comes back with Last-Event-ID goes on after it
    GET /ws/streams/{id}       the same messages, one JSON object each, over WebSocket
    GET /topics/{cid}/live     and for durable topics
    GET /ws/topics/{cid}

Where something is missing a client is told so in between: `event: gap`, or {"gap": {...}}.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import datetime

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.base.ids import PARTITIONS_MAX, StreamId, parse_stream_id
from shoal.gateway.config import HEARTBEAT_S, STALLED_S
from shoal.gateway.endpoints.history import LAST, LAST_MAX, PARTITION, hang_up
from shoal.gateway.live_feeds import (
    EARLIEST,
    LATEST,
    Doors,
    Feeds,
    Gap,
    Start,
    Told,
    parse_message_id,
)
from shoal.gateway.request_admission import ADMISSION
from shoal.gateway.requests import Explained, Values, problem
from shoal.gateway.route_table import EVENTS, JSON, Parameter, Route

MESSAGE_BYTES_MAX = 1024  # of what a subscriber says over WebSocket: there is nothing to say
LAST_EVENT_ID = "Last-Event-ID"

Source = AbstractAsyncContextManager[AsyncIterator[Told]]
Asked = Callable[[web.Request], Source]

_FROM = Parameter("from", str, "latest (the default), earliest, or a time.")
_ORDERED = Parameter("ordered", bool, "false: live messages as they come, in no order.")
_FROM_EVENT = Parameter("from", str, "latest (the default), earliest, or the CID of an event.")


class Live:
    """The part of a gateway that subscribers use."""

    def __init__(self, doors: Doors, feeds: Feeds) -> None:
        self._doors = doors
        self._feeds = feeds

    def routes(self) -> Iterable[Route]:
        """Serve."""
        about = (_FROM, LAST, PARTITION, _ORDERED)
        for what, path, asked, parameters in (
            ("Messages of a stream", "streams/{id}", self._stream, about),
            ("Events of a topic", "topics/{cid}", self._topic, (_FROM_EVENT,)),
        ):
            yield Route(
                method="GET",
                path=f"/{path}/live",
                handler=self._served(_serve_events, asked),
                summary=f"{what} as they come, as server-sent events",
                access="read",
                parameters=parameters,
                media=EVENTS,
                browsers=True,
            )
            yield Route(
                method="GET",
                path=f"/ws/{path}",
                handler=self._served(_serve_socket, asked),
                summary=f"{what} as they come, over WebSocket",
                access="read",
                parameters=parameters,
                status=101,
                media=JSON,
                browsers=True,
            )

    # What is asked for

    def _served(
        self,
        serve: Callable[[web.Request, AsyncIterator[Told]], Awaitable[web.StreamResponse]],
        asked: Asked,
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(request: web.Request) -> web.StreamResponse:
            if serve is _serve_socket and not web.WebSocketResponse().can_prepare(request):
                with Explained():
                    raise UsageError("this is no WebSocket: connect with ws://, or GET .../live")
            async with AsyncExitStack() as stack:
                with Explained():
                    await stack.enter_async_context(self._feeds.counted())
                    messages = await stack.enter_async_context(asked(request))
                return await serve(request, messages)

        return handler

    def _stream(self, request: web.Request) -> Source:
        door = self._doors.streams
        stream = parse_stream_id(request.match_info["id"])
        start, partition, ordered = _start(request, stream)
        if door is None:
            raise NotFound("this node knows no tracker, and so no stream: ask another one")
        if start == LATEST:
            # All partitions are fed to everybody's queue: each takes its own.
            return self._feeds.join(
                (stream, ordered),
                lambda: door.subscribe(stream, LATEST, ordered=ordered),
                partition,
            )
        return door.subscribe(stream, start, partition, ordered=ordered)

    def _topic(self, request: web.Request) -> Source:
        door, cid = self._doors.topics, request.match_info["cid"]
        values = Values(request)
        start = request.headers.get(LAST_EVENT_ID) or values.get("from") or LATEST
        values.check_all_known()
        if door is None:
            raise NotFound("this node is not in the DHT, and so in no topic: ask another one")
        if start == LATEST:
            return self._feeds.join(cid, lambda: door.subscribe(cid, LATEST))
        return door.subscribe(cid, start)


def _start(request: web.Request, stream: StreamId) -> tuple[Start, int | None, bool]:
    values = Values(request)
    last = values.number("last", 1, LAST_MAX, None)
    begin = values.get("from")
    partition = values.number("partition", 0, PARTITIONS_MAX - 1, None)
    ordered = values.flag("ordered", otherwise=True)
    start: Start = LATEST
    seen = request.headers.get(LAST_EVENT_ID)
    if last is not None and begin is not None:
        raise UsageError("last= and from=: give one or the other")
    if seen:
        start = parse_message_id(stream, seen)
    elif last is not None:
        start = last
    elif begin == EARLIEST:
        start = EARLIEST
    elif begin is not None and begin != LATEST:
        start = _time(values)
    values.check_all_known()
    return start, partition, ordered


def _time(values: Values) -> datetime:
    when = values.time("from")
    assert when is not None  # it was there before
    return when


# How it is told


async def _serve_events(request: web.Request, messages: AsyncIterator[Told]) -> web.StreamResponse:
    headers = {
        "Content-Type": EVENTS,
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",  # nginx would hold events back
    }
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)

    async def write(frame: bytes) -> None:
        async with asyncio.timeout(STALLED_S):
            await response.write(frame)

    try:
        await write(b": welcome\n\n")  # clients are open when the first byte is there
        await _tell(messages, lambda told: write(_event(told)), lambda: write(b":\n\n"))
        await response.write_eof()
    except (ConnectionResetError, TimeoutError):
        hang_up(request)  # it went away, or does as if
    except ShoalError as error:
        with suppress(ConnectionResetError, TimeoutError):
            await write(b"event: error\ndata: " + problem(str(error)).encode() + b"\n\n")
    return response


async def _serve_socket(request: web.Request, messages: AsyncIterator[Told]) -> web.StreamResponse:
    socket = web.WebSocketResponse(
        heartbeat=HEARTBEAT_S, max_msg_size=MESSAGE_BYTES_MAX, compress=False
    )
    await socket.prepare(request)

    async def write(told: Told) -> None:
        async with asyncio.timeout(STALLED_S):
            if told.gap_before is not None:
                await socket.send_frame(_gap_line(told.gap_before), WSMsgType.TEXT)
            await socket.send_frame(told.line, WSMsgType.TEXT)

    async def nothing() -> None:
        """The socket pings by itself."""

    async def talk() -> None:
        try:
            await _tell(messages, write, nothing)
            await socket.close()
        except (ConnectionResetError, TimeoutError):
            hang_up(request)
        except ShoalError as error:
            with suppress(ConnectionResetError):
                await socket.send_str(problem(str(error)))
                await socket.close(code=1011)

    talking = asyncio.create_task(talk())
    try:
        async for _ in socket:
            pass  # until it goes
    except asyncio.CancelledError:
        talking.cancel()
        if request[ADMISSION].ended:
            await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the key was revoked")
        raise
    finally:
        talking.cancel()
        await asyncio.wait([talking])
    return socket


async def _tell(
    messages: AsyncIterator[Told],
    write: Callable[[Told], Awaitable[None]],
    beat: Callable[[], Awaitable[None]],
) -> None:
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                told = await anext(messages, None)
        except TimeoutError:
            await beat()
            continue
        if told is None:
            return
        await write(told)


def _event(told: Told) -> bytes:
    frame = b"id: %b\ndata: %b\n\n" % (told.id.encode(), told.line)
    if told.gap_before is None:
        return frame
    return b"event: gap\ndata: " + _gap_line(told.gap_before) + b"\n\n" + frame


def _gap_line(gap: Gap) -> bytes:
    return msgspec.json.encode({"gap": gap})
