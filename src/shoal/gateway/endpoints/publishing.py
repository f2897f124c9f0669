"""Publishing over HTTP: one message a request, or one a line.

    POST /streams/{id}/messages?partition=P&key=K&durable=N
    POST /streams/{id}/messages/retry

The Content-Type says what a message is: application/json is JSON, text/* is text, anything else is
bytes as they are. application/x-ndjson is many messages, a line of JSON each: they are published in
order, and if one cannot be, the answer says how many were.

A durable message that no storage node has confirmed is published all the same: the answer, 503, has
its id as `message`. The second route takes that id and answers when storage has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from shoal.base.errors import HistoryUnavailable, NotFound, ShoalError, UsageError
from shoal.base.ids import (
    PARTITIONS_MAX,
    MessageId,
    Partition,
    StreamId,
    parse_node_id,
    parse_stream_id,
    show_node_id,
)
from shoal.base.units import KIB
from shoal.gateway.config import LINES_BYTES_MAX, LINES_MAX
from shoal.gateway.live_feeds import PublishOptions, StreamDoor
from shoal.gateway.requests import Explained, Values, json_answer, read_body, status_of
from shoal.gateway.route_table import BINARY, JSON, NDJSON, TEXT, Body, Parameter, Route
from shoal.identity.message_body import CONTENT_BYTES_MAX

DURABLE_MAX = 16
PLACE_BYTES_MAX = 4 * KIB  # what a message is called, and room to write it as one likes

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
        yield Route(
            method="POST",
            path="/streams/{id}/messages/retry",
            handler=self._retry,
            summary="Wait until storage has a durable message that it had not confirmed",
            access="publish",
            body=Body(((JSON, Place),), PLACE_BYTES_MAX),
            answer=Published,
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
            del body
        places: list[Place] = []
        for content in contents:
            try:
                places.append(_place(await door.publish(stream, content, options)))
            except ShoalError as error:
                unkept = error.message if isinstance(error, HistoryUnavailable) else None
                if not many and unkept is None:
                    with Explained():
                        raise
                said: dict[str, Any] = {"error": str(error)}
                if many:
                    said = {"error": f"line {len(places) + 1}: {error}", "published": len(places)}
                if unkept is not None:
                    said["message"] = _place(unkept)
                return json_answer(said, status_of(error))
            self.messages += 1
        return json_answer(Published(places), 201)

    async def _retry(self, request: web.Request) -> web.Response:
        body = await read_body(request, PLACE_BYTES_MAX)
        with Explained():
            Values(request).check_all_known()
            stream = parse_stream_id(request.match_info["id"])
            if self._door is None:
                raise NotFound("this node knows no tracker, and so no stream: ask another one")
            try:
                place = msgspec.json.decode(body, type=Place)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"this is no `message` of an earlier answer: {error}") from None
            await self._door.retry(_id(stream, place))
        return json_answer(Published([place]))


def contents_of(media: str, body: bytes) -> list[Any]:
    """The messages of a body; UsageError if it is not what it says."""
    try:
        if media == JSON:
            return [_packed(msgspec.json.decode(body))]
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
    return _packed(value)


def _packed(value: Any) -> Any:
    """JSON as it is published: what it was decoded to takes up to 25 times the room, and a body is
    held until the last of its messages is on its way."""
    return value if isinstance(value, str) else msgspec.Raw(msgspec.json.encode(value))


def _id(stream: StreamId, place: Place) -> MessageId:
    return MessageId(
        stream,
        place.partition,
        place.timestamp_ms,
        place.sequence,
        parse_node_id(place.publisher),
        place.chain,
    )


def _place(id: MessageId) -> Place:
    publisher = show_node_id(id.publisher)
    return Place(id.partition, id.timestamp_ms, id.sequence, publisher, id.chain)
