"""What every answer of the gateway looks like: JSON, also when something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web


def json_answer(value: Any, status: int = 200) -> web.Response:
    """A value."""
    body = msgspec.json.encode(value)
    return web.Response(body=body, content_type="application/json", status=status)


def problem(text: str, **figures: int) -> str:
    """What is wrong, and what to do instead; figures are for programs."""
    return msgspec.json.encode({"error": text, **figures}).decode()


def refusal(
    status: type[web.HTTPException], text: str, headers: Mapping[str, str] | None = None
) -> web.HTTPException:
    """A status, with a remedy."""
    return status(text=problem(text), content_type="application/json", headers=headers)


def not_found(text: str) -> web.HTTPException:
    """404, with a remedy."""
    return refusal(web.HTTPNotFound, text)
