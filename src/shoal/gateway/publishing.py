"""Publishing over HTTP: one message a request, or one a line.

    POST /streams/{id}/messages?partition=P&key=K&durable=N

The Content-Type says what a message is: application/json is JSON, text/* is text, anything else is
bytes as they are. application/x-ndjson is many messages, a line of JSON each: they are published in
order, and if one cannot be, the answer says how many were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.base.ids import PARTITIONS_MAX, MessageId, Partition, parse_stream_id, show_node_id
from shoal.gateway.answers import json_answer, problem
from shoal.gateway.bodies import read_body
from shoal.gateway.config import LINES_BYTES_MAX, LINES_MAX
from shoal.gateway.doors import PublishOptions, StreamDoor
from shoal.gateway.routes import BINARY, JSON, NDJSON, TEXT, Body, Parameter, Route
from shoal.gateway.values import Explained, Values, status_of
from shoal.identity.stream_message import CONTENT_BYTES_MAX

DURABLE_MAX = 16

_PARTITION = Parameter("partition", Partition, "Where it goes; in turn, unless there is a key.")
_KEY = Parameter("key", str, "Messages of one key go to one partition, and stay in order.")
_DURABLE = Parameter(
    "durable",
    Annotated[int, Meta(ge=0, le=DURABLE_MAX)],
    "Answer when so many storage nodes have it on disk.",
)


class Place(msgspec.Struct, frozen=True):
    """What a message is called in its stream."""

    partition: int
    timestamp_ms: int
    sequence: int
    publisher: str
    chain: str


class Published(msgspec.Struct, frozen=True):
    """What was published, in order."""

    messages: list[Place]


class Publishing:
    """The part of a gateway that publishes to streams."""

    def __init__(self, door: StreamDoor | None) -> None:
        self._door = door
        self.messages = 0
        """So many were published."""

    def routes(self) -> Iterable[Route]:
        """Serve."""
        forms = ((JSON, Any), (NDJSON, None), (TEXT, str), (BINARY, None))
        yield Route(
            method="POST",
            path="/streams/{id}/messages",
            handler=self._publish,
            summary="Publish one message, or one for each line",
            access="publish",
            parameters=(_PARTITION, _KEY, _DURABLE),
            body=Body(forms, LINES_BYTES_MAX),
            answer=Published,
            status=201,
        )

    async def _publish(self, request: web.Request) -> web.Response:
        with Explained():
            values = Values(request)
            options = PublishOptions(
                values.number("partition", 0, PARTITIONS_MAX - 1, None),
                values.get("key"),
                values.number("durable", 0, DURABLE_MAX, 0),
            )
            values.check_all_known()
            stream = parse_stream_id(request.match_info["id"])
            door = self._door
            if door is None:
                raise NotFound("this node knows no tracker, and so no stream: ask another one")
        many = request.content_type == NDJSON
        body = await read_body(request, LINES_BYTES_MAX if many else CONTENT_BYTES_MAX)
        with Explained():
            contents = contents_of(request.content_type, body)
        places: list[Place] = []
        for content in contents:
            try:
                places.append(_place(await door.publish(stream, content, options)))
            except ShoalError as error:
                if not many:
                    with Explained():
                        raise
                text = problem(f"line {len(places) + 1}: {error}", published=len(places))
                return web.Response(text=text, content_type=JSON, status=status_of(error))
            self.messages += 1
        return json_answer(Published(places), 201)


def contents_of(media: str, body: bytes) -> list[Any]:
    """The messages of a body; UsageError if it is not what it says."""
    try:
        if media == JSON:
            return [msgspec.json.decode(body)]
        if media == NDJSON:
            lines = [line for line in body.split(b"\n") if line.strip()]
            if len(lines) > LINES_MAX:
                raise UsageError(f"{len(lines)} lines: send {LINES_MAX} at most at a time")
            return [_line(number, line) for number, line in enumerate(lines, 1)]
        if media.startswith("text/"):
            return [body.decode()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"this is not {media} ({error}): mend it, or say what it is in Content-Type"
        ) from None
    return [body]


def _line(number: int, line: bytes) -> Any:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"line {number} is not JSON ({error}): nothing was published") from None
    if len(line) > CONTENT_BYTES_MAX:
        raise UsageError(
            f"line {number} has {len(line)} bytes, a message takes {CONTENT_BYTES_MAX}: nothing was"
            " published"
        )
    return value


def _place(id: MessageId) -> Place:
    publisher = show_node_id(id.publisher)
    return Place(id.partition, id.timestamp_ms, id.sequence, publisher, id.chain)
