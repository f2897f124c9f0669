"""How well the tracker foretells what messages take over real sockets.

    .venv/bin/python benchmarks/prediction.py [--nodes 12] [--messages 10] [--json]

A tracker and some nodes in one process, with WebSocket links over loopback, handshakes, MACs and
signatures as anywhere. Loopback alone takes a tenth of a millisecond, where the scheduler of the
machine is all there is to measure; so what a link brings is held back before the node sees it, for
the one-way delay between two AWS regions and an exponential jitter of 2 ms, in order, as in
`scenarios/streams-prediction.toml`. Nodes measure round trips and report them as they always do;
forty seconds after the last join the tracker is asked for its estimate, and then every node
publishes messages, one at a time. Beside it: the same without any delay, which is reported and
means little.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.config.network_file import tracker_contact
from shoal.config.sections import NodeSection, TrackerSection
from shoal.node import NetworkFile, Node, Stream, Subscription
from shoal.protocols.streams.tracker.delay_estimate import Estimate, estimate_delays
from shoal.protocols.streams.tracker.stream_record import overlay_of
from shoal.runtime import RuntimeHost
from shoal.sim.delays import RegionDelay, load_table
from shoal.transport.port import Frame, Link
from shoal_lab.experiments.streams.figures import Prediction, compare

JITTER_MS = 2.0
SETTLE_S = 40.0  # seven round trips of each link or more, and the second report
PAUSE_S = 0.05
PATIENCE_S = 30.0

DelayOf = Callable[[NodeId, NodeId], float]  # seconds from one node to another


class DelayedHost(RuntimeHost):
    """Sees what its links bring as late as if they were long."""

    delay_s: DelayOf

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self.delay_s(link.peer.node, self.node)
        last = self.__dict__.setdefault("_due_s", {})
        last[link] = due_s = max(due_s, last.get(link, 0.0))  # as TCP: nothing overtakes
        loop.call_at(due_s, super().frames_received, link, frames)


class Places:
    """Nodes in the regions of the AWS table, in the order in which they are placed."""

    def __init__(self, jitter_ms: float, seed: int) -> None:
        self._delays = RegionDelay(load_table("aws"))
        self._numbers: dict[NodeId, int] = {}
        self._jitter_ms = jitter_ms
        self._rng = Random(seed)

    def place(self, node: NodeId) -> None:
        self._numbers[node] = len(self._numbers)

    def delay_s(self, sender: NodeId, receiver: NodeId) -> float:
        a, b = self._numbers.get(sender), self._numbers.get(receiver)
        if a is None or b is None:
            return 0.0  # the tracker is near everybody
        jitter_ms = self._rng.expovariate(1 / self._jitter_ms)
        return self._delays.one_way_ns(a, b) / 1e9 + jitter_ms / 1e3


async def measure(nodes: int, messages: int, delay_s: DelayOf | None, place: Any) -> Prediction:
    """One network: estimate, then measure."""
    DelayedHost.delay_s = staticmethod(delay_s or (lambda a, b: 0.0))
    async with AsyncExitStack() as stack:
        if delay_s is not None:
            stack.enter_context(patch("shoal.node.node.RuntimeHost", DelayedHost))
        tracker = await stack.enter_async_context(_tracker())
        entry = tracker_contact(tracker.id, list(tracker.addresses))
        streams: list[Stream] = []
        subscriptions: list[Subscription] = []
        members: list[Node] = []
        for _ in range(nodes):
            node = await stack.enter_async_context(Node.open(NetworkFile(trackers=(entry,))))
            place(node.id)
            id = streams[0].id if streams else "/prediction"
            stream = await node.open_stream(id)
            subscriptions.append(await stack.enter_async_context(stream.subscribe()))
            streams.append(stream)
            members.append(node)
        _show(f"{nodes} nodes measure round trips for {SETTLE_S:.0f} s")
        await asyncio.sleep(SETTLE_S)
        estimate = await _estimate(tracker, streams[0].id)
        took_ms: dict[NodeId, list[float]] = {node.id: [] for node in members}
        for number in range(messages * nodes):
            at = number % nodes
            begin_ns = time.time_ns()
            await streams[at].publish(number)
            for other, subscription in enumerate(subscriptions):
                async with asyncio.timeout(PATIENCE_S):
                    message = await anext(subscription)
                if other != at:
                    took_ms[members[at].id].append((message.received_ns - begin_ns) / 1e6)
            await asyncio.sleep(PAUSE_S)
            if at == nodes - 1:
                _show(f"{number + 1} of {messages * nodes} messages")
    prediction = compare(estimate, {n: sum(ms) / len(ms) for n, ms in took_ms.items()})
    assert prediction is not None  # every node published, and was heard
    return prediction


async def _estimate(tracker: Node, stream: StreamId) -> Estimate:
    assert tracker.tracker is not None
    overlay = overlay_of(tracker.tracker.streams[stream])
    return await asyncio.to_thread(estimate_delays, *overlay)


@asynccontextmanager
async def _tracker() -> AsyncIterator[Node]:
    network = NetworkFile(node=NodeSection(), tracker=TrackerSection())
    async with Node.open(network) as node:
        yield node


def run(nodes: int, messages: int, *, delayed: bool, seed: int = 1) -> Prediction:
    """One network of its own, from start to end."""
    places = Places(JITTER_MS, seed)
    delay_s = places.delay_s if delayed else None
    return asyncio.run(measure(nodes, messages, delay_s, places.place))


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="Estimated against measured delays, on sockets.")
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--messages", type=int, default=10, help="of each node")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rows = {
        name: run(options.nodes, options.messages, delayed=delayed)
        for name, delayed in (("aws", True), ("loopback", False))
    }
    if options.json:
        print(msgspec.json.encode({"benchmark": "prediction", **rows}).decode())
        return
    print(f"{'links':<10}{'estimated':>12}{'measured':>12}{'error':>10}{'publishers':>12}")
    for name, row in rows.items():
        print(
            f"{name:<10}{row.estimated_ms:>9.2f} ms{row.measured_ms:>9.2f} ms"
            f"{row.error_percent:>+8.2f} %{row.mape_percent:>10.2f} %"
        )


if __name__ == "__main__":
    main()
