"""Who may come in: asked of every request, before anything else is done with it.

page      what a browser sends comes from this gateway's own pages, under a name of its own, or
          from a listed origin (base/page_guard.py); pages without data may be linked to
rate      of an address, and of a key: a bucket of tokens
key       if there are keys: its scopes and patterns, by the table of routes. They are asked again
          as long as the request is under way: an open response ends with its key
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from time import monotonic_ns

from aiohttp import hdrs, web

from shoal.base.containers import RateLimit
from shoal.base.errors import ConfigError
from shoal.base.page_guard import PageGuard, is_loopback_address
from shoal.base.units import S_NS
from shoal.gateway.api_keys import ApiKey, KeyFile, KeyRing
from shoal.gateway.config import ADDRESSES_MAX, GatewayConfig
from shoal.gateway.requests import refusal
from shoal.gateway.route_table import Access, Extra, Route, Scope, Table
from shoal.transport.address_limits import origin_of

LOOPBACK = "loopback"  # all addresses of this machine, where they count
END_S = 1.0  # what a response whose key is gone has to say goodbye
BEARER = "Bearer "
ALLOWED_METHODS = "GET, POST, PUT, DELETE"
ALLOWED_HEADERS = "Authorization, Content-Type, Last-Event-ID"
PREFLIGHT_S = 600


class Admission:
    """A request that came in, and what it came in with."""

    def __init__(self, request: web.Request, key: ApiKey | None = None) -> None:
        self.key = key
        self.scope: Scope | None = None
        """What the key has to allow, if any key is not enough; and the stream or topic of it."""
        self.subject: str | None = None
        self.ended = False
        """Its key is gone."""
        self._request = request
        self._task = asyncio.current_task()

    @property
    def whose(self) -> Sequence[Hashable]:
        """Whom its body counts for: its key; and its address, of which all programs of this
        machine, or behind a proxy on it, have one, so that their keys are enough."""
        key = [] if self.key is None else [("key", self.key.id)]
        network = origin_of(self._request.remote or "::1")
        if network is None:
            return key or [("address", LOOPBACK)]
        return [*key, ("address", network)]

    def end(self) -> None:
        """Its key is gone. What is sent to it ends, and what it has not said yet is not heard; what
        it has asked for with all its body is done to the end."""
        reads = self._request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
        if self._task is None or not (reads or not self._request.content.at_eof()):
            return
        self.ended = True
        self._task.cancel()
        transport = self._request.transport
        if transport is not None:  # it may not read what is left, and so never be done
            asyncio.get_running_loop().call_later(END_S, transport.abort)


ADMISSION = web.RequestKey("admission", Admission)


class Guard:
    """Lets requests in, or says why not."""

    def __init__(self, config: GatewayConfig, table: Table, extras: tuple[Extra, ...] = ()) -> None:
        self._config = config
        self._pages = PageGuard("gateway", config.origins, config.hosts)
        self._table = table
        self._public = tuple([prefix for extra in extras for prefix in extra.public])
        self._keys = None if config.keys is None else KeyRing(KeyFile(config.keys))
        if self._keys is not None and not len(self._keys):
            raise ConfigError(
                f"gateway.keys: {config.keys} has no key, so nobody could come in:"
                " `shoal gateway key new` makes one"
            )
        refill_ns = max(1, round(S_NS / config.requests_per_s))
        self._rates = RateLimit(config.burst, refill_ns, ADDRESSES_MAX)
        self._retry_s = ceil(refill_ns / S_NS)
        self._admitted: dict[Admission, None] = {}

    @property
    def has_keys(self) -> bool:
        """Whether there are keys to be asked for."""
        return self._keys is not None

    @contextmanager
    def admit(self, request: web.Request) -> Iterator[Admission]:
        """Let a request in, until it is done; raises what one that may not come in is answered."""
        admission = self._check(request)
        if admission.key is None:
            yield admission
            return
        self._admitted[admission] = None
        try:
            yield admission
        finally:
            del self._admitted[admission]

    def look_again(self) -> None:
        """End what is under way with keys that do not allow it any more."""
        if self._keys is None:
            return
        self._keys.look_again()
        for admission in list(self._admitted):
            assert admission.key is not None  # only those with one are remembered
            key = self._keys.holding(admission.key)
            scope, subject = admission.scope, admission.subject
            if key is None or not (scope is None or key.may(scope, subject)):
                admission.end()

    def _check(self, request: web.Request) -> Admission:
        self._check_page(request)
        route = self._table.of(request)
        if route is None or route.access != "open":  # a probe may share its address with others
            self._check_rate(("address", request.remote))
        if self._keys is None or self._is_preflight(request):
            return Admission(request)
        access = self._access(request, route)
        if access == "open" or access == "token":
            return Admission(request)
        key = self._key(request, route, self._keys)
        self._check_rate(("key", key.id))
        admission = Admission(request, key)
        if access == "key":
            return admission
        subject = None if route is None else route.subject(request)
        if not key.may(access, subject):
            what = "" if subject is None else f" with {subject}"
            raise refusal(
                web.HTTPForbidden,
                f"key {key.id} ({key.name}) may not {access}{what}: it has"
                f" {', '.join(key.scopes)} for {', '.join(key.streams)};"
                " `shoal gateway key new` makes others",
            )
        admission.scope, admission.subject = access, subject
        return admission

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks whether a page may ask."""
        return web.Response(status=204) if self._is_preflight(request) else None

    def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Tell a browser that a listed origin may read this, and no other page."""
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or not self._pages.lists(origin):
            return
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.VARY] = hdrs.ORIGIN
        if self._is_preflight(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = ALLOWED_METHODS
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = ALLOWED_HEADERS
            response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(PREFLIGHT_S)

    # Steps

    def _check_page(self, request: web.Request) -> None:
        here = None if request.transport is None else request.transport.get_extra_info("sockname")
        refused = self._pages.refusal(
            request.headers,
            loopback=here is None or is_loopback_address(here[0]),
            own=f"{request.scheme}://{request.host}",
            entry=request.method == hdrs.METH_GET and request.path.startswith(self._public),
        )
        if refused is not None:
            if refused.reason == "foreign-host":
                raise refusal(web.HTTPMisdirectedRequest, refused.text)
            raise refusal(web.HTTPForbidden, refused.text)

    def _check_rate(self, who: tuple[str, str | None]) -> None:
        if not self._rates.allow(who, monotonic_ns()):
            raise refusal(
                web.HTTPTooManyRequests,
                f"more than {self._config.requests_per_s:g} requests a second: wait"
                f" {self._retry_s} s",
                headers={hdrs.RETRY_AFTER: str(self._retry_s)},
            )

    def _access(self, request: web.Request, route: Route | None) -> Access:
        if route is not None:
            return route.access
        if request.match_info.http_exception is not None:
            return "open"  # there is nothing there: it is told so
        if request.path.startswith(self._public):
            return "open"
        return "read" if request.method in (hdrs.METH_GET, hdrs.METH_HEAD) else "admin"

    def _key(self, request: web.Request, route: Route | None, keys: KeyRing) -> ApiKey:
        shown = request.headers.get(hdrs.AUTHORIZATION)
        if shown is None and (route is None or route.browsers):
            shown = request.query.get("api_key")
        found = None if shown is None else keys.find(shown.removeprefix(BEARER))
        if found is None:
            raise refusal(
                web.HTTPUnauthorized,
                "this is no key of this gateway: send `Authorization: Bearer KEY` with one that"
                " `shoal gateway key new` made",
                headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
            )
        return found

    def _is_preflight(self, request: web.Request) -> bool:
        return (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
            and self._pages.lists(request.headers.get(hdrs.ORIGIN))
        )
