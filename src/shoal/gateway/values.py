"""Values in the query of a request, and the status that an error has."""

from __future__ import annotations

from datetime import datetime
from math import nan
from typing import Any
from uuid import UUID

from aiohttp import web

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
from shoal.base.times import parse_time
from shoal.gateway.answers import problem
from shoal.gateway.feeds import TooManySubscribers
from shoal.storage.errors import StoreError

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
