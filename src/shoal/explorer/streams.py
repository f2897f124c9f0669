"""Streams, as the trackers among the seen nodes know them."""

from __future__ import annotations

import msgspec

from shoal.base.errors import NotFound
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.explorer.places import Place
from shoal.explorer.seen import SeenNodes
from shoal.protocols.streams.estimate import Overlay, overlay_of
from shoal.protocols.streams.tracked_stream import TrackedStream


class ShownStream(msgspec.Struct, frozen=True):
    """One stream of the list."""

    id: StreamId
    members: int


class ShownNode(msgspec.Struct, frozen=True):
    """A member; `seen` says whether its records are in the feed."""

    id: str
    region: str
    place: Place | None
    seen: bool


class ShownOverlay(msgspec.Struct, frozen=True):
    """Nodes and links; links name nodes by their number: (a, b, round trip in us or None)."""

    id: StreamId
    degree: int
    nodes: list[ShownNode]
    links: list[tuple[int, int, int | None]]


class StreamViews:
    """What a page asks for about streams."""

    def __init__(self, nodes: SeenNodes) -> None:
        self._nodes = nodes

    def all(self) -> list[ShownStream]:
        """Those with members, the largest first."""
        sizes: dict[StreamId, int] = {}
        for tracker in self._nodes.trackers():
            for id, state in tracker.streams.items():
                sizes[id] = max(sizes.get(id, 0), len(state.members))
        ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
        return [ShownStream(id, members) for id, members in ordered]

    def overlay(self, id: StreamId) -> ShownOverlay:
        """A stream's nodes and links."""
        state = self._state(id)
        members, pairs, delays, _ = overlay_of(state)
        numbers = {node: number for number, node in enumerate(members)}
        links = [
            (numbers[pair.a], numbers[pair.b], delays[pair].rtt_us if pair in delays else None)
            for pair in pairs
        ]
        shown = [self._shown(node) for node in members]
        return ShownOverlay(id, state.policy.degree, shown, links)

    def measured(self, id: StreamId) -> Overlay:
        """What an estimate is made of, copied."""
        return overlay_of(self._state(id))

    def _state(self, id: StreamId) -> TrackedStream:
        states = [
            tracker.streams[id] for tracker in self._nodes.trackers() if id in tracker.streams
        ]
        if not states:
            raise NotFound(f"nobody is in {id} here: GET /observe/streams lists what is tracked")
        # After a tracker failed, the one that took over has them all.
        return max(states, key=lambda state: len(state.members))

    def _shown(self, node: NodeId) -> ShownNode:
        seen = self._nodes.get(node)
        if seen is None:
            return ShownNode(show_node_id(node), "", None, seen=False)
        return ShownNode(show_node_id(node), seen.region, seen.place, seen=True)
