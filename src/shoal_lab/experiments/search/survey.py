"""Looks at a whole circle from outside, as nobody in it can.

A place is a node's location. Following slaves from place to place gives circles, or chains that
end at holes. In a network in which nobody ever crashed there is one circle and no chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from shoal.base.ids import NodeId, short_node_id
from shoal.protocols.search.circle.circle import Circle
from shoal.protocols.search.circle.locations import Edge, Location
from shoal_lab.experiments.search.network import GrownNetwork
from shoal_lab.experiments.search.workload import Asked
from shoal_lab.experiments.search_model.figures import StageFigures, model_tables, rows_table
from shoal_lab.experiments.search_model.gossip import Step

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


# A network over time: who is there, how it hangs together, and what searches find meanwhile.


SPARE = 1  # neighbours that may be missing: a node asks for new ones when it lacks two


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A network as it is."""

    nodes: int
    edges: int
    """Between nodes that run."""
    largest_part: float
    complete: float
    """What part of the nodes has its neighbours, but for one at most, and they run."""
    known: float
    """What part knows the network within 5 %."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Searches of a time."""

    old_searches: int = 0
    old_found: int = 0
    new_searches: int = 0
    new_found: int = 0

    @property
    def old(self) -> float | None:
        """The part that succeeded, of searches for old data."""
        return self.old_found / self.old_searches if self.old_searches else None

    @property
    def new(self) -> float | None:
        """The same for new data."""
        return self.new_found / self.new_searches if self.new_searches else None


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The network at a time, and the searches that began from then to the next one."""

    time_s: float
    """Since the event; before it, negative."""
    shape: Shape
    found: Found = Found()


class Moments:
    """Looks at regular times."""

    def __init__(self, network: GrownNetwork, interval_s: float) -> None:
        self.isolation = Isolation()
        self._network = network
        self._interval_s = interval_s
        self._seen: list[tuple[float, Shape]] = []
        self._looking = False

    def begin(self) -> None:
        """From now on."""
        self._looking = True
        self._look()

    def stop(self) -> None:
        """No more."""
        self._looking = False

    @property
    def last(self) -> Shape:
        """What was seen last."""
        return self._seen[-1][1]

    def told(self, asked: Sequence[Asked], event_s: float) -> tuple[Moment, ...]:
        """All of them, with the searches of their time."""
        interval_s = self._interval_s
        by_number: dict[int, list[Asked]] = {}
        for search in asked:
            by_number.setdefault(int((search.at_s - event_s) // interval_s), []).append(search)
        return tuple(
            Moment(
                time_s=at_s - event_s,
                shape=shape,
                found=count_found(by_number.get(round((at_s - event_s) / interval_s), ())),
            )
            for at_s, shape in self._seen
        )

    def _look(self) -> None:
        if self._looking:
            simulation = self._network.simulation
            self._seen.append((simulation.time_s, shape_of(self._network)))
            self.isolation.look(self._network.circles(), simulation.time_s)
            simulation.at_s(simulation.time_s + self._interval_s, self._look)


def shape_of(network: GrownNetwork) -> Shape:
    """Look at a whole network."""
    circles = network.circles()
    neighbours = {
        node: {edge.peer: None for edge in circle.edges if edge.peer in circles}
        for node, circle in circles.items()
    }
    edges = [edge for circle in circles.values() for edge in circle.edges if edge.peer in circles]
    complete = [
        sum(edge.peer in circles for edge in circle.edges) + SPARE >= 2 * circle.wanted
        for circle in circles.values()
    ]
    nodes = max(1, len(circles))
    return Shape(
        nodes=len(circles),
        edges=len(edges) // 2,
        largest_part=max(components(neighbours), default=0) / nodes,
        complete=sum(complete) / nodes,
        known=network.known_part(),
    )


def count_found(asked: Iterable[Asked]) -> Found:
    """How many of the searches that count succeeded."""
    over = [search for search in asked if search.over]
    old, new = ([one for one in over if one.data == data] for data in ("old", "new"))
    return Found(
        old_searches=len(old),
        old_found=sum(one.found for one in old),
        new_searches=len(new),
        new_found=sum(one.found for one in new),
    )


# The tables of simulated search networks: those of the model, and what only time brings.


def search_tables(
    run: str,
    stages: Sequence[StageFigures],
    *,
    steps: Sequence[Step] = (),
    moments: Sequence[Moment] = (),
    watches: Sequence[Mapping[str, int]] = (),
) -> dict[str, pa.Table]:
    """Those that have rows; `search_stages` always."""
    made = model_tables(run, stages, steps)
    if moments:
        made["search_moments"] = rows_table("search_moments", run, [_row(m) for m in moments])
    if watches:
        made["search_watches"] = rows_table("search_watches", run, watches)
    return made


def _row(moment: Moment) -> dict[str, Any]:
    shape: dict[str, Any] = msgspec.structs.asdict(moment.shape)
    del shape["edges"]  # of stages only
    return {"time_s": moment.time_s, **shape, **msgspec.structs.asdict(moment.found)}


def said_found(found: Found) -> str:
    """What part of the searches succeeded."""
    told = []
    for name, part, count in (
        ("old", found.old, found.old_searches),
        ("new", found.new, found.new_searches),
    ):
        if part is not None:
            told.append(f"{part:.3f} of {count:,} for {name} data")
    return ", ".join(told) or "none"
