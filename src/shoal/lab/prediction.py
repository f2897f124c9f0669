"""How well a tracker's estimate foretells what messages then take.

The sources put pinged delays between data centres into the tracker's graph afterwards, and hold the
mean delay that Dijkstra gives against the measured one (thesis, section 5.4.4); `shoal lab report`
does that too. Here the estimate is the running tracker's own, from what nodes measured and
reported, asked for before the first message; and it is compared for each publisher as well, which
is harder.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.base.ids import NodeId, show_node_id
from shoal.protocols.streams.estimate import Estimate


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate and measurement of one overlay, over the nodes that published."""

    publishers: int
    links: int
    measured_links: int
    """When the tracker was asked."""
    estimated_ms: float
    measured_ms: float
    error_percent: float
    """Of the overlay's mean delay; above 0 if the estimate is too high."""
    mape_percent: float
    """Mean absolute error over publishers, of each one's mean delay to all others."""
    worst_percent: float


def compare(estimate: Estimate, measured_ms: Mapping[NodeId, float]) -> Prediction | None:
    """Hold an estimate against what was measured; None if there is nothing to compare."""
    both = [
        (estimated, measured)
        for node, measured in measured_ms.items()
        if (estimated := estimate.per_node_ms.get(show_node_id(node))) is not None
        if measured > 0  # over links that take no time no part of it can be off
    ]
    if not both:
        return None
    errors = [100 * abs(estimated - measured) / measured for estimated, measured in both]
    estimated_ms = sum(estimated for estimated, _ in both) / len(both)
    mean_ms = sum(measured for _, measured in both) / len(both)
    return Prediction(
        publishers=len(both),
        links=estimate.links,
        measured_links=estimate.measured_links,
        estimated_ms=estimated_ms,
        measured_ms=mean_ms,
        error_percent=100 * (estimated_ms - mean_ms) / mean_ms,
        mape_percent=sum(errors) / len(errors),
        worst_percent=max(errors),
    )
