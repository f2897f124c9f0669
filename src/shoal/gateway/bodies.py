"""What a request carries, read up to a bound."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from shoal.base.errors import UsageError
from shoal.gateway.answers import problem, refusal
from shoal.gateway.config import STALLED_S
from shoal.gateway.values import Explained

T = TypeVar("T")


async def read_body(request: web.Request, bytes_max: int) -> bytes:
    """All of it, unless it is too much: the server's own limit is for questions."""
    body = bytearray()
    while not request.content.at_eof():
        try:
            async with asyncio.timeout(STALLED_S):
                body += await request.content.readany()
        except TimeoutError:
            raise refusal(
                web.HTTPRequestTimeout, f"nothing came for {STALLED_S:g} s: send it all at once"
            ) from None
        if len(body) > bytes_max:
            raise web.HTTPRequestEntityTooLarge(
                bytes_max,
                len(body),
                text=problem(f"more than {bytes_max} bytes: send smaller chunks"),
                content_type="application/json",
            )
    return bytes(body)


async def read_json(request: web.Request, kind: type[T], bytes_max: int) -> T:
    """A value of a known form."""
    body = await read_body(request, bytes_max)
    with Explained():
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{request.path}: {error}") from None
