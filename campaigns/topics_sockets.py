"""Durable topics over real connections: everything that was injected must reach all readers.

    .venv/bin/python -m campaigns.topics_sockets                      100 nodes, 500 events
    .venv/bin/python -m campaigns.topics_sockets --ordered            one order for each topic
    .venv/bin/python -m campaigns.topics_sockets --nodes 12 --processes 3 --topics 4 --events 40
    .venv/bin/python -m campaigns.topics_sockets --json               one object, for machines

The workload is the lab's (src/shoal_lab/experiments/topics/workload.py), with fewer events than
were published.
Nodes are whole ones, in a few processes, over WebSockets on loopback, their topics in memory. Every
reader keeps a journal, and journals are compared with what was accepted. The exit code is 1 if
anything is missing when the time to drain is over, or out of order, or was told twice.

Costs of a node are those of its process over its number of nodes, without what the interpreter and
its imports took before the first node was there. Bytes are those of messages of topics and of the
DHT, without what links, TCP and IP add. A message is one RPC, which may tell several things.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import msgspec

from campaigns.kills import Failure
from campaigns.topic_journal import Given
from campaigns.topic_processes import Processes
from campaigns.topic_words import Accepted, Refused, TopicFigures
from campaigns.workers import announce, show
from shoal.base.errors import ConfigError
from shoal_lab.experiments.streams.figures import Spread
from shoal_lab.experiments.topics.figures import (
    PerNode,
    accept_times_ns,
    delivery_times_ns,
    event_times_ns,
    over_nodes,
    spread_ns,
)
from shoal_lab.experiments.topics.ledger import Ledger
from shoal_lab.experiments.topics.workload import TOPICS, make_workload
from shoal_lab.report import published

MIB = 1 << 20
WATCH_S = 1.0


class Settings(msgspec.Struct, frozen=True):
    """One run."""

    nodes: int = 100
    processes: int = 8
    topics: int = TOPICS
    events: int = 500
    interval_ms: float = 200.0
    ordered: bool = False
    seed: int = 1
    drain_s: float = 180.0

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= self.nodes or self.events < 1:
            raise Failure(
                f"{self.processes} processes for {self.nodes} nodes and {self.events} events: give "
                "each process a node, and take at least one event"
            )


class Costs(msgspec.Struct, frozen=True):
    """Of something, all nodes together and each."""

    total: float
    per_node: PerNode


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    settings: Settings
    subscriptions: int
    issued: int
    injected: int
    refused: dict[str, int]
    due: int
    delivered: int
    coverage_percent: float
    wrong: int
    gaps: int
    accept_ms: Spread | None
    delivery_ms: Spread | None
    to_100_ms: Spread | None
    cpu_s: Costs
    vcpus: float
    """From the first event to the end, in the mean: CPU seconds for each second."""
    memory_mib: Costs
    interpreter_mib: float
    """What a process took before its first node, in the mean."""
    sent_mib: Costs
    received_mib: Costs
    rpcs_per_event: float
    """From the first event to the end, and so for the DHT."""
    dht_per_event: float
    rejected: dict[str, int]
    joining_s: float
    publishing_s: float
    """From the first event until everything was there, or the time was over."""
    failure: str
    """Empty if all holds."""


class Run:
    """One run, while it goes on."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.workload = make_workload(
            Random(f"topics over sockets {settings.seed}"),
            nodes=settings.nodes,
            topics=settings.topics,
            events=settings.events,
            interval_ms=settings.interval_ms,
        )
        self.ledger = Ledger(self.workload, settings.nodes, ordered=settings.ordered)
        self.network = Processes(
            folder,
            nodes=settings.nodes,
            processes=settings.processes,
            name=f"topics {settings.seed}",
            on_disk=False,
            tell=self.told,
        )

    async def play(self) -> Outcome:
        """Everybody joins, topics are made and read, events are injected, all becomes quiet."""
        begin_s = time.monotonic()
        async with self.network as network:
            announce(f"{self.settings.nodes} nodes run, topics are made")
            authors = {number: topic.author for number, topic in enumerate(self.workload.topics)}
            await network.create(authors, authors if self.settings.ordered else ())
            announce(f"{self.workload.subscriptions} subscriptions begin")
            readers = {number: topic.readers for number, topic in enumerate(self.workload.topics)}
            await network.read(readers)
            before = await network.look()
            announce(f"{self.settings.events} events begin")
            first_s = time.monotonic()
            await self._publish()
            announce("the last event was injected")
            await self._drain()
            publishing_s = time.monotonic() - first_s
            after = await network.look()
            return self._outcome(before, after, first_s - begin_s, publishing_s)

    async def _publish(self) -> None:
        begin_s = told_s = time.monotonic()
        for number, event in enumerate(self.workload.events):
            wait_s = begin_s + event.at_ms / 1000 - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.ledger.issue(number, time.time_ns())
            self.network.inject(event.author, event.topic, number, event.size_bytes)
            if time.monotonic() - told_s > WATCH_S:
                told_s = time.monotonic()
                self._watch()

    async def _drain(self) -> None:
        deadline_s = time.monotonic() + self.settings.drain_s
        while not self._watch() and time.monotonic() < deadline_s:
            await asyncio.sleep(WATCH_S / 4)

    def _watch(self) -> bool:
        """Whether everything that was issued was answered, and is where it has to be."""
        self.network.check()
        self.network.follow(self.given)
        ledger, everybody = self.ledger, range(self.settings.nodes)
        came, due = len(ledger.arrivals(everybody).events), int(ledger.due(everybody).sum())
        answered = len(ledger.accepted_ns) + ledger.refused.total()
        show(f"{answered} of {self.settings.events} events answered, {came} of {due} deliveries")
        return answered == self.settings.events and came == due

    def told(self, said: Accepted | Refused) -> None:
        """A worker has an answer."""
        if isinstance(said, Accepted):
            self.ledger.accept(said.event, said.time_ns)
        else:
            self.ledger.refuse(said.reason)

    def given(self, node: int, given: Given | None) -> None:
        """A line of a journal."""
        if given is not None:
            self.ledger.gaps += given.gap
            self.ledger.arrive(node, given.event, given.id, given.parent, given.time_ns)

    def _outcome(
        self,
        before: list[TopicFigures],
        after: list[TopicFigures],
        joining_s: float,
        publishing_s: float,
    ) -> Outcome:
        settings, ledger, everybody = self.settings, self.ledger, range(self.settings.nodes)
        due, arrivals = ledger.due(everybody), ledger.arrivals(everybody)
        expected, came = int(due.sum()), len(arrivals.events)
        received, sent = _traffic(after)
        rpcs, dht = (_messages(after, k) - _messages(before, k) for k in ("rpcs", "dht"))
        injected = len(ledger.accepted_ns)
        spent_s = sum(w.cpu_s for w in after) - sum(w.cpu_s for w in before)
        rejected: dict[str, int] = {}
        for node in (node for worker in after for node in worker.nodes):
            for reason, count in node.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + count
        return Outcome(
            settings=settings,
            subscriptions=self.workload.subscriptions,
            issued=len(ledger.issued_ns),
            injected=injected,
            refused=dict(ledger.refused),
            due=expected,
            delivered=came,
            coverage_percent=100 * came / max(1, expected),
            wrong=len(ledger.check_order(everybody)),
            gaps=ledger.gaps,
            accept_ms=spread_ns(accept_times_ns(ledger)),
            delivery_ms=spread_ns(delivery_times_ns(ledger, arrivals)),
            to_100_ms=spread_ns(event_times_ns(ledger, due, arrivals, 1.0)),
            cpu_s=_costs([w.cpu_s / len(w.nodes) for w in after for _ in w.nodes]),
            vcpus=spent_s / publishing_s,
            memory_mib=_costs(
                [w.memory_bytes / len(w.nodes) / MIB for w in after for _ in w.nodes]
            ),
            interpreter_mib=sum(w.bare_bytes for w in after) / len(after) / MIB,
            sent_mib=_costs([count / MIB for count in sent]),
            received_mib=_costs([count / MIB for count in received]),
            rpcs_per_event=rpcs / max(1, injected),
            dht_per_event=dht / max(1, injected),
            rejected=rejected,
            joining_s=joining_s,
            publishing_s=publishing_s,
            failure=self.failure(rejected.get("machine-failed", 0)),
        )

    def failure(self, failed_machines: int = 0) -> str:
        """What does not hold; empty if all does."""
        ledger, everybody = self.ledger, range(self.settings.nodes)
        missing, wrong = ledger.missing(everybody), ledger.check_order(everybody)
        if missing:
            reader, event = missing[0]
            return f"{len(missing)} deliveries are missing: event {event} at node {reader}"
        if wrong:
            return f"{len(wrong)} times wrong: {wrong[0]}"
        if ledger.gaps:
            return f"{ledger.gaps} times a reader was told of a gap"
        if len(ledger.accepted_ns) < self.settings.events:
            return f"{len(ledger.accepted_ns)} of {self.settings.events} events were accepted"
        if failed_machines:
            return f"{failed_machines} times a machine failed: see above"
        return ""


def _traffic(workers: list[TopicFigures]) -> tuple[list[int], list[int]]:
    """Bytes that each node received, and that others say they received from each."""
    received: list[int] = []
    sent: dict[str, int] = {}
    for node in (node for worker in workers for node in worker.nodes):
        received.append(sum(traffic.bytes for traffic in node.received.values()))
        for sender, traffic in node.received.items():
            sent[sender] = sent.get(sender, 0) + traffic.bytes
    return received, list(sent.values())


def _messages(workers: list[TopicFigures], kind: str) -> int:
    nodes = (node for worker in workers for node in worker.nodes)
    return sum(getattr(traffic, kind) for node in nodes for traffic in node.received.values())


def _costs(values: list[float]) -> Costs:
    return Costs(sum(values), over_nodes(values))


def run(settings: Settings, folder: Path) -> Outcome:
    """From start to end; Failure if it does not come to that."""
    return asyncio.run(Run(settings, folder).play())


# For people


def table(outcome: Outcome) -> list[str]:
    """What it took, beside what was published: of runs that had many times as many events."""
    ours = published.coverage()[("pulsarcast", outcome.settings.ordered, False)]
    flood = published.coverage()[("floodsub", False, False)]
    lines = [
        f"{outcome.settings.nodes} nodes in {outcome.settings.processes} processes, "
        f"{outcome.settings.topics} topics, {outcome.subscriptions} subscriptions",
        f"coverage        {outcome.coverage_percent:.3f} %: {outcome.delivered:,} of "
        f"{outcome.due:,} for {outcome.injected:,} of {outcome.issued:,} events; published: "
        f"{ours.of_injected_percent:g} %",
        f"{'':<16}{'total':>10}{'mean':>10}{'p95':>10}{'p99':>10}   published",
        _line("CPU seconds", outcome.cpu_s, ""),
        _line(
            "memory MiB",
            outcome.memory_mib,
            f"total {(ours.memory_total_gib or 0) * 1024:,.0f}, mean "
            f"{(ours.memory_mean_gib or 0) * 1024:,.0f}, p99 "
            f"{(ours.memory_p99_gib or 0) * 1024:,.0f}",
        ),
        _line("sent MiB", outcome.sent_mib, f"Floodsub: total {flood.network_mib:,.0f}"),
        _line("received MiB", outcome.received_mib, ""),
        f"vCPUs           {outcome.vcpus:.2f} from the first event to the end; published: "
        f"{ours.vcpus}",
        f"interpreter     {outcome.interpreter_mib:.0f} MiB a process, which memory leaves out",
        f"messages        {outcome.rpcs_per_event:,.0f} RPCs and {outcome.dht_per_event:,.0f} of "
        "the DHT an event",
        _times("accepted after", outcome.accept_ms),
        _times("delivered after", outcome.delivery_ms),
        _times("everywhere after", outcome.to_100_ms),
        f"{outcome.joining_s:.0f} s to join, {outcome.publishing_s:.0f} s from the first event to "
        "the end",
    ]
    if outcome.failure:
        lines.append(f"BAD: {outcome.failure}")
    return lines


def _line(name: str, costs: Costs, beside: str) -> str:
    each = costs.per_node
    figures = (costs.total, each.mean, each.p95, each.p99)
    return f"{name:<16}" + "".join(f"{figure:>10,.2f}" for figure in figures) + f"   {beside}"


def _times(name: str, times: Spread | None) -> str:
    if times is None:
        return f"{name} never"
    return f"{name:<16} {times.p50:,.0f} ms (p50), {times.p99:,.0f} (p99), {times.max:,.0f} (max)"


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.topics_sockets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--processes", type=int, default=defaults.processes)
    parser.add_argument("--topics", type=int, default=defaults.topics)
    parser.add_argument("--events", type=int, default=defaults.events)
    parser.add_argument("--interval-ms", type=float, default=defaults.interval_ms)
    parser.add_argument("--ordered", action="store_true", help="only authors publish")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--drain-s", type=float, default=defaults.drain_s)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    with tempfile.TemporaryDirectory(prefix="shoal-topics-") as folder:
        try:
            outcome = run(Settings(**options), Path(folder))
        except (Failure, ConfigError) as failure:
            sys.exit(f"\n{failure}")
    show("")
    print(msgspec.json.encode(outcome).decode() if as_json else "\n".join(table(outcome)))
    sys.exit(1 if outcome.failure else 0)


if __name__ == "__main__":
    main()
