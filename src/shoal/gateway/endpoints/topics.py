"""Durable topics over HTTP.

POST /topics                        {"name": ..., "publishers": "author" or "anyone", "public": ...}
GET  /topics/{cid}                  its name and author
POST /topics/{cid}/events           add an event: the body, as it is
GET  /topics/{cid}/events?limit=N   events from the newest back, as lines of JSON
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from shoal.base.errors import NotFound
from shoal.gateway.config import QUESTION_BYTES_MAX
from shoal.gateway.endpoints.history import serve_lines
from shoal.gateway.live_feeds import TopicDoor, TopicShown
from shoal.gateway.requests import Explained, Values, json_answer, read_body, read_json
from shoal.gateway.route_table import BINARY, JSON, NDJSON, Body, Parameter, Route
from shoal.identity.topics.cid import PAYLOAD_BYTES_MAX

EVENTS_MAX = 10_000
EVENTS_DEFAULT = 100
REPLICAS_MAX = 20

_LIMIT = Parameter(
    "limit", Annotated[int, Meta(ge=1, le=EVENTS_MAX)], f"So many; {EVENTS_DEFAULT} unless given."
)
_END = Parameter("end", str, "The CID of an event: it, and those before it.")
_REPLICAS = Parameter(
    "replicas",
    Annotated[int, Meta(ge=0, le=REPLICAS_MAX)],
    "Answer when so many other nodes keep it.",
)


class NewTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to make."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    publishers: Literal["author", "anyone"] = "author"
    public: bool = False
    """Search finds it by its name."""


class Topics:
    """The part of a gateway that serves topics."""

    def __init__(self, door: TopicDoor | None) -> None:
        self._known = door

    def routes(self) -> Iterable[Route]:
        """Serve."""
        yield Route(
            method="POST",
            path="/topics",
            handler=self._create,
            summary="Make a durable topic of this node",
            access="publish",
            body=Body(((JSON, NewTopic),), QUESTION_BYTES_MAX),
            answer=TopicShown,
            status=201,
        )
        yield Route(
            method="GET",
            path="/topics/{cid}",
            handler=self._show,
            summary="A topic's name and author",
            access="read",
            answer=TopicShown,
        )
        yield Route(
            method="POST",
            path="/topics/{cid}/events",
            handler=self._publish,
            summary="Add an event to a topic",
            access="publish",
            parameters=(_REPLICAS,),
            body=Body(((BINARY, None),), PAYLOAD_BYTES_MAX),
            answer=dict[str, Any],
            status=201,
        )
        yield Route(
            method="GET",
            path="/topics/{cid}/events",
            handler=self._read,
            summary="Events of a topic from the newest back, one a line",
            access="read",
            parameters=(_LIMIT, _END),
            media=NDJSON,
        )

    async def _create(self, request: web.Request) -> web.Response:
        asked = await read_json(request, NewTopic, QUESTION_BYTES_MAX)
        with Explained():
            Values(request).check_all_known()
            made = await self._door.create(asked.name, asked.publishers, public=asked.public)
            return json_answer(made, 201)

    async def _show(self, request: web.Request) -> web.Response:
        with Explained():
            Values(request).check_all_known()
            return json_answer(await self._door.show(request.match_info["cid"]))

    async def _publish(self, request: web.Request) -> web.Response:
        with Explained():
            values = Values(request)
            replicas = values.number("replicas", 0, REPLICAS_MAX, 0)
            values.check_all_known()
            door = self._door
        payload = await read_body(request, PAYLOAD_BYTES_MAX)
        with Explained():
            line = await door.publish(request.match_info["cid"], payload, replicas)
        return web.Response(body=line, content_type=JSON, status=201)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        with Explained():
            values = Values(request)
            limit = values.number("limit", 1, EVENTS_MAX, EVENTS_DEFAULT)
            end = values.get("end")
            values.check_all_known()
            lines = self._door.read(request.match_info["cid"], end, limit)
        return await serve_lines(request, lines)

    @property
    def _door(self) -> TopicDoor:
        if self._known is None:
            raise NotFound("this node is not in the DHT, and so in no topic: ask another one")
        return self._known
