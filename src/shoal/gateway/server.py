"""The gateway's HTTP server: its parts, put together.

    overview.py     health, readiness, metrics, what a tracker knows
    history.py      what storage nodes keep          publishing.py   messages into streams
    log.py          the logs of a storage node       live.py         subscribers
    topics.py       durable topics                   search.py       questions and documents
    outbox.py       what Spark queries publish       openapi.py      all of it, described

It is bound to loopback unless told otherwise. Stream ids contain slashes: write them as they are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from shoal.base.errors import UsageError
from shoal.base.gateway_messages import UnheardNode
from shoal.base.ids import StreamId
from shoal.base.log_line_limit import log_of_others
from shoal.config.network_file import NetworkFile
from shoal.config.sections import GatewaySection
from shoal.gateway.api_keys import LOOK_AGAIN_S
from shoal.gateway.config import (
    HANDSHAKE_S,
    IDLE_S,
    QUESTION_BYTES_MAX,
    GatewayConfig,
    split_listen,
)
from shoal.gateway.connection_limit import Entrance, connections_max
from shoal.gateway.endpoints.history import History
from shoal.gateway.endpoints.live import Live
from shoal.gateway.endpoints.metrics import Gauge, Metrics, gauges_of
from shoal.gateway.endpoints.outbox import OutboxDoor, OutboxRoutes
from shoal.gateway.endpoints.publishing import Publishing
from shoal.gateway.endpoints.search import Documents
from shoal.gateway.endpoints.status import Overview
from shoal.gateway.endpoints.storage_log import Logs
from shoal.gateway.endpoints.topics import Topics
from shoal.gateway.live_feeds import Doors, Feeds, doors_of
from shoal.gateway.mqtt.bridge import Bridge, bridge_of
from shoal.gateway.request_admission import ADMISSION, Guard
from shoal.gateway.requests import CHARGE, BodyBudget, json_answer, problem
from shoal.gateway.route_table import Extra, Handler, Route, Table, document
from shoal.node import Node
from shoal.protocols.streams.history.anti_entropy import Progress
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.runtime import RuntimeHost
from shoal.storage.message_store.store_disk import StoreDisk

SHUTDOWN_S = 1.0  # what a request under way gets when the node stops
LINGER_S = 1.0  # what is left of a body that was refused is read for so long: it may be large
BACKLOG = 1024  # connections that the kernel has accepted and we have not: a crowd may come at once
API_VERSION = "1"
GONE = 499  # what metrics say of a request whose client ended it; nobody is answered so

log_others = log_of_others("shoal.gateway")


class Gateway:
    """Serves one node."""

    def __init__(
        self,
        host: RuntimeHost,
        tracker: Tracker | None = None,
        *,
        doors: Doors | None = None,
        disk: StoreDisk | None = None,
        keeps: Callable[[StreamId], bool] | None = None,
        names: Callable[[StreamId], bool] | None = None,
        unheard: Callable[[StreamId], Awaitable[list[UnheardNode]]] | None = None,
        progress: Callable[[], Sequence[Progress]] = tuple,
        topic_logs: Logs | None = None,
        outbox: OutboxDoor | None = None,
        bridge: Bridge | None = None,
        config: GatewayConfig | None = None,
        extras: Sequence[Extra] = (),
        gauges: Callable[[], Iterable[Gauge]] = tuple,
    ) -> None:
        """The doors lead into the node; the disk has what this node keeps, `keeps` says what that
        is, and `names` what of it is named one by one; `unheard` says which storage nodes of a
        stream may have more, and `progress` how far this one is with getting that; topic logs are
        the same of topics; the outbox takes what Spark queries publish; the bridge is told of, and
        extras are served beside all that; gauges are further metrics."""
        doors = doors or Doors()
        self.address = ""
        self.feeds = Feeds()
        self.bodies = BodyBudget()
        self.metrics = Metrics(
            lambda: len(host.connections), disk, host.readiness.look, gauges, progress
        )
        self._config = config or GatewayConfig()
        self._host = host
        self._extras = tuple(extras)
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._entrance: Entrance | None = None
        self._overview = Overview(host, tracker, self.metrics)
        store = None if disk is None else disk.store
        self._logs = Logs(store, host.node, keeps, unheard, names=names)
        self._topic_logs = topic_logs or Logs(None, host.node, topics=True)
        self._publishing = Publishing(doors.streams)
        self.table = Table(
            [
                self._overview,
                self._publishing,
                History(doors.streams),
                Live(doors, self.feeds),
                self._logs,
                self._topic_logs,
                Topics(doors.topics),
                Documents(doors.search),
                OutboxRoutes(outbox),
                self,
            ]
        )
        self.metrics.watch_gateway(self.feeds, self._publishing, bridge)
        host.observers.append(self.metrics.observe)

    def routes(self) -> Iterable[Route]:
        """Serve what is about the gateway itself."""
        yield Route(
            method="GET",
            path="/openapi.json",
            handler=self._describe,
            summary="This document",
            access="key",
            answer=dict[str, Any],
        )

    async def open(self, listen: str) -> str:
        """Serve on host:port; port 0 takes any free one. The address that it got."""
        host, port = split_listen(listen)
        self._config.check_listen(host)
        tls = self._config.tls()
        guard = Guard(self._config, self.table, self._extras)
        app = web.Application(
            client_max_size=QUESTION_BYTES_MAX,
            middlewares=[self._explain, _guarded(guard, self.bodies)],
        )
        app.on_response_prepare.append(_with_headers(guard))
        self.table.add_to(app.router)
        for extra in self._extras:
            extra.add_routes(app.router)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_FaultLog(log_others),
            shutdown_timeout=SHUTDOWN_S,
            lingering_time=LINGER_S,
            keepalive_timeout=IDLE_S,
        )
        await self._runner.setup()
        try:
            self._listening = await self._listen(self._runner, host, port, tls)
        except OSError as error:
            await self._stop_serving()
            raise UsageError(
                f"gateway listen = {listen!r}: {error.strerror or error}: choose another port"
            ) from error
        if guard.has_keys:
            self._watching = asyncio.create_task(_watch_keys(guard))
        self._host.readiness.add("gateway", self._check)
        bound = self._listening.sockets[0].getsockname()
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.address = f"{'http' if tls is None else 'https'}://{name}:{bound[1]}"
        return self.address

    async def close(self) -> None:
        """Stop serving."""
        if self.metrics.observe in self._host.observers:
            self._host.observers.remove(self.metrics.observe)
        await self.feeds.close()
        await self._stop_serving()
        self._overview.close()
        self._logs.close()
        self._topic_logs.close()

    async def _listen(
        self, runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None
    ) -> asyncio.Server:
        assert runner.server is not None  # it is set up
        self._entrance = entrance = Entrance(
            runner.server, connections_max(), lambda: self.metrics.answered("other", 503)
        )
        return await asyncio.get_running_loop().create_server(
            entrance,
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
            backlog=BACKLOG,
        )

    async def _stop_serving(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._host.readiness.remove("gateway", self._check)
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        if self._entrance is not None:
            self._entrance.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _check(self) -> str | None:
        return None if self._entrance is None else self._entrance.problem

    async def _describe(self, request: web.Request) -> web.Response:
        return json_answer(document(self.table.routes, API_VERSION))

    @web.middleware
    async def _explain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every error is JSON that says what to do instead; every answer is counted."""
        route = self.table.of(request)
        name = "other" if route is None else route.name
        status = 500
        try:
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            if error.content_type != "application/json" and status >= 400:
                text = f"no {request.method} {request.path} here: GET one of {self.table.paths()}"
                error.text, error.content_type = problem(text), "application/json"
            raise
        except (ConnectionError, web.RequestPayloadError) as error:
            here = request.transport
            is_ours = here is not None and not here.is_closing()
            if is_ours and not isinstance(error, web.RequestPayloadError):
                raise  # it was another connection, of the node
            status = GONE  # or it is no HTTP that came: either way the client ended it
            return web.Response(status=web.HTTPBadRequest.status_code)
        except asyncio.CancelledError:
            status = GONE
            raise
        finally:
            self.metrics.answered(name, status)


def _guarded(guard: Guard, bodies: BodyBudget) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        with guard.admit(request) as admission, bodies.charge(admission.whose) as charge:
            preflight = guard.preflight(request)
            if preflight is not None:
                return preflight
            charge.begin(request)
            request[CHARGE] = charge
            request[ADMISSION] = admission
            return await handler(request)

    return check


async def _watch_keys(guard: Guard) -> None:
    """Open responses end with their key, also if nobody asks for anything meanwhile."""
    while True:
        await asyncio.sleep(LOOK_AGAIN_S)
        guard.look_again()


class _FaultLog(logging.LoggerAdapter[logging.Logger]):
    """What the HTTP library has to say of requests. What is no HTTP is the client's affair."""

    def exception(self, msg: object, *args: object, **more: Any) -> None:
        clients_fault = isinstance(more.get("exc_info"), HttpProcessingError | ConnectionError)
        self.log(logging.DEBUG if clients_fault else logging.ERROR, msg, *args, **more)


def _with_headers(guard: Guard) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def prepare(request: web.Request, response: web.StreamResponse) -> None:
        guard.add_headers(request, response)
        response.headers.setdefault(hdrs.X_CONTENT_TYPE_OPTIONS, "nosniff")

    return prepare


# Opening the gateway of a node, and its bridge to an MQTT broker, as its network file says.


async def open_doors(node: Node, stack: AsyncExitStack, extras: Sequence[Extra] = ()) -> str | None:
    """What [gateway] and [mqtt] ask for, until the stack ends; the gateway's address."""
    network, bridge = node.network, None
    if network.mqtt is not None:
        bridge = bridge_of(node, network.mqtt)
        stack.push_async_callback(bridge.close)
        bridge.start()
    if network.gateway is None:
        return None
    gateway = gateway_of(node, network.gateway, bridge, extras)
    stack.push_async_callback(gateway.close)
    return await gateway.open(network.gateway.listen)


def gateway_of(
    node: Node,
    section: GatewaySection,
    bridge: Bridge | None = None,
    extras: Sequence[Extra] = (),
) -> Gateway:
    """The gateway of a node, not yet open."""
    stored, logs = node.storage, node.topic_logs
    return Gateway(
        node.host,
        node.tracker,
        doors=doors_of(node),
        disk=None if stored is None else stored.disk,
        keeps=None if stored is None else stored.keeps,
        names=None if stored is None else stored.names,
        unheard=None if stored is None else stored.unheard,
        progress=tuple if stored is None else stored.sync.progress,
        topic_logs=None if logs is None else Logs(logs.store, node.id, logs.keeps, topics=True),
        outbox=node.outbox,
        bridge=bridge,
        config=config_of(node.network, section),
        extras=extras,
        gauges=partial(gauges_of, node),
    )


def config_of(network: NetworkFile, section: GatewaySection) -> GatewayConfig:
    """What the network file says, its paths made whole."""
    files = {
        name: None if given is None else network.path(given)
        for name, given in (
            ("keys", section.keys),
            ("certificate", section.certificate),
            ("private_key", section.private_key),
        )
    }
    return GatewayConfig(
        **files,
        open_to_all=section.open_to_all,
        origins=section.origins,
        hosts=section.hosts,
        requests_per_s=section.requests_per_s,
        burst=section.burst,
    )
