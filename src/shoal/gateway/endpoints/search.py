"""Search over HTTP: questions with a confidence, and this node's documents.

GET    /search?q=QUERY&confidence=0.99&limit=N&within=SECONDS
GET    /documents/{name}?owner=0x...
PUT    /documents/{name}?kind=managed&life=SECONDS       a JSON object
DELETE /documents/{name}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, get_args

from aiohttp import web
from msgspec import Meta

from shoal.base.errors import NotFound, UsageError
from shoal.base.units import S_NS
from shoal.gateway.live_feeds import DocumentShown, SearchAnswer, SearchDoor, SearchQuestion
from shoal.gateway.requests import Explained, Values, json_answer, read_json
from shoal.gateway.route_table import JSON, Body, Parameter, Route
from shoal.protocols.search.documents.document import CONTENT_BYTES_MAX, LIFE_NS_MAX, Life

HITS_MAX = 1_000
HITS_DEFAULT = 100
WITHIN_S_MAX = 60.0
WITHIN_S_DEFAULT = 10.0
CONFIDENCE_DEFAULT = 0.99
CONFIDENCE_LEAST, CONFIDENCE_MOST = 0.01, 0.9999  # between them a network can be asked
LIFE_S_MAX = max(LIFE_NS_MAX.values()) / S_NS

_QUERY = Parameter("q", str, "What is looked for; see docs/search-queries.md.", required=True)
_CONFIDENCE = Parameter(
    "confidence",
    Annotated[float, Meta(ge=CONFIDENCE_LEAST, le=CONFIDENCE_MOST)],
    "With which probability a document that is there is found.",
)
_LIMIT = Parameter("limit", Annotated[int, Meta(ge=1, le=HITS_MAX)], "So many hits are enough.")
_WITHIN = Parameter(
    "within", Annotated[float, Meta(ge=0.1, le=WITHIN_S_MAX)], "Seconds that it may take."
)
_OWNER = Parameter("owner", str, "Whose it is, 0x...; this node's unless given.")
_KIND = Parameter("kind", Life, "How it is kept; managed unless given.")
_LIFE = Parameter("life", Annotated[float, Meta(ge=1, le=LIFE_S_MAX)], "For how many seconds.")


class Documents:
    """The part of a gateway that searches."""

    def __init__(self, door: SearchDoor | None) -> None:
        self._known = door

    def routes(self) -> Iterable[Route]:
        """Serve."""
        yield Route(
            method="GET",
            path="/search",
            handler=self._search,
            summary="Documents of the whole network that match",
            access="read",
            parameters=(_QUERY, _CONFIDENCE, _LIMIT, _WITHIN),
            answer=SearchAnswer,
        )
        yield Route(
            method="GET",
            path="/documents/{name}",
            handler=self._get,
            summary="The newest version of a document",
            access="read",
            parameters=(_OWNER,),
            answer=dict[str, Any],
        )
        yield Route(
            method="PUT",
            path="/documents/{name}",
            handler=self._put,
            summary="Have a JSON object found, in place of this node's of the same name",
            access="publish",
            parameters=(_KIND, _LIFE),
            body=Body(((JSON, dict[str, Any]),), CONTENT_BYTES_MAX),
            answer=DocumentShown,
        )
        yield Route(
            method="DELETE",
            path="/documents/{name}",
            handler=self._delete,
            summary="Have a document of this node not found any more",
            access="publish",
            answer=DocumentShown,
        )

    async def _search(self, request: web.Request) -> web.Response:
        with Explained():
            values = Values(request)
            query = values.get("q")
            question = SearchQuestion(
                query or "",
                values.decimal("confidence", CONFIDENCE_LEAST, CONFIDENCE_MOST, CONFIDENCE_DEFAULT),
                values.number("limit", 1, HITS_MAX, HITS_DEFAULT),
                values.decimal("within", 0.1, WITHIN_S_MAX, WITHIN_S_DEFAULT),
            )
            values.check_all_known()
            if not query:
                raise UsageError("q=: say what is looked for, as in q=kind:topic")
            return json_answer(await self._door.search(question))

    async def _get(self, request: web.Request) -> web.Response:
        with Explained():
            values = Values(request)
            owner = values.get("owner")
            values.check_all_known()
            found = await self._door.get(request.match_info["name"], owner)
            return web.Response(body=found, content_type=JSON)

    async def _put(self, request: web.Request) -> web.Response:
        content = await read_json(request, dict[str, Any], CONTENT_BYTES_MAX)
        with Explained():
            values = Values(request)
            kind = values.get("kind") or "managed"
            life_s = values.decimal("life", 1, LIFE_S_MAX, None)
            values.check_all_known()
            if kind not in get_args(Life):
                raise UsageError(f"kind={kind[:100]}: give one of {', '.join(get_args(Life))}")
            name = request.match_info["name"]
            return json_answer(await self._door.put(name, content, kind, life_s))

    async def _delete(self, request: web.Request) -> web.Response:
        with Explained():
            Values(request).check_all_known()
            return json_answer(await self._door.delete(request.match_info["name"]))

    @property
    def _door(self) -> SearchDoor:
        if self._known is None:
            raise NotFound("this node is not in the search network: ask another one")
        return self._known
