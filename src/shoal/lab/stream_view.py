"""What figures, tables and checks need to know of a stream network, wherever it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from shoal.base.ids import NodeId, StreamId
from shoal.lab.scenario import Scenario
from shoal.protocols.streams.topology import TopologyPolicy


class Member(Protocol):
    """A node or tracker of the run."""

    @property
    def id(self) -> NodeId: ...

    @property
    def index(self) -> int:
        """Its number, by which the delay table places it."""
        ...

    @property
    def region(self) -> str: ...

    @property
    def host(self) -> object | None:
        """None while it does not run."""
        ...


M = TypeVar("M", bound=Member)


class StreamView(Protocol[M]):
    """A network that a scenario describes, at some moment."""

    @property
    def scenario(self) -> Scenario: ...

    @property
    def stream(self) -> StreamId: ...

    @property
    def nodes(self) -> Sequence[M]: ...

    @property
    def trackers(self) -> Sequence[M]: ...

    @property
    def started_ns(self) -> Mapping[NodeId, int]:
        """Since when each node runs."""
        ...

    def running(self) -> Sequence[M]:
        """The nodes that run now."""
        ...

    def policy(self) -> TopologyPolicy:
        """The overlay as the tracker sees it."""
        ...

    def active(self, node: M) -> Sequence[NodeId]:
        """The neighbours that a running node sends data to."""
        ...

    def is_connected(self) -> bool:
        """Whether data can get from one running node to all others."""
        ...


def in_one_piece(links: Mapping[NodeId, Sequence[NodeId]]) -> bool:
    """Whether one can get from one of these nodes to all others."""
    if not links:
        return True
    first = next(iter(links))
    reached = {first}
    waiting = deque([first])
    while waiting:
        for peer in links[waiting.popleft()]:
            if peer in links and peer not in reached:
                reached.add(peer)
                waiting.append(peer)
    return len(reached) == len(links)
