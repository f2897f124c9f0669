"""How long the DHT takes to store and to find a value, and what it costs.

    .venv/bin/python benchmarks/dht.py                       over sockets, a table
    .venv/bin/python benchmarks/dht.py --json                one object, for machines
    .venv/bin/python benchmarks/dht.py --simulated           1,000 nodes over the AWS delay table
    ... --nodes 24 --count 500 --size 3000                   other shapes

Over sockets: all nodes are in this process, each with its own key and port on loopback, so CPU is
that of everybody together. One operation at a time.

    put, first     from Put to the first node that says it holds the value
    put, all       to the last of k
    get, hit       by a node that does not hold it; its table and links are warm
    get, miss      a key that nobody holds: all that are near are asked
    echo           a bare picows echo of one frame of the same size, for comparison

Simulated: delays are those of the AWS regions, and time is virtual; CPU is that of simulating all
nodes. A node that stores many values looks up few places: `first 20` are its first values.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from random import Random
from statistics import median, quantiles
from typing import Any

import msgspec
import picows
import uvloop

from shoal.base.ids import Contact
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import Input
from shoal.protocols.dht.commands import DhtReady, Get, GetDone, Put, PutDone
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.machine import DhtNode
from shoal.protocols.dht.messages import QUESTIONS
from shoal.protocols.dht.validators import content_key, judge_content
from shoal.protocols.dht.wire import DhtCodec
from shoal.runtime import RuntimeHost
from shoal.sim import SimNode
from shoal.transport.port import Credentials
from shoal.transport.websocket import WebSocketTransport
from shoal_lab.experiments.dht_network import DhtNetwork

ANY_PORT = "ws://127.0.0.1:0"
ANSWER_S_MAX = 90.0  # by then every operation has ended
FIRST = 20
ON_ONE_MACHINE = DhtConfig(prefix_bucket_max=1000, prefix_table_max=1000)


class Times(msgspec.Struct, frozen=True):
    """One kind of operation, in milliseconds."""

    median_ms: float
    p95_ms: float
    cpu_ms: float
    """Of one operation, on average."""
    questions: float = 0.0
    """That the node asked others for one operation; in the simulator."""


def times(walls_s: Sequence[float], cpu_s: float, questions: int = 0) -> Times:
    count = len(walls_s)
    p95_s = quantiles(walls_s, n=20)[-1]
    return Times(
        1000 * median(walls_s), 1000 * p95_s, 1000 * cpu_s / count, round(questions / count, 1)
    )


def value_of(number: int, size: int) -> bytes:
    return (b"%d " % number).ljust(size, b"x")


# Over sockets


class Peer:
    """A node of the DHT over loopback."""

    def __init__(self, number: int, bootstrap: Sequence[Contact]) -> None:
        entropy = SeededEntropy(f"dht benchmark {number}")
        self._credentials = Credentials(PrivateKey.generate(entropy), entropy, ("node",))
        self.id = self._credentials.key.address
        rng = Random(number)
        self.machine = DhtNode(self.id, bootstrap, judge_content, rng, ON_ONE_MACHINE)
        self.host = RuntimeHost(self.id, [self.machine], [DhtCodec()], rng=rng)
        self.host.listeners.append(self._told)
        self.ready = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def open(self) -> Contact:
        transport = WebSocketTransport(self._credentials, self.host)
        return Contact(self.id, await self.host.open([transport], [ANY_PORT]))

    async def ask(self, command: Get | Put) -> Any:
        """Issue a command and wait for its answer."""
        token = len(self._answers)
        self._answers[token] = asyncio.get_running_loop().create_future()
        await self.host.issue(self.machine, command, token)
        async with asyncio.timeout(ANSWER_S_MAX):
            return await self._answers[token]

    def _told(self, event: Any) -> None:
        if isinstance(event, DhtReady):
            self.ready.set_result(None)
        elif isinstance(event, GetDone | PutDone):
            assert isinstance(event.token, int)
            self._answers[event.token].set_result(event)


class Echo(picows.WSListener):
    """Sends back what comes."""

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_bytes())


class Asking(picows.WSListener):
    """Waits for one echo at a time."""

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport

    async def ask(self, payload: bytes) -> None:
        self.came = asyncio.get_running_loop().create_future()
        self.transport.send(picows.WSMsgType.BINARY, payload)
        await self.came

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        self.came.set_result(None)


async def timed(count: int, work: Callable[[int], Awaitable[None]]) -> Times:
    walls_s = []
    cpu_s = time.process_time()
    for number in range(count):
        begin_s = time.perf_counter()
        await work(number)
        walls_s.append(time.perf_counter() - begin_s)
    return times(walls_s, time.process_time() - cpu_s)


async def measure_echo(count: int, size: int) -> Times:
    server = await picows.ws_create_server(lambda _: Echo(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    asking = Asking()
    await picows.ws_connect(lambda: asking, f"ws://127.0.0.1:{port}/")
    result = await timed(count, lambda number: asking.ask(value_of(number, size)))
    asking.transport.disconnect()
    server.close()
    return result


async def over_sockets(nodes: int, count: int, size: int) -> dict[str, Times]:
    async with AsyncExitStack() as stack:
        peers: list[Peer] = []
        bootstrap: list[Contact] = []
        for number in range(nodes):
            peer = Peer(number, bootstrap[:1])
            stack.push_async_callback(peer.host.stop)
            bootstrap.append(await peer.open())
            await peer.ready
            peers.append(peer)
            say(f"{number + 1} of {nodes} nodes have joined")
        publisher, rng = peers[-1], Random(0)

        async def put(number: int, replicas: int | None) -> None:
            value = value_of(number, size)
            done = await publisher.ask(Put(content_key(value), value, replicas))
            assert done.replicas >= (replicas or min(nodes - 1, publisher.machine.config.k))

        async def get(number: int) -> None:
            value = value_of(number, size)
            key = content_key(value)
            lacking = [one for one in peers if not one.machine.values.get(key, time.time_ns())]
            done = await rng.choice(lacking).ask(Get(key))
            assert bool(done.values) == (number < 2 * count)

        first = await timed(count, lambda number: put(number, 1))
        every = await timed(count, lambda number: put(count + number, None))
        say("values are stored")
        return {
            "put, first": first,
            "put, all": every,
            "get, hit": await timed(count, get),
            "get, miss": await timed(count, lambda number: get(2 * count + number)),
            "echo": await measure_echo(count, size),
        }


# Simulated


def count_questions(node: SimNode) -> Counter[str]:
    """What a node asks others from now on."""
    counted: Counter[str] = Counter()

    def watch(event: Input, effects: Sequence[Effect]) -> None:
        sent = [type(effect.message) for effect in effects if isinstance(effect, Send)]
        counted.update([kind.__name__ for kind in sent if kind in QUESTIONS])

    assert node.host is not None
    node.host.watch = watch
    return counted


def simulated(nodes: int, count: int, size: int) -> dict[str, Times]:
    network = DhtNetwork(1, nodes)
    say(f"{nodes} nodes join")
    network.join()
    publisher, asker, stored = network.honest[-1], network.honest[-2], list[bytes]()

    def put(count: int, replicas: int | None) -> Times:
        def one(_: int) -> int:
            stored.append(value_of(len(stored), size))
            return network.put(publisher, content_key(stored[-1]), stored[-1], replicas)

        return run(publisher, count, one)

    def run(node: SimNode, count: int, begin: Callable[[int], int]) -> Times:
        asked, cpu_s = count_questions(node), time.process_time()
        tokens = []
        for number in range(count):
            tokens.append(begin(number))
            network.simulation.run_for(0.5)
        network.simulation.run_for(ANSWER_S_MAX)
        took_s = [network.took_s(token) for token in tokens]
        return times(took_s, time.process_time() - cpu_s, asked.total())

    result = {"put, first 20": put(FIRST, None)}
    say("the publisher begins")
    put(count, None)  # so that it knows the network
    result["put, first"] = put(count, 1)
    result["put, all"] = put(count, None)
    say("values are stored")
    result["get, hit"] = run(asker, count, lambda n: network.get(asker, content_key(stored[n])))
    result["get, miss"] = run(asker, count, lambda n: network.get(asker, b"nobody's %d" % n))
    return result


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--simulated", action="store_true", help="under virtual time")
    parser.add_argument("--nodes", type=int, help="32 over sockets, 1,000 simulated")
    parser.add_argument("--count", type=int, default=200, help="operations of each kind")
    parser.add_argument("--size", type=int, default=300, help="bytes of a value")
    options = parser.parse_args()
    nodes = options.nodes or (1000 if options.simulated else 32)
    if nodes < DhtConfig().k + 3:
        parser.error(f"--nodes {nodes}: all of them would hold every value; write 23 or more")
    if options.count < 2:
        parser.error(f"--count {options.count}: write 2 or more")
    if options.simulated:
        rows = simulated(nodes, options.count, options.size)
    else:
        rows = uvloop.run(over_sockets(nodes, options.count, options.size))
    if options.json:
        print(json.dumps({"nodes": nodes, "rows": msgspec.to_builtins(rows)}))
        return
    print(f"{nodes} nodes{'median ms':>20}{'p95 ms':>10}{'CPU ms':>10}{'questions':>11}")
    for name, row in rows.items():
        asked = f"{row.questions:11.1f}" if options.simulated else f"{'':>11}"
        print(f"{name:16}{row.median_ms:12.2f}{row.p95_ms:10.2f}{row.cpu_ms:10.2f}{asked}")


if __name__ == "__main__":
    main()
