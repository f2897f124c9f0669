"""What a tracker can tell of a stream at any time: its overlay, and the delays to expect.

A message takes the fastest of all paths, since every node floods at once. So the delay between
two nodes is their distance in the overlay, each link weighted with half its round trip
(section IV-C of the paper), and with the time that the node behind it takes to check the message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from shoal.base.ids import NodeId
from shoal.protocols.streams.link_delay import LinkDelay
from shoal.protocols.streams.topology import Pair, pair_of
from shoal.protocols.streams.tracked_stream import TrackedStream


class Estimate(msgspec.Struct, frozen=True):
    """Delays over all ordered pairs of distinct nodes, in milliseconds."""

    nodes: int
    links: int
    measured_links: int
    """Links without a measurement yet take no part."""
    reachable_pairs: int
    min_ms: float | None
    mean_ms: float | None
    max_ms: float | None
    per_node_ms: dict[str, float | None]
    """For each node, the mean delay from it to all others."""


Overlay = tuple[list[NodeId], list[Pair], dict[Pair, LinkDelay], dict[NodeId, int]]


def overlay_of(state: TrackedStream) -> Overlay:
    """What estimate_delays asks for, copied: the estimate may take its time in a thread."""
    pairs = {pair_of(a, b): None for a in state.members for b in state.policy.neighbours(a)}
    handling_us = {node: member.handling_us for node, member in state.members.items()}
    return list(state.members), list(pairs), dict(state.delays), handling_us


def estimate_delays(
    nodes: Sequence[NodeId],
    links: Sequence[Pair],
    delays: Mapping[Pair, LinkDelay],
    handling_us: Mapping[NodeId, int] | None = None,
) -> Estimate:
    """Dijkstra from every node over the links that somebody measured."""
    # SciPy takes longer to load than a whole node, and few are asked for this.
    from shoal.protocols.streams.delay_graph import DelayGraph

    measured = [pair for pair in links if pair in delays]
    graph = DelayGraph(nodes, measured, delays, handling_us or {})
    total_ms, pairs, low_ms, high_ms = 0.0, 0, math.inf, 0.0
    per_node: dict[str, float | None] = {}
    for node, reached in zip(nodes, graph.delays_from_each(), strict=True):
        per_node["0x" + node.hex()] = float(reached.mean()) if reached.size else None
        if reached.size:
            total_ms += float(reached.sum())
            pairs += int(reached.size)
            low_ms, high_ms = min(low_ms, reached.min()), max(high_ms, reached.max())
    return Estimate(
        nodes=len(nodes),
        links=len(links),
        measured_links=len(measured),
        reachable_pairs=pairs,
        min_ms=float(low_ms) if pairs else None,
        mean_ms=total_ms / pairs if pairs else None,
        max_ms=float(high_ms) if pairs else None,
        per_node_ms=per_node,
    )
