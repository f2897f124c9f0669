"""The table of routes: what is served, to whom, and how it is described. The router, the checks of
keys and the OpenAPI document are all made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Protocol

import msgspec
from aiohttp import web

from shoal.base.errors import UsageError
from shoal.base.ids import parse_stream_id

Scope = Literal["read", "publish", "lease", "admin"]
Access = Scope | Literal["open", "key", "token"]
"""A scope that the key must have; or: everybody, every key, the outbox's own token."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON = "application/json"
NDJSON = "application/x-ndjson"
TEXT = "text/plain"
BINARY = "application/octet-stream"
EVENTS = "text/event-stream"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Parameter(msgspec.Struct, frozen=True):
    """A value in the query of a request."""

    name: str
    type: Any
    text: str
    required: bool = False


class Body(msgspec.Struct, frozen=True):
    """What a request carries: for each media type its form; None is any bytes."""

    forms: tuple[tuple[str, Any], ...]
    bytes_max: int


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the gateway does."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    handler: Handler
    summary: str
    access: Access
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answer: Any = None
    """The form of what comes back; None is any text."""
    media: str = JSON
    status: int = 200
    browsers: bool = False
    """Browsers ask for it without headers: the key may be in the query."""

    @property
    def pattern(self) -> str:
        """For the router: stream ids and names contain slashes."""
        return self.path.replace("{id}", "{id:.+}").replace("{name}", "{name:.+}")

    @property
    def name(self) -> str:
        """Its name in the OpenAPI document."""
        words = self.path.replace("{", "").replace("}", "").replace(".", "/").strip("/").split("/")
        return "_".join([self.method.lower(), *words])

    def subject(self, request: web.Request) -> str | None:
        """The stream or topic that it is about, as patterns of keys name it."""
        if "{id}" in self.path:
            try:
                return parse_stream_id(request.match_info["id"])
            except UsageError:
                return request.match_info["id"]  # the handler says what is wrong with it
        return request.match_info.get("cid")


class Part(Protocol):
    """A part of the gateway."""

    def routes(self) -> Iterable[Route]: ...


class Extra(Protocol):
    """What somebody else serves here. Where keys are set, GET needs one that may read, all else one
    that may administer, unless the path begins with one of `public`: pages without data."""

    public: tuple[str, ...]

    def add_routes(self, router: web.UrlDispatcher) -> None: ...


class Table:
    """All routes of a gateway."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.routes = [route for part in parts for route in part.routes()]
        self._known: dict[web.AbstractRoute, Route] = {}

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        for route in self.routes:
            added = router.add_route(route.method, route.pattern, route.handler)
            self._known[added] = route

    def of(self, request: web.Request) -> Route | None:
        """The route that a request takes, if it is one of ours."""
        return self._known.get(request.match_info.route)

    def paths(self) -> str:
        """For who is lost."""
        return ", ".join(dict.fromkeys(route.path for route in self.routes))
