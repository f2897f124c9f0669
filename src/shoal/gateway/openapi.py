"""The OpenAPI document of a gateway, made of its table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shoal.gateway.routes import JSON, Body, Route
from shoal.protocols.search.documents import NAME_CHARS_MAX

REF = "#/components/schemas/{name}"
PROBLEM = {"$ref": REF.format(name="Problem")}
TEXT = {"type": "string", "minLength": 1}
PATH_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "id": (
        "A stream: its owner's address, a slash, and a path.",
        {"type": "string", "pattern": "^0x[0-9a-f]{40}/[ -~]{1,200}$"},
    ),
    "cid": ("The CID of a topic, zdpu...", TEXT),
    "name": ("The name of a document.", {**TEXT, "maxLength": NAME_CHARS_MAX}),
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
