"""Values in the query of a request, and the status that an error has."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from math import nan
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from aiohttp import hdrs, web

from shoal.base.errors import (
    ClockWrong,
    HistoryUnavailable,
    NotFound,
    NotPermitted,
    OffsetExpired,
    RegistryRefused,
    RegistryUnavailable,
    SearchUnavailable,
    SessionReplaced,
    ShoalError,
    StreamUnavailable,
    TopicUnavailable,
    UsageError,
)
from shoal.base.ids import INT63_MAX, NodeId, parse_node_id
from shoal.base.offsets import MINUS_MAX
from shoal.base.units import parse_time
from shoal.gateway.config import (
    BODIES_BYTES_MAX,
    BODIES_SHARE_BYTES_MAX,
    BODY_BUFFER_BYTES,
    BODY_S,
    STALLED_S,
)
from shoal.storage.errors import StoreError

# What every answer of the gateway looks like: JSON, also when something is wrong.


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


# What a request carries, read up to a bound; and the bound on all that requests carry at once.


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


class TooManySubscribers(ShoalError):
    """The gateway has as many as it takes."""


DIGITS_MAX = 19  # of 2**63 - 1
API_KEY = "api_key"  # it was looked at before


class Values:
    """The query of a request: what is wrong with a value is said with the value."""

    def __init__(self, request: web.Request) -> None:
        self._query = request.query
        self._known: list[str] = []

    def get(self, name: str) -> str | None:
        self._known.append(name)
        return self._query.get(name)

    def number(self, name: str, least: int, most: int, otherwise: Any) -> Any:
        text = self.get(name)
        return otherwise if text is None else _whole(name, text, least, most)

    def decimal(self, name: str, least: float, most: float, otherwise: Any) -> Any:
        text = self.get(name)
        if text is None:
            return otherwise
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not least <= value <= most:
            raise UsageError(f"{name}={text[:100]}: give a number, {least:g} to {most:g}")
        return value

    def flag(self, name: str, otherwise: bool) -> bool:
        text = self.get(name)
        if text not in (None, "true", "false"):
            raise UsageError(f"{name}={text[:100]}: give true, or false")
        return otherwise if text is None else text == "true"

    def time(self, name: str) -> datetime | None:
        text = self.get(name)
        if text is None:
            return None
        # A plus in a query is a space, unless it was written as %2B.
        return parse_time(name, text.replace(" ", "+"))

    def node(self, name: str) -> NodeId | None:
        text = self.get(name)
        return None if text is None else parse_node_id(text)

    def log(self, name: str) -> UUID | None:
        text = self.get(name)
        return None if text is None else _log_id(name, text)

    def minus(self, name: str) -> dict[UUID, int]:
        """Logs and how far they are left out: UUID:SEQ,UUID:SEQ."""
        given = self.get(name)
        found: dict[UUID, int] = {}
        for part in [] if given is None else given.split(","):
            text, _, seq = part.partition(":")
            log = _log_id(name, text)
            found[log] = _whole(name, seq, 1, INT63_MAX)
        if len(found) > MINUS_MAX:
            raise UsageError(f"{name}= names {len(found)} logs: at most {MINUS_MAX}")
        return found

    def check_all_known(self) -> None:
        for name in self._query:
            if name not in self._known and name != API_KEY:
                raise UsageError(f"{name}=: no such value: give {', '.join(self._known)}")


def _whole(name: str, text: str, least: int, most: int) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
    if not digits or not least <= int(text) <= most:
        raise UsageError(f"{name}={text}: give a whole number, {least} to {most}")
    return int(text)


def _log_id(name: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise UsageError(f"{name}={text}: give a log's id, as log/heads names them") from None


_STATUS: tuple[tuple[type[ShoalError], type[web.HTTPException]], ...] = (
    (NotFound, web.HTTPNotFound),
    (OffsetExpired, web.HTTPGone),
    (NotPermitted, web.HTTPForbidden),
    (RegistryRefused, web.HTTPForbidden),
    (UsageError, web.HTTPBadRequest),
    (HistoryUnavailable, web.HTTPServiceUnavailable),
    (StreamUnavailable, web.HTTPServiceUnavailable),
    (ClockWrong, web.HTTPServiceUnavailable),
    (SessionReplaced, web.HTTPServiceUnavailable),
    (TopicUnavailable, web.HTTPServiceUnavailable),
    (SearchUnavailable, web.HTTPServiceUnavailable),
    (RegistryUnavailable, web.HTTPServiceUnavailable),
    (TooManySubscribers, web.HTTPServiceUnavailable),
    (StoreError, web.HTTPServiceUnavailable),
)


def status_of(error: ShoalError) -> int:
    """The status that says so; of what nobody foresaw, that it is our fault."""
    for raised, status in _STATUS:
        if isinstance(error, raised):
            return status.status_code
    return web.HTTPInternalServerError.status_code


class Explained:
    """Turns what Shoal raises into the status that says so."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        for raised, status in _STATUS:
            if isinstance(error, raised):
                left = {}
                if isinstance(error, OffsetExpired):
                    left = {"first": error.first_seq, "last": error.last_seq}
                text = problem(str(error), **left)
                raise status(text=text, content_type="application/json") from error
