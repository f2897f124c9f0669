"""Looks at a whole circle from outside, as nobody in it can.

A place is a node's location. Following slaves from place to place gives circles, or chains that
end at holes. In a network in which nobody ever crashed there is one circle and no chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from shoal.base.ids import NodeId, short_node_id
from shoal.protocols.search.topology.circle import Circle
from shoal.protocols.search.topology.edges import Edge
from shoal.protocols.search.topology.locations import Location

Place = tuple[NodeId, int]


class Survey(msgspec.Struct, frozen=True):
    """One look."""

    nodes: int
    places: int
    """Locations with a neighbour at least."""
    phases: dict[str, int]
    """Locations by what they are at."""
    holes: int
    """Neighbours that are missing at places."""
    circles: int
    chains: int
    """Pieces of the circle that have two ends."""
    half_open: list[str]
    """Ends of edges whose other end does not know them."""
    components: int
    """Parts that no edge connects."""
    largest: int
    """Nodes of the largest part."""
    isolated: list[NodeId]
    """Nodes with no neighbour but themselves."""
    degrees: dict[int, int]
    """How many nodes have so many neighbours."""

    @property
    def whole(self) -> bool:
        """Whether it is one circle without holes, and all ends of edges agree."""
        return self.circles == 1 and not (self.chains or self.holes or self.half_open)


def survey(circles: Mapping[NodeId, Circle]) -> Survey:
    """Look at the nodes that run."""
    locations = {
        (node, location.id): location
        for node, circle in circles.items()
        for location in circle.ring.locations
    }
    places = {place: location for place, location in locations.items() if location.edges}
    neighbours = {
        node: {edge.peer: None for edge in circle.edges} for node, circle in circles.items()
    }
    rings, chains = _follow(places)
    parts = components(neighbours)
    return Survey(
        nodes=len(circles),
        places=len(places),
        phases=dict(sorted(Counter(location.phase for location in locations.values()).items())),
        holes=sum(location.holes for location in places.values()),
        circles=rings,
        chains=chains,
        half_open=_half_open(circles),
        components=len(parts),
        largest=max(parts, default=0),
        isolated=[node for node in circles if is_isolated(node, circles[node])],
        degrees=dict(sorted(Counter(circle.degree for circle in circles.values()).items())),
    )


def is_isolated(node: NodeId, circle: Circle) -> bool:
    """Whether nobody else is its neighbour."""
    return not any(edge.peer != node for edge in circle.edges)


def components(neighbours: Mapping[NodeId, Mapping[NodeId, None]]) -> list[int]:
    """Sizes of the connected parts."""
    sizes: list[int] = []
    seen: dict[NodeId, None] = {}
    for start in neighbours:
        if start in seen:
            continue
        seen[start] = None
        part = [start]
        for node in part:
            for peer in neighbours[node]:
                if peer in neighbours and peer not in seen:
                    seen[peer] = None
                    part.append(peer)
        sizes.append(len(part))
    return sizes


def _follow(places: Mapping[Place, Location]) -> tuple[int, int]:
    """Circles and chains: whoever has no master above it begins a chain; what is not on one is on
    a circle."""
    below = {
        place: (location.slave.peer, location.slave.theirs)
        for place, location in places.items()
        if location.slave is not None
    }
    led = dict.fromkeys(below.values())
    seen: dict[Place, None] = {}
    ends = [place for place in places if place not in led]
    rings = 0
    for start in [*ends, *places]:
        rings += start not in seen and start in led
        at = start
        while at in places and at not in seen:
            seen[at] = None
            if at not in below:
                break
            at = below[at]
    return rings, len(ends)


def _half_open(circles: Mapping[NodeId, Circle]) -> list[str]:
    """Both ends must know of each other, and both locations must hold them."""
    return [
        f"{short_node_id(node)} {edge.name} {short_node_id(edge.peer)}"
        for node, circle in circles.items()
        for location in circle.ring.locations
        for edge in (location.master, location.slave)
        if edge is not None and not _answered(node, edge, circles.get(edge.peer))
    ]


def _answered(node: NodeId, edge: Edge, there: Circle | None) -> bool:
    location = None if there is None else there.ring.locations.get(edge.theirs)
    if location is None:
        return False
    back = location.master if edge.master else location.slave
    return back is not None and (back.peer, back.theirs) == (node, edge.mine)


class Isolation:
    """How long nodes are without any neighbour. Told of the network at regular times."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.victim: NodeId | None = None
        self._since_s: dict[NodeId, float] = {}

    def look(self, circles: Mapping[NodeId, Circle], now_s: float) -> None:
        """See who is alone now. Whoever is the only one there is not missing anybody."""
        alone = [node for node in circles if is_isolated(node, circles[node])]
        if len(circles) < 2:
            alone = []
        self._since_s = {node: self._since_s.get(node, now_s) for node in alone}
        for node, since_s in self._since_s.items():
            if now_s - since_s > self.longest_s:
                self.longest_s, self.victim = now_s - since_s, node
