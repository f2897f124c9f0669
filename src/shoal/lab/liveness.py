"""What must be true of a stream network once faults have healed and messages have drained."""

from __future__ import annotations

import math
from collections.abc import Collection

from shoal.base.errors import InvariantViolated
from shoal.base.ids import short_node_id
from shoal.lab.results import StreamFigures
from shoal.lab.stream_view import M, StreamView
from shoal.protocols.streams.graph import Link


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
