"""Prometheus metrics, counted from records: one vocabulary for everything observable."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shoal.base.errors import ShoalError
from shoal.base.ids import show_node_id
from shoal.base.units import seconds
from shoal.gateway.endpoints.publishing import Publishing
from shoal.gateway.live_feeds import Feeds
from shoal.gateway.mqtt.bridge import Bridge
from shoal.kernel.records import (
    Delivered,
    Equivocation,
    Published,
    ReceivedAgain,
    ReceivedFirst,
    Record,
    Rejected,
    RttMeasured,
    Sent,
)
from shoal.node import Node
from shoal.protocols.streams.history.anti_entropy import Progress
from shoal.runtime.readiness import Readiness
from shoal.storage.message_store.store_disk import StoreDisk

AGE_BUCKETS_US = (1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)

NODES_SHOWN_MAX = 64
"""Of other storage nodes, those that are furthest behind; the rest are one line. Owners of streams
name them, and may name as many as they like."""

_COUNTERS: dict[type[Record], tuple[str, str]] = {
    Published: ("published", "Messages published by this node."),
    ReceivedFirst: ("received", "Messages received for the first time."),
    ReceivedAgain: ("duplicates", "Copies of messages received before."),
    Delivered: ("delivered", "Messages handed to local subscribers."),
    Sent: ("forwarded", "Messages sent to neighbours, once per message."),
    Equivocation: ("equivocations", "Ids under which a publisher signed two messages."),
    RttMeasured: ("rtt_samples", "Round trips measured."),
}


class Gauge(NamedTuple):
    """A figure of a part of the node that the gateway does not know."""

    name: str
    help: str
    value: int


class Metrics(Collector):
    """Counts in plain dicts on the hot path; makes Prometheus text when asked."""

    def __init__(
        self,
        links: Callable[[], int],
        disk: StoreDisk | None = None,
        readiness: Callable[[], Readiness] | None = None,
        gauges: Callable[[], Iterable[Gauge]] = tuple,
        progress: Callable[[], Sequence[Progress]] = tuple,
    ) -> None:
        """Links says how many connections are up: some may be older than we are. The disk is that
        of a storage node, which says by `progress` how far it is with what others have; gauges are
        read whenever somebody asks."""
        self._counts: dict[type[Record], int] = dict.fromkeys(_COUNTERS, 0)
        self._rejected: dict[str, int] = {}
        self._links = links
        self._disk = disk
        self._readiness = readiness
        self._gauges = gauges
        self._progress = progress
        self._age_counts = [0] * (len(AGE_BUCKETS_US) + 1)
        self._age_sum_us = 0
        self._answers: dict[tuple[str, int], int] = {}
        self._parts: tuple[Feeds, Publishing, Bridge | None] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, now_ns: int, record: Record) -> None:
        """One record; an observer of the runtime."""
        kind = type(record)
        if kind in self._counts:
            self._counts[kind] += 1
        if isinstance(record, ReceivedFirst):
            self._age_counts[bisect_left(AGE_BUCKETS_US, record.age_us)] += 1
            self._age_sum_us += record.age_us
        elif isinstance(record, Rejected):
            self._rejected[record.reason] = self._rejected.get(record.reason, 0) + 1

    def watch_gateway(self, feeds: Feeds, publishing: Publishing, bridge: Bridge | None) -> None:
        """Tell of the gateway's own parts, too."""
        self._parts = (feeds, publishing, bridge)

    def answered(self, route: str, status: int) -> None:
        """A request was answered."""
        key = (route, status)
        self._answers[key] = self._answers.get(key, 0) + 1

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        for kind, (name, help_text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"shoal_{name}", help_text)
            counter.add_metric([], self._counts[kind])
            yield counter
        rejected = CounterMetricFamily(
            "shoal_rejected", "What peers sent that was dropped.", labels=["reason"]
        )
        for reason, count in self._rejected.items():
            rejected.add_metric([reason], count)
        yield rejected
        yield GaugeMetricFamily("shoal_links", "Connections that are up.", value=self._links())
        if self._readiness is not None:
            yield from _roles(self._readiness())
        yield self._ages()
        if self._disk is not None:
            yield from _storage(self._disk)
            yield from _behind(self._progress())
        for gauge in self._gauges():
            yield GaugeMetricFamily(f"shoal_{gauge.name}", gauge.help, value=gauge.value)
        if self._parts is not None:
            yield from self._gateway(*self._parts)

    def _gateway(
        self, feeds: Feeds, publishing: Publishing, bridge: Bridge | None
    ) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "shoal_gateway_requests", "Requests that were answered.", labels=["route", "status"]
        )
        for (route, status), count in self._answers.items():
            answers.add_metric([route, str(status)], count)
        yield answers
        yield GaugeMetricFamily(
            "shoal_gateway_subscribers",
            "Subscribers over HTTP and WebSocket.",
            value=feeds.subscribers,
        )
        yield _counter("gateway_published", "Messages that came in by HTTP.", publishing.messages)
        yield _counter("gateway_dropped", "What subscribers were too slow for.", feeds.gone)
        if bridge is not None:
            yield GaugeMetricFamily(
                "shoal_mqtt_connected", "1 if the broker is there, else 0.", value=bridge.connected
            )
            yield _counter("mqtt_taken", "Messages that came from the broker.", bridge.taken)
            yield _counter("mqtt_sent", "Messages for the broker.", bridge.sent)
            yield _counter("mqtt_dropped", "Messages that were not passed on.", bridge.dropped)
            yield _counter(
                "mqtt_echoes", "Messages of the broker that were our own, come back.", bridge.echoes
            )

    def _ages(self) -> HistogramMetricFamily:
        buckets, total = [], 0
        for bound_us, count in zip(AGE_BUCKETS_US, self._age_counts, strict=False):
            total += count
            buckets.append((str(bound_us / 1e6), total))
        buckets.append(("+Inf", total + self._age_counts[-1]))
        ages = HistogramMetricFamily(
            "shoal_message_age_seconds", "Age of messages when they arrive for the first time."
        )
        ages.add_metric([], buckets, self._age_sum_us / 1e6)
        return ages


def _counter(name: str, help_text: str, value: int) -> CounterMetricFamily:
    counter = CounterMetricFamily(f"shoal_{name}", help_text)
    counter.add_metric([], value)
    return counter


def _behind(progress: Sequence[Progress]) -> Iterator[Metric]:
    """How far a storage node is with what each other one has."""
    rows = GaugeMetricFamily(
        "shoal_storage_rows_behind",
        "Rows of another storage node's logs that are being fetched.",
        labels=["node"],
    )
    streams = GaugeMetricFamily(
        "shoal_storage_streams_uncompared",
        "Streams of which it was never found that all that another storage node has is here.",
        labels=["node"],
    )
    worst = sorted(progress, key=lambda one: (one.rows_behind, one.uncompared), reverse=True)
    for one in worst[:NODES_SHOWN_MAX]:
        node = show_node_id(one.node)
        rows.add_metric([node], one.rows_behind)
        streams.add_metric([node], one.uncompared)
    if rest := worst[NODES_SHOWN_MAX:]:
        rows.add_metric(["others"], sum(one.rows_behind for one in rest))
        streams.add_metric(["others"], sum(one.uncompared for one in rest))
    yield rows
    yield streams


def _roles(readiness: Readiness) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "shoal_ready", "1 if every role of this node works now, else 0.", value=readiness.ready
    )
    roles = GaugeMetricFamily(
        "shoal_role_ready", "1 if this role works now, else 0.", labels=["role"]
    )
    for one in readiness.roles:
        roles.add_metric([one.role], one.ready)
    yield roles


def _storage(disk: StoreDisk) -> Iterator[Metric]:
    """What a storage node keeps; of a store that cannot be read only that it has a problem."""
    problem = disk.problem is not None
    try:
        info = disk.store.info()
    except ShoalError:
        problem = True
    else:
        yield GaugeMetricFamily("shoal_storage_messages", "Messages kept.", value=info.messages)
        yield GaugeMetricFamily(
            "shoal_storage_uncertain_seconds",
            "By how much the clock is ahead of the time that retention goes by.",
            value=seconds(disk.store.uncertain_ns),
        )
        yield GaugeMetricFamily(
            "shoal_storage_size_bytes", "What they take in the store.", value=info.size_bytes
        )
    damage = disk.store.damage
    yield GaugeMetricFamily(
        "shoal_storage_damaged_rows", "Rows that cannot be read, as far as met.", value=len(damage)
    )
    yield _counter("storage_mended", "Damaged rows that were put right.", damage.mended)
    yield GaugeMetricFamily(
        "shoal_storage_problem", "1 if nothing can be stored now, else 0.", value=int(problem)
    )


def gauges_of(node: Node) -> list[Gauge]:
    """What a node tells of itself beside what the gateway counts."""
    gauges: list[Gauge] = []
    if node.storage is not None:
        copies = node.storage.sync.copies()
        gauges += [
            Gauge(
                "storage_single_copies",
                "Messages of the own log that no other storage node has said that it has.",
                copies.single,
            ),
            Gauge(
                "storage_missing_copies",
                "Copies of messages of the own log that other storage nodes have not said that"
                " they have.",
                copies.missing,
            ),
            Gauge(
                "storage_uncompared_streams",
                "Streams that were compared with no other storage node since the links came up:"
                " their copies are not known.",
                copies.uncompared,
            ),
            Gauge(
                "storage_gaps",
                "Messages that a later one of their chain names as the one before, and that are"
                " not here: 10,000 at most.",
                node.storage.machine.gaps.count,
            ),
            Gauge(
                "storage_gaps_unchecked",
                "Such messages that were not looked for, since there were too many at once.",
                node.storage.machine.gaps.unchecked,
            ),
        ]
    if node.unkept is not None:
        gauges += [
            Gauge(
                "unkept_messages",
                "Durable messages of this node that no storage node has confirmed yet.",
                node.unkept.waiting,
            ),
            Gauge(
                "unkept_dropped",
                "Durable messages that were given up: no room, or refused by all storage nodes.",
                node.unkept.dropped,
            ),
        ]
    return gauges
