"""Who may come in: asked of every request, before anything else is done with it.

host      a gateway on loopback answers to names of this machine only: a page whose own name
          was made to lead here (DNS rebinding) gets nothing
origin    what a web page sends comes from this gateway's own pages, or from a listed origin
rate      of an address, and of a key: a bucket of tokens
key       if there are keys: its scopes and patterns, by the table of routes
"""

from __future__ import annotations

from math import ceil
from time import monotonic_ns
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from shoal.base.errors import ConfigError
from shoal.base.units import S_NS
from shoal.gateway.answers import refusal
from shoal.gateway.config import ADDRESSES_MAX, GatewayConfig, is_loopback
from shoal.gateway.keys import ApiKey, KeyFile, KeyRing
from shoal.gateway.routes import Access, Extra, Route, Table
from shoal.kernel.rate_limit import RateLimit

ALL = "*"
BEARER = "Bearer "
ALLOWED_METHODS = "GET, POST, PUT, DELETE"
ALLOWED_HEADERS = "Authorization, Content-Type, Last-Event-ID"
PREFLIGHT_S = 600


class Guard:
    """Lets requests in, or says why not."""

    def __init__(self, config: GatewayConfig, table: Table, extras: tuple[Extra, ...] = ()) -> None:
        self._config = config
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
        self.local = True
        """Whether it serves on loopback only."""

    def check(self, request: web.Request) -> None:
        """Raise what a request that may not come in is answered."""
        self._check_host(request)
        self._check_origin(request)
        route = self._table.of(request)
        if route is None or route.access != "open":  # a probe may share its address with others
            self._check_rate(("address", request.remote))
        if self._keys is None or self._is_preflight(request):
            return
        access = self._access(request, route)
        if access == "open" or access == "token":
            return
        key = self._key(request, route, self._keys)
        self._check_rate(("key", key.id))
        if access == "key":
            return
        subject = None if route is None else route.subject(request)
        if not key.may(access, subject):
            what = "" if subject is None else f" with {subject}"
            raise refusal(
                web.HTTPForbidden,
                f"key {key.id} ({key.name}) may not {access}{what}: it has"
                f" {', '.join(key.scopes)} for {', '.join(key.streams)};"
                " `shoal gateway key new` makes others",
            )

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks whether a page may ask."""
        return web.Response(status=204) if self._is_preflight(request) else None

    def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Tell a browser that a listed origin may read this."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or not self._is_listed(origin):
            return
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.VARY] = hdrs.ORIGIN
        if self._is_preflight(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = ALLOWED_METHODS
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = ALLOWED_HEADERS
            response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(PREFLIGHT_S)

    # Steps

    def _check_host(self, request: web.Request) -> None:
        if not self.local:
            return
        name = _host_of(f"//{request.host}")
        if not is_loopback(name) and name not in self._config.hosts:
            raise refusal(
                web.HTTPMisdirectedRequest,
                f"this gateway is not {name!r}: ask for 127.0.0.1, or add the name to hosts under"
                " [gateway]",
            )

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or self._is_listed(origin):
            return
        own = f"{request.scheme}://{request.host}"
        if origin != own:
            raise refusal(
                web.HTTPForbidden,
                f"pages of {origin[:200]!r} may not ask here: add it to origins under [gateway]",
            )

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

    def _is_listed(self, origin: str) -> bool:
        return ALL in self._config.origins or origin in self._config.origins

    def _is_preflight(self, request: web.Request) -> bool:
        return (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
            and self._is_listed(request.headers.get(hdrs.ORIGIN, ""))
        )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
