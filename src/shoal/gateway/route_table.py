"""The table of routes: what is served, to whom, and how it is described. The router, the checks of
keys and the OpenAPI document are all made of it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec
from aiohttp import web

from shoal.base.errors import UsageError
from shoal.base.ids import parse_stream_id
from shoal.protocols.search.documents.document import NAME_CHARS_MAX

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


# The OpenAPI document of a gateway, made of its table of routes.


REF = "#/components/schemas/{name}"
PROBLEM = {"$ref": REF.format(name="Problem")}
TEXT_SCHEMA = {"type": "string", "minLength": 1}
PATH_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "id": (
        "A stream: its owner's address, a slash, and a path.",
        {"type": "string", "pattern": "^0x[0-9a-f]{40}/[ -~]{1,200}$"},
    ),
    "cid": ("The CID of a topic, zdpu...", TEXT_SCHEMA),
    "name": ("The name of a document.", {**TEXT_SCHEMA, "maxLength": NAME_CHARS_MAX}),
}


class Problem(msgspec.Struct):
    """What is wrong, and what to do instead."""

    error: str


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """OpenAPI 3.1."""
    types = [Problem, *_types(routes)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    known = dict(zip(map(_name, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal gateway",
            "version": version,
            "description": "One node of a Shoal network, for whoever is not Python.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of `shoal gateway key new`, if the gateway has keys.",
                },
                "browserKey": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "api_key",
                    "description": "The same key, where a browser can send no header.",
                },
            },
        },
    }


def _types(routes: Iterable[Route]) -> list[Any]:
    found: dict[str, Any] = {}
    for route in routes:
        forms = [] if route.body is None else [form for _, form in route.body.forms]
        for kind in (route.answer, *forms, *(value.type for value in route.parameters)):
            if kind is not None:
                found[_name(kind)] = kind
    return list(found.values())


def _name(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route, known: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_PARTS[name][0],
            "schema": PATH_PARTS[name][1],
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [
        {
            "name": value.name,
            "in": "query",
            "required": value.required,
            "description": value.text,
            "schema": known[_name(value.type)],
        }
        for value in route.parameters
    ]
    form = {} if route.answer is None else {"schema": known[_name(route.answer)]}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            str(route.status): {"description": "Done.", "content": {route.media: form}},
            "default": {
                "description": "What is wrong, and what to do instead.",
                "content": {JSON: {"schema": PROBLEM}},
            },
        },
    }
    if route.body is not None:
        operation["requestBody"] = _request_body(route.body, known)
    if route.access != "open":
        # Without keys no key is asked for; the empty one says so.
        schemes = ["key", "browserKey"] if route.browsers else ["key"]
        operation["security"] = [{name: []} for name in schemes] + [{}]
    return operation


def _request_body(body: Body, known: dict[str, Any]) -> dict[str, Any]:
    content = {
        media: {"schema": known[_name(form)]} if form is not None else {}
        for media, form in body.forms
    }
    return {
        "required": True,
        "description": f"{body.bytes_max} bytes at most.",
        "content": content,
    }
