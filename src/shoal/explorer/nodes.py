"""The nodes that the explorer looks into: those of its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from shoal.base.ids import NodeId
from shoal.kernel.machine import Machine
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.runtime.host import Observer

M = TypeVar("M")


class SeenHost(Protocol):
    """What the explorer needs of a node's driver."""

    @property
    def node(self) -> NodeId: ...

    @property
    def machines(self) -> Sequence[Machine]: ...

    @property
    def observers(self) -> list[Observer]: ...

    def now_ns(self) -> int: ...


class SeenNode(msgspec.Struct, eq=False, frozen=True):
    """A node, and what its network file says of where it is."""

    host: SeenHost
    region: str = ""
    location: Place | None = None
    search: Callable[..., Any] | None = None
    """Node.search, if it is in the search network."""

    @property
    def id(self) -> NodeId:
        return self.host.node

    @property
    def place(self) -> Place | None:
        """Where it is on a map, if that is known."""
        return place_of(self.region, self.location)

    def machine(self, kind: type[M]) -> M | None:
        """Its machine of a kind, if it has one."""
        return next((found for found in self.host.machines if isinstance(found, kind)), None)


class SeenNodes:
    """All of them, by id; nodes come and go."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, SeenNode] = {}

    def __iter__(self) -> Iterator[SeenNode]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, node: NodeId) -> SeenNode | None:
        return self._nodes.get(node)

    def add(self, node: SeenNode) -> None:
        self._nodes[node.id] = node

    def remove(self, node: NodeId) -> SeenNode | None:
        return self._nodes.pop(node, None)

    def machines(self, kind: type[M]) -> Iterator[tuple[SeenNode, M]]:
        """Every machine of a kind, and whose it is."""
        for node in self:
            machine = node.machine(kind)
            if machine is not None:
                yield node, machine

    def trackers(self) -> list[Tracker]:
        """Those that know topologies."""
        return [tracker for _, tracker in self.machines(Tracker)]


# Where on the globe a node is: what its network file says, or where its region is.


Place = tuple[float, float]
"""Latitude and longitude, in degrees."""

# The city or the state that the cloud's own list of regions names.
REGIONS: dict[str, Place] = {
    "af-south-1": (-33.9, 18.4),
    "ap-east-1": (22.3, 114.2),
    "ap-northeast-1": (35.7, 139.7),
    "ap-northeast-2": (37.6, 127.0),
    "ap-south-1": (19.1, 72.9),
    "ap-southeast-1": (1.35, 103.8),
    "ap-southeast-2": (-33.9, 151.2),
    "ca-central-1": (45.5, -73.6),
    "eu-central-1": (50.1, 8.7),
    "eu-north-1": (59.3, 18.1),
    "eu-south-1": (45.5, 9.2),
    "eu-west-1": (53.3, -6.3),
    "eu-west-2": (51.5, -0.1),
    "eu-west-3": (48.9, 2.4),
    "me-south-1": (26.2, 50.6),
    "sa-east-1": (-23.5, -46.6),
    "us-east-1": (38.9, -77.5),
    "us-east-2": (40.0, -83.0),
    "us-west-1": (37.8, -122.4),
    "us-west-2": (45.8, -119.7),
}


def place_of(region: str, location: Place | None = None) -> Place | None:
    """What was said, or where a region of that name is; None if nobody knows."""
    return REGIONS.get(region) if location is None else location
