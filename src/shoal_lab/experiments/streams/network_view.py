"""What figures, tables and checks need to know of a stream network, wherever it runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, StreamId, short_node_id
from shoal.protocols.streams.topology.graph import Link
from shoal.protocols.streams.topology.policy import TopologyPolicy
from shoal_lab.experiments.streams.figures import StreamFigures
from shoal_lab.scenarios.scenario import Scenario


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


# What must be true of a stream network once faults have healed and messages have drained.


def check_overlay(network: StreamView[M], young: Collection[Link] = ()) -> None:
    """Whoever runs is a member; nodes and tracker agree on every link; the overlay is regular
    and in one piece. Of `young` links nodes may not have heard yet: some policies go on improving.
    """
    if any(t.host is not None for t in network.trackers) and network.running():
        _check_members(network)
        _check_links(network, young)
        _check_regular(network)
    if not network.is_connected():
        raise InvariantViolated("the overlay is not connected")


def check_deliveries(network: StreamView[M], figures: StreamFigures) -> None:
    """Nothing is lost of what was published after faults had healed."""
    if figures.lost_after_healing:
        since_s = network.scenario.healed_s
        when = f"published from {since_s:g} s on, after faults had healed, " if since_s else ""
        raise InvariantViolated(
            f"{figures.lost_after_healing} deliveries {when}never came; rejected: "
            f"{figures.rejected or 'nothing'}"
        )


def unhealed(network: StreamView[M]) -> str:
    """Why liveness cannot be asked for; empty if it can."""
    return "a fault lasts to the end" if math.isinf(network.scenario.healed_s) else ""


def _check_members(network: StreamView[M]) -> None:
    members, running = network.policy().nodes, {node.id for node in network.running()}
    ghosts = [member for member in members if member not in running]
    strangers = [node.id for node in network.running() if node.id not in members]
    if ghosts or strangers:
        raise InvariantViolated(
            f"the tracker has {len(ghosts)} members that do not run "
            f"({', '.join(map(short_node_id, ghosts[:3]))}) and lacks {len(strangers)} that do "
            f"({', '.join(map(short_node_id, strangers[:3]))})"
        )


def _check_links(network: StreamView[M], young: Collection[Link]) -> None:
    policy = network.policy()
    for node in network.running():
        instructed, active = policy.neighbours(node.id), network.active(node)
        differ = [tuple(sorted((node.id, peer))) for peer in {*instructed} ^ {*active}]
        if any(link not in young for link in differ):
            raise InvariantViolated(
                f"{short_node_id(node.id)} sends to {[*map(short_node_id, active)]}, its tracker "
                f"wants {[*map(short_node_id, instructed)]}"
            )


def _check_regular(network: StreamView[M]) -> None:
    """Every slot is taken, but for the one that is left over when all slots are odd in number."""
    policy = network.policy()
    full = min(policy.degree, len(policy.nodes) - 1)
    free = sum(full - len(policy.neighbours(node)) for node in policy.nodes)
    if free != full * len(policy.nodes) % 2:
        raise InvariantViolated(f"{free} free slots in the overlay, degree {full}")
