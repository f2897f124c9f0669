"""Whether a point was set up as in the sources: nothing else is held against their figures.

Runs from before a setting could be chosen have it as it was then (run_settings.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.pipeline.report import published

if TYPE_CHECKING:  # the explorer needs none of what they come with
    from shoal.pipeline.jobs.collected import Collected, Point

PROPAGATION = "streams-propagation"

NETWORK = {
    "protocol": "streams",
    "experiment": "delivery",
    "on": "simulator",
    "network.delays": published.DELAYS,
    "network.degree": published.DEGREE,
    "network.policy": "random",
    "network.redundant_feeds": "all",
    "network.liars": 0.0,
}
NOISE = frozenset({"jitter", "service_time"})
"""Faults that only take what real links and nodes take: of them the sources had some, too."""


def comparable(collected: Collected) -> list[Point]:
    """The points of the experiment on propagation as the sources did it, by size."""
    return [
        point
        for point in collected.of(PROPAGATION)
        if network_as_published(point.settings)
        and not fault_kinds(point.settings)
        and workload_as_published(point)
        and point.nodes > 0
        and point.delays is not None
    ]


def network_as_published(settings: Mapping[str, Any], *but: str) -> bool:
    """Whether the network was that of the sources, but for these settings, whatever its size, and
    suffered from nothing worse than noise."""
    same = all(settings.get(name) == value for name, value in NETWORK.items() if name not in but)
    return same and fault_kinds(settings) <= NOISE


def workload_as_published(point: Point) -> bool:
    """Whether every node published as many messages as in the sources."""
    publishers = point.settings.get("workload.publisher_count")
    return (
        point.settings.get("workload.publishers") == "in-turn"
        and (publishers is None or publishers >= point.nodes)
        and point.planned_messages == published.MESSAGES_PER_NODE * point.nodes
    )


def fault_kinds(settings: Mapping[str, Any]) -> set[str]:
    """What went wrong on purpose."""
    return {
        str(value)
        for name, value in settings.items()
        if name.startswith("faults.") and name.endswith(".kind")
    }


def size_name(point: Point, points: Sequence[Point]) -> str:
    """Its size; with all that tells it from others of that size if there are any."""
    alike = [other for other in points if other.nodes == point.nodes]
    return f"{point.nodes:,}" if len(alike) == 1 else point.label
