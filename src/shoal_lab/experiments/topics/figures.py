"""Figures of a run of durable topics, or of its baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from shoal.base.units import MS_NS, S_NS
from shoal_lab.experiments.streams.figures import Spread
from shoal_lab.experiments.topics.ledger import Arrivals, Ints, Ledger
from shoal_lab.experiments.topics.workload_network import WorkloadNetwork
from shoal_lab.scenarios.experiment_kinds import Rows

MOST = 0.99
NEVER_NS = -1
MIB = 1 << 20


class PerNode(msgspec.Struct, frozen=True):
    """How something is spread over nodes."""

    mean: float
    sd: float
    p95: float
    p99: float
    max: float


class Traffic(msgspec.Struct, frozen=True):
    """Messages of one protocol, over the whole run. Several in one frame are several."""

    total: int
    per_event: float
    """For each event that was injected."""
    sent: PerNode
    received: PerNode
    kinds: dict[str, int]
    """Sent, by what they say."""


class TopicCoverage(msgspec.Struct, frozen=True):
    """One topic."""

    topic: int
    readers: int
    injected: int
    due: int
    delivered: int
    rpcs: int


class TopicsFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run gave.

    Issued events are those that were handed to a node; injected ones were then accepted by the
    network. A delivery is due for each injected event at each reader of its topic, its author
    included, that runs at the end. Times begin when an event is issued.
    """

    nodes: int
    running: int
    topics: int
    subscriptions: int
    issued: int
    injected: int
    refused: dict[str, int]
    unanswered: int
    """Issued, and neither accepted nor refused, say because the node died."""
    expected: int
    """Deliveries, had all events been injected and all nodes stayed."""
    due: int
    delivered: int
    coverage_percent: float
    """Of what was due."""
    coverage_of_issued_percent: float
    """The same as a part of what would have been due, had all that was issued been injected."""
    accept_ms: Spread | None
    delivery_ms: Spread | None
    """Over all deliveries."""
    to_99_ms: Spread | None
    """Until 99 % of its readers had an event, which of fewer than 100 are all; events that never
    got there are left out."""
    to_100_ms: Spread | None
    run_to_99_s: float | None
    """From the last event that was issued until 99 % of all that was due had come."""
    run_to_100_s: float | None
    rpc: Traffic
    dht: Traffic | None
    copies_per_delivery: float
    """Messages with an event that came, for each delivery, whoever they came to."""
    network_mib: float
    topic_state_bytes: PerNode
    """At the end, at nodes that run."""
    dht_state_bytes: PerNode
    told_again: int
    gaps: int
    wrong: int
    """Broken chains, different ends, events that were told twice."""
    per_topic: tuple[TopicCoverage, ...]


def gather_figures(network: WorkloadNetwork) -> TopicsFigures:
    """Everything, of a run that is at its end."""
    ledger, workload, running = network.ledger, network.workload, network.running()
    due, arrivals = ledger.due(running), ledger.arrivals(running)
    delivered = np.bincount(arrivals.events, minlength=len(due))
    injected = len(ledger.accepted_ns)
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for total, by_node in ((sent, network.meter.sent), (received, network.meter.received)):
        for counts in by_node.values():
            total.update(counts)
    state = [network.state_bytes(network.nodes[number]) for number in running]
    readers = [len(ledger.readers_of(t, running)) for t in range(len(workload.topics))]
    wanted = sum(readers[workload.events[event].topic] for event in ledger.issued_ns)
    came = int(delivered.sum())
    return TopicsFigures(
        nodes=len(network.nodes),
        running=len(running),
        topics=len(workload.topics),
        subscriptions=workload.subscriptions,
        issued=len(ledger.issued_ns),
        injected=injected,
        refused=dict(sorted(ledger.refused.items())),
        unanswered=len(ledger.issued_ns) - injected - ledger.refused.total(),
        expected=workload.deliveries,
        due=int(due.sum()),
        delivered=came,
        coverage_percent=_percent(came, int(due.sum())),
        coverage_of_issued_percent=_percent(came, wanted),
        accept_ms=spread_ns(accept_times_ns(ledger)),
        delivery_ms=spread_ns(delivery_times_ns(ledger, arrivals)),
        to_99_ms=spread_ns(event_times_ns(ledger, due, arrivals, MOST)),
        to_100_ms=spread_ns(event_times_ns(ledger, due, arrivals, 1.0)),
        run_to_99_s=_run_time_s(ledger, due, arrivals, MOST),
        run_to_100_s=_run_time_s(ledger, due, arrivals, 1.0),
        rpc=_traffic(network, "rpc", sent, injected),
        dht=_traffic(network, "dht", sent, injected) if sent["dht"] else None,
        copies_per_delivery=received[network.event_kind] / max(1, came),
        network_mib=network.meter.bytes / MIB,
        topic_state_bytes=over_nodes([topics for topics, _ in state]),
        dht_state_bytes=over_nodes([dht for _, dht in state]),
        told_again=ledger.told_again,
        gaps=ledger.gaps,
        wrong=len(ledger.check_order(running)),
        per_topic=_per_topic(ledger, readers, due, delivered, sent),
    )


def accept_times_ns(ledger: Ledger) -> Ints:
    """For each event how long its network took to take it on; NEVER_NS if it did not."""
    found = np.full(len(ledger.workload.events), NEVER_NS, np.int64)
    for event, at_ns in ledger.accepted_ns.items():
        found[event] = at_ns - ledger.issued_ns[event]
    return found


def delivery_times_ns(ledger: Ledger, arrivals: Arrivals) -> Ints:
    """How long each delivery took."""
    issued_ns = np.zeros(len(ledger.workload.events), np.int64)
    for event, at_ns in ledger.issued_ns.items():
        issued_ns[event] = at_ns
    return arrivals.times_ns - issued_ns[arrivals.events]


def event_times_ns(ledger: Ledger, due: Ints, arrivals: Arrivals, part: float) -> Ints:
    """For each event how long it took to this part of its readers; NEVER_NS if it did not come so
    far, or was not injected."""
    order = np.lexsort((arrivals.times_ns, arrivals.events))
    events, times_ns = arrivals.events[order], arrivals.times_ns[order]
    starts = np.searchsorted(events, np.arange(len(due) + 1))
    found = np.full(len(due), NEVER_NS, np.int64)
    for event in np.flatnonzero(due):
        own = times_ns[starts[event] : starts[event + 1]]
        needed = int(np.ceil(part * due[event]))
        if len(own) >= needed:
            found[event] = own[needed - 1] - ledger.issued_ns[int(event)]
    return found


def _run_time_s(ledger: Ledger, due: Ints, arrivals: Arrivals, part: float) -> float | None:
    needed = int(np.ceil(part * due.sum()))
    if not needed or len(arrivals.times_ns) < needed:
        return None
    there_ns = int(np.sort(arrivals.times_ns)[needed - 1])
    return max(0.0, (there_ns - max(ledger.issued_ns.values())) / S_NS)


def _traffic(network: WorkloadNetwork, name: str, sent: Counter[str], injected: int) -> Traffic:
    def per_node(counts: Iterable[int]) -> PerNode:
        return over_nodes(list(counts))

    meter, ids = network.meter, [node.id for node in network.nodes]
    nothing: Counter[str] = Counter()
    return Traffic(
        total=sent[name],
        per_event=sent[name] / max(1, injected),
        sent=per_node(meter.sent.get(id, nothing)[name] for id in ids),
        received=per_node(meter.received.get(id, nothing)[name] for id in ids),
        kinds={
            kind.removeprefix(f"{name}/"): count
            for kind, count in sorted(sent.items())
            if kind.startswith(f"{name}/")
        },
    )


def _per_topic(
    ledger: Ledger,
    readers: Sequence[int],
    due: Ints,
    delivered: Ints,
    sent: Counter[str],
) -> tuple[TopicCoverage, ...]:
    topics = np.array([event.topic for event in ledger.workload.events], np.int64)
    injected = Counter(ledger.workload.events[event].topic for event in ledger.accepted_ns)
    return tuple(
        TopicCoverage(
            topic,
            count,
            injected[topic],
            int(due[topics == topic].sum()),
            int(delivered[topics == topic].sum()),
            sent[f"topic {topic}"],
        )
        for topic, count in enumerate(readers)
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 100.0


def over_nodes(values: Sequence[float]) -> PerNode:
    """How something is spread over nodes."""
    if not values:
        return PerNode(0.0, 0.0, 0.0, 0.0, 0.0)
    p95, p99 = np.percentile(values, (95, 99))
    return PerNode(
        float(np.mean(values)), float(np.std(values)), float(p95), float(p99), float(max(values))
    )


def spread_ns(times_ns: Ints) -> Spread | None:
    """In milliseconds, without what never happened."""
    times_ms = times_ns[times_ns != NEVER_NS] / MS_NS
    if not len(times_ms):
        return None
    p50, p99 = np.percentile(times_ms, (50, 99))
    return Spread(float(times_ms.mean()), float(p50), float(p99), float(times_ms.max()))


# The figures of a run of durable topics, in words.


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
