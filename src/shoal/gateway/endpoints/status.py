"""What a gateway tells of its node: whether it lives and works, and what a tracker knows.

GET /health                        200 as long as the process answers
GET /ready                         200 if each of its roles works now, else 503 and why not
GET /metrics                       Prometheus text
GET /node                          who it is, and the streams that it is in
GET /streams                       streams that this tracker tracks
GET /streams/{id}/topology         members and links
GET /streams/{id}/estimate         delays to expect
GET /streams/{id}/storage          who keeps it, members or not
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from aiohttp import web

from shoal.base.ids import StreamId, show_node_id
from shoal.gateway.endpoints.metrics import Metrics
from shoal.gateway.requests import json_answer, not_found
from shoal.gateway.route_table import PROMETHEUS, Route
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.tracker.stream_record import TrackedStream, overlay_of
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.runtime import RuntimeHost
from shoal.runtime.readiness import Readiness


class Health(msgspec.Struct, frozen=True):
    """It lives."""

    node: str
    links: int
    tracker: bool


class CarriedStream(msgspec.Struct, frozen=True):
    """A stream that this node is in."""

    id: str
    neighbours: int
    tracker: str | None


class NodeShown(msgspec.Struct, frozen=True):
    """Who this node is, and what it carries."""

    id: str
    streams: list[CarriedStream]


class TrackedShown(msgspec.Struct, frozen=True):
    """A stream that this tracker tracks."""

    id: str
    members: int


class ShownLink(msgspec.Struct, frozen=True):
    """Two members that are neighbours."""

    a: str
    b: str
    rtt_us: int | None


class Topology(msgspec.Struct, frozen=True):
    """The overlay of a stream."""

    degree: int
    members: list[str]
    links: list[ShownLink]


class Keeper(msgspec.Struct, frozen=True):
    """A storage node of a stream."""

    id: str
    addresses: list[str]


class Overview:
    """The part of a gateway that tells of its node."""

    def __init__(
        self,
        host: RuntimeHost,
        tracker: Tracker | None,
        metrics: Metrics,
    ) -> None:
        self._host = host
        self._tracker = tracker
        self._metrics = metrics
        # One estimate at a time: all pairs of 2,000 nodes take a second of one core.
        self._estimating = ThreadPoolExecutor(1, thread_name_prefix="shoal-estimate")

    def close(self) -> None:
        """Leave no thread behind."""
        self._estimating.shutdown()

    def routes(self) -> Iterable[Route]:
        """Serve."""
        from shoal.protocols.streams.tracker.delay_estimate import Estimate

        yield Route(
            method="GET",
            path="/health",
            handler=self._health,
            summary="Whether the process answers; whether it works says /ready",
            access="open",
            answer=Health,
        )
        yield Route(
            method="GET",
            path="/ready",
            handler=self._ready,
            summary="Whether each role of the node works now; 503 and why not",
            access="key",
            answer=Readiness,
        )
        yield Route(
            method="GET",
            path="/metrics",
            handler=self._show_metrics,
            summary="Counters and gauges for Prometheus",
            access="admin",
            media=PROMETHEUS,
        )
        yield Route(
            method="GET",
            path="/node",
            handler=self._node,
            summary="Who this node is, and the streams that it is in",
            access="admin",
            answer=NodeShown,
        )
        yield Route(
            method="GET",
            path="/streams",
            handler=self._streams,
            summary="Streams that this tracker tracks",
            access="read",
            answer=list[TrackedShown],
        )
        about_streams: tuple[tuple[str, Any, str, Any], ...] = (
            ("topology", self._topology, "Members and links of a stream's overlay", Topology),
            ("estimate", self._estimate, "Delays to expect in a stream's overlay", Estimate),
            ("storage", self._storage, "Who keeps a stream", list[Keeper]),
        )
        for name, handler, summary, answer in about_streams:
            yield Route(
                method="GET",
                path=f"/streams/{{id}}/{name}",
                handler=handler,
                summary=summary,
                access="read",
                answer=answer,
            )

    # The node

    async def _health(self, request: web.Request) -> web.Response:
        links, is_tracker = len(self._host.connections), self._tracker is not None
        return json_answer(Health(show_node_id(self._host.node), links, is_tracker))

    async def _ready(self, request: web.Request) -> web.Response:
        found = self._host.readiness.look()
        return json_answer(found, 200 if found.ready else 503)

    def _carried(self) -> list[CarriedStream]:
        found = []
        for machine in self._host.machines:
            if isinstance(machine, StreamNode):
                for id, state in machine.streams.items():
                    at = machine.trackers.at(id)
                    up = at is not None and (at == self._host.node or at in self._host.connections)
                    shown = show_node_id(at) if at is not None and up else None
                    found.append(CarriedStream(id, len(state.channel.active), shown))
        return found

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": PROMETHEUS})

    async def _node(self, request: web.Request) -> web.Response:
        return json_answer(NodeShown(show_node_id(self._host.node), self._carried()))

    # What a tracker knows

    async def _streams(self, request: web.Request) -> web.Response:
        streams = {} if self._tracker is None else self._tracker.streams
        return json_answer([TrackedShown(id, len(s.members)) for id, s in streams.items()])

    async def _topology(self, request: web.Request) -> web.Response:
        state = self._tracked(request)
        links = [
            ShownLink(
                show_node_id(pair.a),
                show_node_id(pair.b),
                state.delays[pair].rtt_us if pair in state.delays else None,
            )
            for pair in overlay_of(state)[1]
        ]
        members = [show_node_id(node) for node in state.members]
        return json_answer(Topology(state.policy.degree, members, links))

    async def _estimate(self, request: web.Request) -> web.Response:
        from shoal.protocols.streams.tracker.delay_estimate import estimate_delays

        state = self._tracked(request)
        estimate = await asyncio.get_running_loop().run_in_executor(
            self._estimating,
            estimate_delays,
            *overlay_of(state),
        )
        return json_answer(estimate)

    async def _storage(self, request: web.Request) -> web.Response:
        id = StreamId(request.match_info["id"])
        contacts = self._asked_tracker(id).questions.storage_nodes(id)
        return json_answer([Keeper(show_node_id(c.node), list(c.addresses)) for c in contacts])

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
