"""Prometheus metrics, counted from records: one vocabulary for everything observable."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shoal.base.errors import ShoalError
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
from shoal.storage.disk import StoreDisk

AGE_BUCKETS_US = (1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)

_COUNTERS: dict[type[Record], tuple[str, str]] = {
    Published: ("published", "Messages published by this node."),
    ReceivedFirst: ("received", "Messages received for the first time."),
    ReceivedAgain: ("duplicates", "Copies of messages received before."),
    Delivered: ("delivered", "Messages handed to local subscribers."),
    Sent: ("forwarded", "Messages sent to neighbours, once per message."),
    Equivocation: ("equivocations", "Ids under which a publisher signed two messages."),
    RttMeasured: ("rtt_samples", "Round trips measured."),
}


class Metrics(Collector):
    """Counts in plain dicts on the hot path; makes Prometheus text when asked."""

    def __init__(self, links: Callable[[], int], disk: StoreDisk | None = None) -> None:
        """Links says how many connections are up: some may be older than we are. The disk is that
        of a storage node."""
        self._counts: dict[type[Record], int] = dict.fromkeys(_COUNTERS, 0)
        self._rejected: dict[str, int] = {}
        self._links = links
        self._disk = disk
        self._age_counts = [0] * (len(AGE_BUCKETS_US) + 1)
        self._age_sum_us = 0
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
        yield self._ages()
        if self._disk is not None:
            yield from _storage(self._disk)

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
            "shoal_storage_size_bytes", "What they take in the store.", value=info.size_bytes
        )
    yield GaugeMetricFamily(
        "shoal_storage_problem", "1 if nothing can be stored now, else 0.", value=int(problem)
    )
