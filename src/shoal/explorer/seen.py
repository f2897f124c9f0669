"""The nodes that the explorer looks into: those of its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from shoal.base.ids import NodeId
from shoal.explorer.places import Place, place_of
from shoal.kernel.machine import Machine
from shoal.protocols.streams.tracker import Tracker
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
