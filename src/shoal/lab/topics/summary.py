"""The figures of a run of durable topics, in words."""

from __future__ import annotations

from shoal.lab.kinds import Rows
from shoal.lab.results import Spread
from shoal.lab.topics.figures import PerNode, TopicsFigures, Traffic

KIB = 1024


def topics_line(figures: TopicsFigures) -> str:
    """The most important ones."""
    parts = [
        f"{figures.injected:,} of {figures.issued:,} events injected",
        f"{figures.delivered:,} of {figures.due:,} deliveries ({figures.coverage_percent:.3f} %)",
    ]
    if figures.to_100_ms is not None:
        parts.append(f"to all readers in {figures.to_100_ms.p50 / 1000:.2f} s (p50)")
    dht = 0.0 if figures.dht is None else figures.dht.per_event
    parts.append(f"{figures.rpc.per_event:.0f} RPCs and {dht:.0f} DHT messages an event")
    if figures.wrong:
        parts.append(f"{figures.wrong:,} times WRONG")
    return ", ".join(parts)


def topics_rows(figures: TopicsFigures) -> Rows:
    """All but those of each topic, for a table."""
    refused = ", ".join(f"{count:,} {reason}" for reason, count in figures.refused.items())
    rows = [
        ("nodes", f"{figures.nodes:,}, of which {figures.running:,} run at the end"),
        ("topics", f"{figures.topics:,} with {figures.subscriptions:,} subscriptions"),
        (
            "events",
            f"{figures.injected:,} of {figures.issued:,} injected, refused "
            f"{refused or 'nothing'}, {figures.unanswered:,} without an answer",
        ),
        (
            "coverage",
            f"{figures.coverage_percent:.3f} %: {figures.delivered:,} of {figures.due:,}; of all "
            f"that was issued {figures.coverage_of_issued_percent:.3f} %",
        ),
        ("accepted after", _times(figures.accept_ms)),
        ("deliveries after", _times(figures.delivery_ms)),
        ("99 % of readers after", _times(figures.to_99_ms)),
        ("all readers after", _times(figures.to_100_ms)),
        (
            "whole run",
            f"99 % {_after(figures.run_to_99_s)}, all {_after(figures.run_to_100_s)}",
        ),
        *_traffic_rows("RPC", figures.rpc),
    ]
    if figures.dht is not None:
        rows += _traffic_rows("DHT", figures.dht)
    return [
        *rows,
        ("copies", f"{figures.copies_per_delivery:.3f} messages with an event per delivery"),
        ("network", f"{figures.network_mib:,.1f} MiB"),
        ("state of topics", _sizes(figures.topic_state_bytes)),
        ("state of the DHT", _sizes(figures.dht_state_bytes)),
        (
            "order",
            f"{figures.wrong:,} times wrong; {figures.told_again:,} told again after a restart, "
            f"{figures.gaps:,} gaps",
        ),
    ]


def _traffic_rows(name: str, traffic: Traffic) -> Rows:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in traffic.kinds.items())
    return [
        (f"{name} messages", f"{traffic.total:,}, {traffic.per_event:.1f} per event: {kinds}"),
        (f"{name} sent per node", _counts(traffic.sent)),
        (f"{name} received per node", _counts(traffic.received)),
    ]


def _times(times: Spread | None) -> str:
    if times is None:
        return "never"
    return (
        f"mean {times.mean:,.1f} ms, p50 {times.p50:,.1f}, p99 {times.p99:,.1f}, "
        f"max {times.max:,.1f}"
    )


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s after the last event"


def _counts(counts: PerNode) -> str:
    return (
        f"mean {counts.mean:,.0f}, sd {counts.sd:,.0f}, p95 {counts.p95:,.0f}, "
        f"p99 {counts.p99:,.0f}"
    )


def _sizes(sizes: PerNode) -> str:
    return (
        f"mean {sizes.mean / KIB:,.0f} KiB per node, p95 {sizes.p95 / KIB:,.0f}, "
        f"max {sizes.max / KIB:,.0f}"
    )
