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
NOISE_MS = {"jitter": ("mean_ms", 2.0), "service_time": ("per_message_ms", 0.2)}
"""Faults that only take what real links and nodes take, up to so much of it: that of
`streams-prediction`. The sources had some of it, too."""

LOSS = {
    "network.nodes": published.LOSS_NODES,
    "network.delays": published.DELAYS,
    "network.degree": published.DEGREE,
    "network.redundant_feeds": "all",
}
"""Of the experiment on packet loss."""

WORKLOAD = {
    "network.nodes": 100,
    "workload.messages": 17_611,
    "options.topics": 23,
    "options.workload": None,
}
"""Of the source of topics."""
TOPIC_KILLS = 2  # of its nodes broke down
TOPIC_FAULTS = frozenset({"service_time", "bandwidth"})
"""What nodes and links take, that of containers on a few machines."""


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
    return _are(settings, NETWORK, *but) and _noise_at_most(settings)


def loss_as_published(settings: Mapping[str, Any]) -> bool:
    """Whether a network that loses packets was that of the source, whatever it published."""
    return _are(settings, LOSS)


def topics_as_published(settings: Mapping[str, Any]) -> bool:
    """Whether a run of topics had the size and workload of their source, and no faults but those
    that stand for its machines."""
    few = settings.get("options.kills", 0) <= TOPIC_KILLS
    return few and _are(settings, WORKLOAD) and fault_kinds(settings) <= TOPIC_FAULTS


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


def _are(settings: Mapping[str, Any], wanted: Mapping[str, Any], *but: str) -> bool:
    return all(settings.get(name) == value for name, value in wanted.items() if name not in but)


def _noise_at_most(settings: Mapping[str, Any]) -> bool:
    for name, kind in settings.items():
        if not name.startswith("faults.") or not name.endswith(".kind"):
            continue
        if kind not in NOISE_MS:
            return False
        field, most_ms = NOISE_MS[kind]
        if settings.get(name.removesuffix("kind") + field, 0.0) > most_ms:
            return False
    return True


def size_name(point: Point, points: Sequence[Point]) -> str:
    """Its size; with all that tells it from others of that size if there are any."""
    alike = [other for other in points if other.nodes == point.nodes]
    return f"{point.nodes:,}" if len(alike) == 1 else point.label
