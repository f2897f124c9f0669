"""WebRTC beside WebSocket: what a link takes to make, and what a delivery takes.

    .venv/bin/python benchmarks/webrtc_links.py                 a table
    .venv/bin/python benchmarks/webrtc_links.py --json          one object, for machines
    ... --nodes 16 --messages 500 --links 50              more of it

Deliveries: nodes with 4 neighbours each and their tracker, in this process; one of them publishes
messages of 300 bytes, all verify them. CPU microseconds of the whole process, the threads of the
WebRTC engine included, per message and node that it reached.

Links: two transports in this process, one after another, handshakes included; signals take no
time. Wall and CPU milliseconds of both ends together.

`verify` is a bare signature check in the same run: compare ratios to it, not rates of machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import uvloop

from shoal.base.ids import NodeId
from shoal.config.network_file import tracker_contact
from shoal.config.sections import WEBRTC_ADDRESS, NodeSection, TrackerSection, WebRTCSection
from shoal.identity import PrivateKey, SeededEntropy, verify
from shoal.node import NetworkFile, Node
from shoal.transport.endpoint import Endpoint
from shoal.transport.port import Credentials, Frame, Link
from shoal.transport.webrtc import WebRTCTransport
from shoal.transport.webrtc_signals import Receive
from shoal.transport.websocket import WebSocketTransport

DEGREE = 4
PAYLOAD_BYTES = 300
AT_ONCE = 20  # messages published before the others have a turn
WARM_UP = 20


def network_of(tracker: Node, kind: str) -> NetworkFile:
    network = NetworkFile(trackers=(tracker_contact(tracker.id, list(tracker.addresses)),))
    if kind == "ws":
        return network
    called = NodeSection(listen=(WEBRTC_ADDRESS,))
    return msgspec.structs.replace(network, node=called, webrtc=WebRTCSection())


async def deliver(kind: str, count: int, messages: int) -> float:
    """CPU microseconds per delivery."""
    async with AsyncExitStack() as stack:
        tracker_file = NetworkFile(tracker=TrackerSection(DEGREE))
        tracker = await stack.enter_async_context(Node.open(tracker_file))
        network = network_of(tracker, kind)
        nodes = [await stack.enter_async_context(Node.open(network)) for _ in range(count)]
        stream_id = f"0x{nodes[0].id.hex()}/benchmark"
        streams = [await node.open_stream(stream_id) for node in nodes]
        inboxes = [await stack.enter_async_context(one.subscribe()) for one in streams]
        async with asyncio.timeout(60):
            while min(node.degree(streams[0].id) for node in nodes) < DEGREE - 1:
                await asyncio.sleep(0.05)

        async def round_of(size: int) -> None:
            for number in range(size):
                await streams[0].publish({"payload": "x" * (PAYLOAD_BYTES - 14)})
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0.01)
            for inbox in inboxes:
                for _ in range(size):
                    await anext(inbox)

        async with asyncio.timeout(300):
            await round_of(WARM_UP)
            began_s = time.process_time()
            await round_of(messages)
            used_s = time.process_time() - began_s
        return used_s * 1e6 / (messages * (count - 1))


class Quiet:
    """Hears of links, and does nothing."""

    def link_ready(self, link: Link) -> None: ...

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None: ...

    def send_queue_changed(self, link: Link, *, high: bool) -> None: ...

    def frame_rejected(self, link: Link, reason: str) -> None: ...

    def link_lost(self, link: Link, reason: str) -> None: ...

    def handshake_failed(self, address: str, reason: str) -> None: ...


class Corridor:
    """The signalling port between two transports of one process."""

    def __init__(self, node: NodeId) -> None:
        self.receive: Receive = lambda peer, signal: None
        self.node = node
        self.other: Corridor | None = None

    def send(self, peer: NodeId, signal: bytes) -> bool:
        assert self.other is not None
        asyncio.get_running_loop().call_soon(self.other.receive, self.node, signal)
        return True


async def connect(kind: str, links: int) -> tuple[float, float]:
    """The median of wall milliseconds, and the mean of CPU milliseconds, of one link."""
    ends = []
    for name in ("one", "other"):
        entropy = SeededEntropy(name)
        ends.append(Credentials(PrivateKey.generate(entropy), entropy, ("node",)))
    corridors = [Corridor(end.key.address) for end in ends]
    corridors[0].other, corridors[1].other = corridors[1], corridors[0]
    async with AsyncExitStack() as stack:
        transports: list[Endpoint] = []
        for end, corridor in zip(ends, corridors, strict=True):
            transport: Endpoint = (
                WebSocketTransport(end, Quiet())
                if kind == "ws"
                else WebRTCTransport(end, Quiet(), signalling=corridor, loopback=True)
            )
            transports.append(await stack.enter_async_context(transport))
        address = "ws://127.0.0.1:0" if kind == "ws" else WEBRTC_ADDRESS
        door = await transports[1].listen(address)
        took_ms = []
        began_s = time.process_time()
        for _ in range(links):
            dialled_s = time.perf_counter()
            link = await transports[0].dial(door.address, ends[1].key.address)
            took_ms.append((time.perf_counter() - dialled_s) * 1e3)
            link.close("measured")
            await asyncio.sleep(0.005)
        cpu_ms = (time.process_time() - began_s) * 1e3 / links
    return statistics.median(took_ms), cpu_ms


def verify_us(rounds: int = 2000) -> float:
    key = PrivateKey.generate(SeededEntropy("verify"))
    message = bytes(PAYLOAD_BYTES)
    signature = key.sign(message)
    began_s = time.process_time()
    for _ in range(rounds):
        assert verify(key.address, message, signature)
    return (time.process_time() - began_s) * 1e6 / rounds


def measure(nodes: int, messages: int, links: int) -> dict[str, Any]:
    result: dict[str, Any] = {"nodes": nodes, "messages": messages, "links": links}
    result["verify_us"] = verify_us()
    for kind in ("ws", "webrtc"):
        delivery_us = uvloop.run(deliver(kind, nodes, messages))
        connect_ms, connect_cpu_ms = uvloop.run(connect(kind, links))
        result[kind] = {
            "delivery_us": delivery_us,
            "over_verify": delivery_us / result["verify_us"],
            "connect_ms": connect_ms,
            "connect_cpu_ms": connect_cpu_ms,
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--links", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.nodes, options.messages, options.links)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{options.nodes} nodes, {options.messages} messages of {PAYLOAD_BYTES} bytes")
    print(f"a bare signature check: {result['verify_us']:.1f} us\n")
    print(f"{'':8}{'us/delivery':>12}{'checks':>8}{'connect ms':>12}{'its CPU ms':>12}")
    for kind in ("ws", "webrtc"):
        row = result[kind]
        print(
            f"{kind:8}{row['delivery_us']:12.1f}{row['over_verify']:8.2f}"
            f"{row['connect_ms']:12.1f}{row['connect_cpu_ms']:12.1f}"
        )


if __name__ == "__main__":
    main()
