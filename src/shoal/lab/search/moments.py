"""A network over time: who is there, how it hangs together, and what searches find meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.lab.search.grown import GrownNetwork
from shoal.lab.search.load import Asked
from shoal.lab.search.survey import Isolation, components

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
