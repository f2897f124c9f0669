"""What the sources measured, as numbers.

streamr-propagation.tsv, rdp-literature.tsv and pulsarcast-coverage.tsv hold the tables; what is
said in running text of the papers is a constant here. "Thesis" is the longer of the two accounts
of the Streamr network.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from shoal_lab.report.analysis.report_data import Collected, Point

DEGREE = 4
DELAYS = "aws"
UNICAST_MS = 68.64
"""Mean of the AWS delay table, against which the sources take the relative delay penalty."""

MESSAGES_PER_NODE = 2
"""That every node publishes, where delays are measured."""

P99_NODES = 2048
P99_MS = 444.0
P99_TOLERANCE = 0.08
MEAN_TOLERANCE = 0.06
"""How far from the published mean a size may lie and still count as reproduced."""

ESTIMATE_ERROR_PERCENT = 1.24
"""Of Dijkstra with the delay table over the tracker's graph: the mean of the seven differences in
Table 5.3 (thesis 5.4.4), each between the means of a size's overlays, estimated and measured."""

RDP_NODES = 2048
RDP = 4.19
HOPS_MAX = {32: 9, 2048: 33}
"""The longest way at the smallest and at the largest size, and between them about linear in the
step of size (thesis 5.4.3); for the sizes between there is no number."""
HOPS_TOLERANCE = 0.2
"""One way in nine overlays is chance: random overlays that were drawn nine at a time had 8 to 10
hops in fourteen of fifteen draws (32 nodes), and 31 to 39 in eight (2,048 nodes)."""

EARLY_LINKED_TIMES = 3.0
"""Up to so many times as often as others the first few nodes were linked (thesis 5.1.1)."""

REDUNDANCY_NODES = 64
REDUNDANCY_D4 = (1.95, 2.05)
"""Duplicates per message with four neighbours over AWS (paper); with d neighbours about d - 2. The
thesis saw slightly fewer than that under latency (5.3.1), as a picture without numbers."""

RANDOM_NODES = 1000
RANDOM_REPEATS = 1000
PAIR_PROBABILITY = 0.0040040
PAIR_TOLERANCE = 0.001
"""Five digits are published. Regularity alone gives them: only slots that stay free take away."""

LOSS_NODES = 16
LOSS_PERCENT = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
"""On the link of each host, each way (thesis 5.3.2). Of the curves there is a picture only."""

LOSS_ROUND_TRIP_MS = 98.26
LOSS_MESSAGES_PER_NODE = 250
LOSS_INTERVAL_MS = 50.0
LOSS_REPEATS = 20
LOSS_SLOWER_PERCENT = (0.2, 3.0)
"""Where WebSocket is said to be slowed down by loss, so that WebRTC is ahead of it."""
LOSS_CHANGED_PERCENT = 5.0
"""Where WebSocket is said to be ahead."""
LOSS_STEADY_PERCENT = 1.0
"""Below it WebRTC is said to stay closer to its delay without loss."""


class PublishedDelay(msgspec.Struct, frozen=True):
    """The mean delay of one size: over WebRTC, whose topologies are random, and over WebSocket,
    whose topologies were aware of delay by accident."""

    nodes: int
    min_ms: float
    mean_ms: float
    max_ms: float
    estimated_ms: float
    websocket_ms: float


class PublishedPenalty(msgspec.Struct, frozen=True):
    """The relative delay penalty of an overlay in the literature."""

    overlay: str
    type: str
    aware: str
    underlay: str
    at_1000: str
    range: str
    nodes: str


class PublishedCoverage(msgspec.Struct, frozen=True):
    """Which part of all subscriptions was fulfilled, of a system with topics, and what it took:
    all nodes together, and of memory also each."""

    of_injected_percent: float
    of_published_percent: float
    network_mib: float | None
    memory_total_gib: float | None
    memory_mean_gib: float | None
    memory_p99_gib: float | None
    vcpus: str
    """A range, or the most."""


@cache
def propagation() -> dict[int, PublishedDelay]:
    """By number of nodes."""
    return {
        int(row["nodes"]): PublishedDelay(
            int(row["nodes"]),
            float(row["webrtc_min_ms"]),
            float(row["webrtc_avg_ms"]),
            float(row["webrtc_max_ms"]),
            float(row["webrtc_estimated_ms"]),
            float(row["ws_avg_ms"]),
        )
        for row in _rows("streamr-propagation.tsv")
    }


@cache
def penalties() -> tuple[PublishedPenalty, ...]:
    """Table 5.4 of the thesis."""
    return tuple(
        PublishedPenalty(
            row["overlay"],
            row["type"],
            row["topology_aware"],
            row["underlay"],
            row["mean_rdp_at_1000"],
            row["mean_rdp_range"],
            row["nodes"],
        )
        for row in _rows("rdp-literature.tsv")
    )


@cache
def coverage() -> dict[tuple[str, bool, bool], PublishedCoverage]:
    """By system, whether order is guaranteed, and whether the network was slow."""
    return {
        (row["system"].lower(), row["order_guarantee"] == "yes", row["network"] != "normal"): (
            PublishedCoverage(
                float(row["coverage_of_injected_pct"]),
                float(row["coverage_of_published_pct"]),
                _or_none(row["network_mib"]),
                _or_none(row["memory_total_gib"]),
                _or_none(row["memory_mean_gib"]),
                _or_none(row["memory_p99_gib"]),
                row["cpu_vcpu_range"],
            )
        )
        for row in _rows("pulsarcast-coverage.tsv")
    }


def diameter_bounds(nodes: int, degree: int) -> tuple[int, int]:
    """Within which almost all random regular graphs lie (the upper one with epsilon
    towards 0), and at least 1; of fewer than three nodes they say nothing."""
    if nodes < 3:
        return 1, 1
    log = math.log(nodes)

    def steps(x: float) -> float:
        return math.log(x) / math.log(degree - 1)

    lower = 1 + math.floor(steps(nodes)) + math.floor(steps((degree - 2) / (6 * degree) * log))
    return max(1, lower), 1 + math.ceil(steps(2 * degree * nodes * log))


def _or_none(text: str) -> float | None:
    return float(text) if text else None


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("shoal_lab.report") / "published" / name).read_text()
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


# Whether a point was set up as in the sources: nothing else is held against their figures.
#
# Runs from before a setting could be chosen have it as it was then (run_settings.py).


PROPAGATION = "streams-propagation"

NETWORK = {
    "protocol": "streams",
    "experiment": "delivery",
    "on": "simulator",
    "network.delays": DELAYS,
    "network.degree": DEGREE,
    "network.policy": "random",
    "network.redundant_feeds": "all",
    "network.liars": 0.0,
}
NOISE_MS = {"jitter": ("mean_ms", 2.0), "service_time": ("per_message_ms", 0.2)}
"""Faults that only take what real links and nodes take, up to so much of it: that of
`streams-prediction`. The sources had some of it, too."""

LOSS = {
    "network.nodes": LOSS_NODES,
    "network.delays": DELAYS,
    "network.degree": DEGREE,
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
        and point.planned_messages == MESSAGES_PER_NODE * point.nodes
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
