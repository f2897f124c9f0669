"""How soon a subscriber hears something, and how fast history is resent, over loopback.

    .venv/bin/python benchmarks/first_message.py             a table
    .venv/bin/python benchmarks/first_message.py --json      one object, for machines
    ... --repeat 30 --nodes 8 --rows 20000                   more rounds, other shapes

The subscriber is this process: a node as `shoal.Node` opens it. The network is another process: a
tracker, a storage node, and `nodes` nodes, one of which publishes every 5 ms.

    first message    from subscribe() to the first live message: asking the tracker, being given
                     neighbours, dialling them, and waiting for what comes next
    bare connect     from a picows connect to the first frame of a server that sends one every
                     5 ms: no identity, no tracker, no overlay
    last 100         from subscribe(start=Last(100)) to the last of a hundred messages of history
    resend           rows per CPU-second of this process, signatures checked, as `Stream.read` gives
                     them; beside signature checks alone

Times are medians over the rounds, wall and CPU of this process; opening and closing nodes is not
counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import picows
import uvloop

from shoal import Last, NetworkFile, Node
from shoal.config.sections import (
    NodeSection,
    PeerEntry,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.identity import PrivateKey, SeededEntropy, verify

SPAWN = multiprocessing.get_context("spawn")
STORAGE = "storage"
STREAM = f"0x{PrivateKey.generate(SeededEntropy('owner')).address.hex()}/benchmark"
EVERY_S = 0.005
PAYLOAD = "x" * 250
READY_S_MAX = 120.0


class Times(msgspec.Struct, frozen=True):
    """One kind of waiting, in milliseconds."""

    wall_ms: float
    wall_ms_max: float
    cpu_ms: float


# The network


class Ticker(picows.WSListener):
    """Sends a frame every 5 ms to whoever is connected."""

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.task = asyncio.get_running_loop().create_task(self._tick(transport))

    async def _tick(self, transport: picows.WSTransport) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            transport.send(picows.WSMsgType.BINARY, PAYLOAD.encode())

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self.task.cancel()


def public_network() -> NetworkFile:
    """What everybody knows but the tracker's address."""
    id = f"0x{PrivateKey.generate(SeededEntropy(STORAGE)).address.hex()}"
    return NetworkFile(
        storage_nodes=(PeerEntry(id, ("ws://127.0.0.1:9",)),),
        streams=(StreamSettings(STREAM, storage=(id,)),),
    )


def network_with(tracker: PeerEntry, **sections: Any) -> NetworkFile:
    return msgspec.structs.replace(public_network(), trackers=(tracker,), **sections)


async def serve(pipe: Connection, nodes: int, rows: int) -> None:
    """The other process: ends by being killed."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        public = msgspec.structs.replace(public_network(), tracker=TrackerSection())
        tracker = await stack.enter_async_context(Node.open(public))
        entry = PeerEntry(f"0x{tracker.id.hex()}", tracker.addresses)
        section = StorageSection(str(Path(folder, "store")))
        keeping = Node.open(network_with(entry, storage=section), entropy=SeededEntropy(STORAGE))
        storage = await stack.enter_async_context(keeping)
        members = [
            await stack.enter_async_context(Node.open(network_with(entry))) for _ in range(nodes)
        ]
        for member in members:
            await member.join(STREAM)
        stream = await members[0].open_stream(STREAM)
        for number in range(rows):
            await stream.publish({"number": number, "padding": PAYLOAD}, durable=number % 100 == 99)
        assert storage.storage is not None
        server = await picows.ws_create_server(lambda _: Ticker(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pipe.send((entry.id, entry.addresses, f"ws://127.0.0.1:{port}/"))
        while True:
            await stream.publish({"number": rows, "padding": PAYLOAD})
            await asyncio.sleep(EVERY_S)


def run_network(pipe: Connection, nodes: int, rows: int) -> None:
    uvloop.run(serve(pipe, nodes, rows))


# The subscriber


class Waiting(picows.WSListener):
    """Waits for a first frame."""

    def __init__(self) -> None:
        self.came = asyncio.get_running_loop().create_future()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if not self.came.done():
            self.came.set_result(None)


async def bare_connect(address: str) -> None:
    waiting = Waiting()
    transport, _ = await picows.ws_connect(lambda: waiting, address)
    await waiting.came
    transport.disconnect()


async def timed(
    network: NetworkFile, repeat: int, work: Callable[[Node], Awaitable[None]]
) -> Times:
    walls, cpus = [], []
    for _ in range(repeat):
        async with Node.open(network) as node:
            await asyncio.sleep(0.05)
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            await work(node)
            walls.append(1000 * (time.perf_counter() - wall_s))
            cpus.append(1000 * (time.process_time() - cpu_s))
    return Times(median(walls), max(walls), median(cpus))


async def first_message(node: Node) -> None:
    stream = await node.open_stream(STREAM)
    async with stream.subscribe() as messages:
        await anext(messages)


async def last_hundred(node: Node) -> None:
    stream = await node.open_stream(STREAM)
    async with stream.subscribe(start=Last(100)) as messages:
        for _ in range(100):
            await anext(messages)


async def resend(network: NetworkFile, rows: int) -> tuple[float, float]:
    """Rows per CPU-second, and per second."""
    async with Node.open(network) as node:
        stream = await node.open_stream(STREAM)
        wall_s, cpu_s, count = time.perf_counter(), time.process_time(), 0
        async for _ in stream.read():
            count += 1
            if count == rows:
                break
        return count / (time.process_time() - cpu_s), count / (time.perf_counter() - wall_s)


def verifies_per_cpu_second(count: int = 2000) -> float:
    key = PrivateKey.generate(SeededEntropy("verify"))
    body = PAYLOAD.encode() + bytes(100)
    signature = key.sign(body)
    begin_s = time.process_time()
    for _ in range(count):
        assert verify(key.address, body, signature)
    return count / (time.process_time() - begin_s)


async def measure(options: argparse.Namespace, pipe: Connection) -> dict[str, Any]:
    ready = await asyncio.to_thread(pipe.poll, READY_S_MAX)
    assert ready, "the network did not come up"
    id, addresses, bare = pipe.recv()
    network = network_with(PeerEntry(id, tuple(addresses)), node=NodeSection())
    rates = [await resend(network, options.rows) for _ in range(options.resends)]
    rows_per_cpu_s = median(rate for rate, _ in rates)
    checks_per_cpu_s = verifies_per_cpu_second()
    first = await timed(network, options.repeat, first_message)
    connect = await timed(network, options.repeat, lambda _: bare_connect(bare))
    return {
        "nodes": options.nodes,
        "repeat": options.repeat,
        "first_message": msgspec.to_builtins(first),
        "bare_connect": msgspec.to_builtins(connect),
        "first_over_bare": first.wall_ms / connect.wall_ms,
        "last_100": msgspec.to_builtins(await timed(network, options.repeat, last_hundred)),
        "resend_rows": options.rows,
        "resend_rows_per_cpu_second": rows_per_cpu_s,
        "resend_rows_per_second": median(rate for _, rate in rates),
        "verifies_per_cpu_second": checks_per_cpu_s,
        "resend_over_verify": rows_per_cpu_s / checks_per_cpu_s,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'':16}{'wall ms':>10}{'max':>10}{'CPU ms':>10}")
    for name in ("first_message", "bare_connect", "last_100"):
        times = result[name]
        row = "".join(f"{times[column]:10.2f}" for column in ("wall_ms", "wall_ms_max", "cpu_ms"))
        print(f"{name.replace('_', ' '):16}{row}")
    print(f"\nfirst message / bare connect: {result['first_over_bare']:.1f}")
    print(
        f"resend: {result['resend_rows_per_cpu_second']:,.0f} rows per CPU-second, "
        f"{result['resend_rows_per_second']:,.0f} per second; signature checks alone: "
        f"{result['verifies_per_cpu_second']:,.0f} (ratio {result['resend_over_verify']:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--repeat", type=int, default=20, help="rounds of each kind")
    parser.add_argument("--resends", type=int, default=3, help="rounds of resending")
    parser.add_argument("--nodes", type=int, default=4, help="nodes in the stream")
    parser.add_argument("--rows", type=int, default=5_000, help="messages of history")
    options = parser.parse_args()
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(
        target=run_network, args=(theirs, options.nodes, options.rows), daemon=True
    )
    process.start()
    try:
        result = uvloop.run(measure(options, ours))
    finally:
        process.kill()
        process.join()
    print(json.dumps(result)) if options.json else show(result)


if __name__ == "__main__":
    main()
