"""The gateway's HTTP server, bound to loopback unless told otherwise. It reads; leases
and what Spark queries publish it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId, show_node_id
from shoal.gateway.answers import json_answer, not_found, problem
from shoal.gateway.history import History, ReadLines
from shoal.gateway.log import Logs
from shoal.gateway.metrics import Metrics
from shoal.gateway.outbox import OutboxDoor, OutboxRoutes
from shoal.protocols.streams.estimate import estimate_delays, overlay_of
from shoal.protocols.streams.tracked_stream import TrackedStream
from shoal.protocols.streams.tracker import Tracker
from shoal.runtime import RuntimeHost
from shoal.storage.disk import StoreDisk

SHUTDOWN_S = 1.0  # what a request under way gets when the node stops
PORT_MAX = 65_535


class Gateway:
    """Serves one node.

    GET /health                        200 as long as the node runs
    GET /metrics                       Prometheus text
    GET /streams                       streams that this tracker tracks
    GET /streams/{id}/topology         members and links
    GET /streams/{id}/estimate         delays to expect
    GET /streams/{id}/storage          who keeps it, members or not
    GET /streams/{id}/messages         history, as lines of JSON (history.py)
    GET /streams/{id}/log, log/heads   the logs of a storage node (log.py), and more below them
    POST /outbox/..., GET /outbox      what Spark queries publish, with a token (outbox.py)
    Stream ids contain slashes: write them as they are.
    """

    def __init__(
        self,
        host: RuntimeHost,
        tracker: Tracker | None = None,
        *,
        lines: ReadLines | None = None,
        disk: StoreDisk | None = None,
        keeps: Callable[[StreamId], bool] | None = None,
        outbox: OutboxDoor | None = None,
    ) -> None:
        """Lines reads history; the disk has what this node keeps, and `keeps` says what that is;
        the outbox takes what Spark queries publish."""
        self.address = ""
        self.metrics = Metrics(lambda: len(host.connections), disk)
        self._host = host
        self._tracker = tracker
        self._runner: web.AppRunner | None = None
        # One estimate at a time: all pairs of 2,000 nodes take a second of one core.
        self._estimating = ThreadPoolExecutor(1, thread_name_prefix="shoal-estimate")
        self._history = History(lines)
        self._logs = Logs(None if disk is None else disk.store, host.node, keeps)
        self._outbox = OutboxRoutes(outbox)
        host.observers.append(self.metrics.observe)

    async def open(self, listen: str) -> str:
        """Serve on host:port; port 0 takes any free one. The address that it got."""
        host, port = _split(listen)
        app = web.Application(client_max_size=64 * 1024, middlewares=[_explain])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/streams", self._streams)
        app.router.add_get("/streams/{id:.+}/topology", self._topology)
        app.router.add_get("/streams/{id:.+}/estimate", self._estimate)
        app.router.add_get("/streams/{id:.+}/storage", self._storage)
        self._history.add_routes(app.router)
        self._logs.add_routes(app.router)
        self._outbox.add_routes(app.router)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise UsageError(
                f"gateway listen = {listen!r}: {error.strerror or error}: choose another port"
            ) from error
        self._runner = runner
        bound: Any = runner.addresses[0]
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.address = f"http://{name}:{bound[1]}"
        return self.address

    async def close(self) -> None:
        """Stop serving."""
        if self.metrics.observe in self._host.observers:
            self._host.observers.remove(self.metrics.observe)
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        self._estimating.shutdown()
        self._logs.close()

    async def _health(self, request: web.Request) -> web.Response:
        return json_answer(
            {
                "node": show_node_id(self._host.node),
                "links": len(self._host.connections),
                "tracker": self._tracker is not None,
            }
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.metrics.text(), headers=headers)

    async def _streams(self, request: web.Request) -> web.Response:
        streams = {} if self._tracker is None else self._tracker.streams
        return json_answer([{"id": id, "members": len(s.members)} for id, s in streams.items()])

    async def _topology(self, request: web.Request) -> web.Response:
        state = self._tracked(request)
        links = [
            {
                "a": show_node_id(pair.a),
                "b": show_node_id(pair.b),
                "rtt_us": state.delays[pair].rtt_us if pair in state.delays else None,
            }
            for pair in overlay_of(state)[1]
        ]
        members = [show_node_id(node) for node in state.members]
        return json_answer({"degree": state.policy.degree, "members": members, "links": links})

    async def _estimate(self, request: web.Request) -> web.Response:
        state = self._tracked(request)
        estimate = await asyncio.get_running_loop().run_in_executor(
            self._estimating,
            estimate_delays,
            *overlay_of(state),
        )
        return json_answer(estimate)

    async def _storage(self, request: web.Request) -> web.Response:
        id = StreamId(request.match_info["id"])
        contacts = self._asked_tracker(id).storage_nodes(id)
        return json_answer(
            [{"id": show_node_id(c.node), "addresses": list(c.addresses)} for c in contacts]
        )

    def _asked_tracker(self, id: StreamId) -> Tracker:
        if self._tracker is None:
            raise not_found(f"this node is no tracker: ask the tracker of {id}")
        return self._tracker

    def _tracked(self, request: web.Request) -> TrackedStream:
        id = StreamId(request.match_info["id"])
        state = self._asked_tracker(id).streams.get(id)
        if state is None:
            raise not_found(f"nobody is in {id} here: GET /streams lists what is tracked")
        return state


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise UsageError(f"gateway listen = {listen!r}: write host:port, as in 127.0.0.1:7780")
    return host, int(port)


@web.middleware
async def _explain(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every error is JSON that says what to do instead."""
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        if error.content_type != "application/json":
            paths = (
                "/health, /metrics, /streams, /streams/ID/{topology,estimate,storage,messages,log}"
            )
            text = f"no {request.method} {request.path} here: GET one of {paths}"
            error.text, error.content_type = problem(text), "application/json"
        raise
