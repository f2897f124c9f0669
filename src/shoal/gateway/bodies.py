"""What a request carries, read up to a bound; and the bound on all that requests carry at once."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from aiohttp import hdrs, web

from shoal.base.errors import UsageError
from shoal.gateway.answers import problem, refusal
from shoal.gateway.config import (
    BODIES_BYTES_MAX,
    BODIES_SHARE_BYTES_MAX,
    BODY_BUFFER_BYTES,
    BODY_S,
    STALLED_S,
)
from shoal.gateway.values import Explained

RETRY_S = 1
"""What a client is asked to wait that finds no room for its body."""
T = TypeVar("T")


class BodyBudget:
    """Counts the bytes of all bodies that are held, and whose they are."""

    def __init__(
        self, bytes_max: int = BODIES_BYTES_MAX, share_max: int = BODIES_SHARE_BYTES_MAX
    ) -> None:
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._share_max = share_max
        self._shares: dict[Hashable, int] = {}

    @contextmanager
    def charge(self, whose: Sequence[Hashable]) -> Iterator[BodyCharge]:
        """What one request holds, until it is over. It counts for each of these."""
        charge = BodyCharge(self, whose)
        try:
            yield charge
        finally:
            charge.grow_to(0)

    def change(self, whose: Sequence[Hashable], by: int) -> None:
        """So many bytes more, or less; 429 or 503 if there is no room for more."""
        if by > 0:
            for who in whose:
                if self._shares.get(who, 0) + by > self._share_max:
                    raise _no_room(
                        web.HTTPTooManyRequests,
                        f"bodies of your requests have {self._share_max} bytes here at once, and no"
                        " more",
                    )
            if self.held_bytes + by > self._bytes_max:
                raise _no_room(
                    web.HTTPServiceUnavailable,
                    f"bodies of all requests have {self._bytes_max} bytes here at once, and no"
                    " more",
                )
        self.held_bytes += by
        for who in whose:
            share = self._shares.pop(who, 0) + by
            if share:
                self._shares[who] = share


class BodyCharge:
    """The part of a budget that one request has."""

    def __init__(self, budget: BodyBudget, whose: Sequence[Hashable]) -> None:
        self._budget = budget
        self._whose = whose
        self._held = 0

    def begin(self, request: web.Request) -> None:
        """Count what its connection holds before anybody reads it."""
        if request.body_exists:
            packed = hdrs.CONTENT_ENCODING in request.headers  # then its length says little
            length = None if packed else request.content_length
            self.grow_to(BODY_BUFFER_BYTES if length is None else min(BODY_BUFFER_BYTES, length))

    def grow_to(self, size: int) -> None:
        """Hold so many bytes."""
        self._budget.change(self._whose, size - self._held)
        self._held = size


CHARGE = web.RequestKey("charge", BodyCharge)


async def read_body(request: web.Request, bytes_max: int) -> bytes:
    """All of it, unless it is too much or takes too long: the server's own limit is for
    questions. ConnectionError if the client hangs up."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            await _read(request, body, bytes_max)
        return bytes(body)
    except TimeoutError:
        raise refusal(
            web.HTTPRequestTimeout, f"this took longer than {BODY_S:g} s: send less at a time"
        ) from None
    finally:
        body.clear()  # now: a traceback would keep it until garbage is collected


async def _read(request: web.Request, body: bytearray, bytes_max: int) -> None:
    charge = request[CHARGE]
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
        if len(body) > BODY_BUFFER_BYTES:
            charge.grow_to(len(body))


async def read_json(request: web.Request, kind: type[T], bytes_max: int) -> T:
    """A value of a known form."""
    body = await read_body(request, bytes_max)
    with Explained():
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{request.path}: {error}") from None


def _no_room(status: type[web.HTTPException], text: str) -> web.HTTPException:
    headers = {str(hdrs.RETRY_AFTER): str(RETRY_S)}
    return refusal(status, f"{text}: try again in {RETRY_S} s", headers=headers)
