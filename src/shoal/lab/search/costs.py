"""What simulated search networks cost, in events of the simulator: for the estimate of the time
left. Measured with 500 to 2,000 nodes."""

from __future__ import annotations

import math

JOIN_EVENTS = 60.0  # of one node, its walks and dials
PING_EVENTS_S = 0.2  # over one edge, each way
GROW_S = 250.0  # after the first join, until all know the network
STEP_EVENTS = 2.2  # of a bubble at a node: it comes, and its signature is checked
THRESHOLD_NODES = 1.5  # T over nodes, with three locations each


def life_events(nodes: int, locations: tuple[int, int], lasts_s: float) -> float:
    """Of nodes that join and then stay for so long."""
    edges = sum(locations)  # two at each, in the mean
    return nodes * (JOIN_EVENTS + edges * PING_EVENTS_S * (GROW_S + lasts_s))


def bubble_events(nodes: int, certainty: float) -> float:
    """Of one bubble."""
    return STEP_EVENTS * certainty * math.sqrt(THRESHOLD_NODES * nodes)
