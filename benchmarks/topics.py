"""CPU time per verified delivery of a durable topic, over sockets.

    .venv/bin/python benchmarks/topics.py                  a table
    .venv/bin/python benchmarks/topics.py --json           one object, for machines
    ... --repeat 5 --events 2000 --window 32               longer, or with more under way at once

Sixteen nodes in this process, over loopback WebSockets, as `shoal.Node` runs them: all are in the
DHT and in the tree of one topic, every event is checked by every node, told to its application, and
put into the DHT, on every other node. A delivery is an event at a node other than its publisher.
`window` events are published at once, and have arrived everywhere before the next ones. CPU time
is that of the whole process, with the kernel's part of it, until the last delivery, and again until
the DHT holds all of them.

    verify       one signature check and nothing else: no verified delivery costs less
    delivery     microseconds of CPU per delivery, the DHT's work in it that was done meanwhile
    with the DHT the same, until every event was stored on all nodes

Every round measures the parts one after the other, so that a slow minute hits all; the table has
the medians, and the range.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median

import msgspec
import uvloop

from shoal.base.ids import show_node_id
from shoal.config.sections import DhtSection, PeerEntry
from shoal.identity import PrivateKey, SeededEntropy, verify
from shoal.node import NetworkFile, Node, PublishedEvent, Topic, TopicSubscription

NODES = 16
PAYLOAD_BYTES = 300
WARM_UP_EVENTS = 100
VERIFIES = 3000
ROUND_S_MAX = 120.0


class Round(msgspec.Struct, frozen=True):
    """What one round took."""

    deliveries: int
    cpu_us: float
    cpu_stored_us: float
    wall_ms: float


class Figures(msgspec.Struct, frozen=True):
    """Medians of several rounds."""

    verify_us: float
    delivery_us: float
    delivery_us_min: float
    delivery_us_max: float
    stored_us: float
    deliveries_per_cpu_second: float
    over_verify: float
    """Delivery / verify: 1 would be a network that costs nothing."""


class Readers:
    """Nodes in one topic, whose applications count."""

    def __init__(self, topics: list[Topic]) -> None:
        self.topics = topics
        self.delivered = 0
        self._sent = 0
        self._wanted = 0
        self._enough = asyncio.Event()

    async def read(self, events: TopicSubscription) -> None:
        """An application that counts; the publisher's own is not among them."""
        async for _ in events:
            self.delivered += 1
            if self.delivered >= self._wanted:
                self._enough.set()

    async def round(self, events: int, window: int) -> Round:
        """Publish so many events; wait for them everywhere, then in the DHT."""
        others, payload = len(self.topics) - 1, bytes(PAYLOAD_BYTES)
        published: list[PublishedEvent] = []
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.timeout(ROUND_S_MAX):
            for begin in range(0, events, window):
                size = min(window, events - begin)
                publish = [self.topics[0].publish(payload) for _ in range(size)]
                published += await asyncio.gather(*publish)
                self._sent += size
                await self._at_least(self._sent * others)
            cpu_s, wall_s = time.process_time() - begin_cpu_s, time.perf_counter() - begin_s
            for event in published:
                await event.stored(replicas=others)
        stored_s = time.process_time() - begin_cpu_s
        return Round(events * others, cpu_s * 1e6, stored_s * 1e6, wall_s * 1e3)

    async def _at_least(self, delivered: int) -> None:
        if self.delivered < delivered:
            self._wanted = delivered
            self._enough.clear()
            await self._enough.wait()


@asynccontextmanager
async def network(nodes: int = NODES) -> AsyncIterator[Readers]:
    """Nodes on loopback, all in one topic of the first."""
    async with AsyncExitStack() as stack:
        bootstrap: tuple[PeerEntry, ...] = ()
        opened: list[Node] = []
        for number in range(nodes):
            file = NetworkFile(dht=DhtSection(bootstrap))
            entropy = SeededEntropy(f"topics {number}")
            opened.append(await stack.enter_async_context(Node.open(file, entropy=entropy)))
            first = opened[0]
            bootstrap = (PeerEntry(show_node_id(first.id), first.addresses),)
        own = await opened[0].create_topic("benchmark")
        await own.stored(replicas=1)
        readers = Readers([own, *[await node.topic(own.cid) for node in opened[1:]]])
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for topic in readers.topics[1:]:
            events = await stack.enter_async_context(topic.subscribe(meta=False))
            tasks.create_task(readers.read(events))
        await asyncio.sleep(1.0)  # joins are answered
        yield readers


def verify_us(checks: int) -> float:
    """CPU microseconds of a bare signature check."""
    key = PrivateKey.generate(SeededEntropy("publisher"))
    body = bytes(PAYLOAD_BYTES)
    signer, signature = key.address, key.sign(body)
    begin_s = time.process_time()
    for _ in range(checks):
        if not verify(signer, body, signature):
            raise AssertionError("a good signature was refused")
    return (time.process_time() - begin_s) * 1e6 / checks


async def measure(repeat: int, events: int, window: int) -> Figures:
    """Several rounds in one network."""
    rounds: list[Round] = []
    verifies: list[float] = []
    async with network() as readers:
        await readers.round(WARM_UP_EVENTS, window)
        for number in range(repeat):
            print(f"round {number + 1} of {repeat} ...", file=sys.stderr, flush=True)
            verifies.append(verify_us(VERIFIES))
            rounds.append(await readers.round(events, window))
    each = [one.cpu_us / one.deliveries for one in rounds]
    verify_median, delivery = median(verifies), median(each)
    return Figures(
        verify_us=verify_median,
        delivery_us=delivery,
        delivery_us_min=min(each),
        delivery_us_max=max(each),
        stored_us=median([one.cpu_stored_us / one.deliveries for one in rounds]),
        deliveries_per_cpu_second=1e6 / delivery,
        over_verify=delivery / verify_median,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3, help="rounds (3)")
    parser.add_argument("--events", type=int, default=1000, help="events of a round (1000)")
    parser.add_argument("--window", type=int, default=8, help="under way at once (8)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = uvloop.run(measure(options.repeat, options.events, options.window))
    if options.json:
        print(json.dumps(msgspec.to_builtins(figures)))
        return
    low, high = figures.delivery_us_min, figures.delivery_us_max
    print(f"verify               {figures.verify_us:8.1f} us")
    print(f"delivery             {figures.delivery_us:8.1f} us ({low:.1f} to {high:.1f})")
    print(f"with the DHT         {figures.stored_us:8.1f} us")
    print(f"deliveries per CPU-s {figures.deliveries_per_cpu_second:8.0f}")
    print(f"delivery / verify    {figures.over_verify:8.2f}")


if __name__ == "__main__":
    main()
