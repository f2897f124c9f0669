"""Relay throughput of one node, beside a plain picows echo in the same run.

    .venv/bin/python benchmarks/relay.py                     a table
    .venv/bin/python benchmarks/relay.py --json              one object, for machines
    ... --seconds 5 --repeat 5 --sinks 1 --window 8          longer, other shapes

The relay is this process: a node as `shoal serve` runs it, in one stream, over loopback WebSockets.
The load is another process: a tracker that names its neighbours, one neighbour that publishes, and
`sinks` neighbours that count. At most `window` messages are under way. What is measured is the CPU
time of the relay alone: messages per CPU-second, each of them received once, checked, and sent to
every sink.

    verified      signatures checked: what a node does
    unverified    every check answers yes at once: all that is not the check
    echo          picows without any of this, messages of the same size: one read, one write each
    echo joined   the same, with all echoes of one read joined into one write

The ratios are to `echo joined`, and every round measures all four one after the other; the table
has the medians, and the range.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from random import Random
from statistics import median
from typing import Any
from unittest import mock

import msgspec
import picows
import uvloop

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.message_body import BINARY
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.messages import Flood, Instruction, Join, Open, Ping, Pong, Status
from shoal.protocols.streams.signed_message import Publisher
from shoal.protocols.streams.wire import StreamsCodec
from shoal.runtime import RuntimeHost
from shoal.transport.port import Credentials, Frame, Link
from shoal.transport.websocket import WebSocketTransport

STREAM = StreamId("0x0/benchmark")
ANY_PORT = "ws://127.0.0.1:0"
WARM_UP_S = 0.3
READY_S_MAX = 30.0
MADE_PER_S = 25_000  # messages signed ahead, so that the load is not what limits
CODEC = StreamsCodec()
FLOOD_TAG = 1  # where the number of a message stands in its bytes

SPAWN = multiprocessing.get_context("spawn")


class Spread(msgspec.Struct, frozen=True):
    """Messages per CPU-second over all rounds."""

    median: float
    min: float
    max: float
    us_per_message: float
    ratio: float
    """To echo joined, round by round."""


def credentials(name: str) -> Credentials:
    entropy = SeededEntropy(name)
    return Credentials(PrivateKey.generate(entropy), entropy, ("node",))


# The load


class Actor:
    """A handler that speaks just enough of the protocol to be somebody's neighbour."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.counted = 0
        self.progress: Callable[[], None] = lambda: None

    def link_ready(self, link: Link) -> None:
        self.link = link

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        for _, payload in frames:
            if payload[FLOOD_TAG] == FLOOD_TAG:
                self.counted += 1
            else:
                self.answer(link, CODEC.decode(payload))
        self.progress()

    def answer(self, link: Link, message: Any) -> None:
        if isinstance(message, Open) and not message.answered:
            say(link, Open(message.stream, True))
        elif isinstance(message, Ping):
            say(link, Pong(message.nonce))

    def send_queue_changed(self, link: Link, *, high: bool) -> None: ...

    def frame_rejected(self, link: Link, reason: str) -> None:
        raise AssertionError(reason)

    def link_lost(self, link: Link, reason: str) -> None:
        self.link = None

    def handshake_failed(self, address: str, reason: str) -> None:
        raise AssertionError(reason)


class TrackerActor(Actor):
    """Gives everybody who joins the same neighbours."""

    def __init__(self, neighbours: tuple[Contact, ...]) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.settled = False

    def answer(self, link: Link, message: Any) -> None:
        if isinstance(message, Join):
            say(link, Instruction(message.stream, 1, 1, self.neighbours))
        elif isinstance(message, Status):
            self.settled = len(message.neighbours) == len(self.neighbours)


def say(link: Link, message: Any) -> None:
    link.send(CODEC.number, CODEC.encode(message))


class Messages:
    """What the source publishes, signed ahead of time."""

    def __init__(self, payload: int, made: int, *, signed: bool) -> None:
        key = credentials("source").key
        sign: Callable[[bytes], bytes] = key.sign if signed else lambda body: bytes(65)
        self._publisher = Publisher(key.address, "1", sign)
        self._content = bytes(payload)
        self._made = [self._make() for _ in range(made)]
        self._made.reverse()

    def next(self) -> bytes:
        return self._made.pop() if self._made else self._make()

    def _make(self) -> bytes:
        now_ns = time.time_ns()
        message = self._publisher.make(STREAM, 0, BINARY, self._content, now_ns)
        return CODEC.encode(Flood(0, 0, now_ns // 1000, message.signed))


async def load(parent: Connection, arrived: Any, options: argparse.Namespace, signed: bool) -> None:
    """The other process: says where its tracker is, and counts; ends by being killed."""
    made = int((options.seconds + WARM_UP_S) * MADE_PER_S)
    messages = Messages(options.payload, made, signed=signed)
    source, *sinks = actors = [Actor() for _ in range(1 + options.sinks)]
    contacts = []
    for number, actor in enumerate(actors):
        contacts.append(await listen(f"sink {number}" if number else "source", actor))
    tracker = TrackerActor(tuple(contacts))
    where = await listen("tracker", tracker)
    sent = 0

    def publish() -> None:
        nonlocal sent
        arrived.value = min(sink.counted for sink in sinks)
        link = source.link
        if link is None or not tracker.settled:
            return  # what is sent before all are neighbours does not reach all
        for _ in range(options.window - (sent - arrived.value)):
            link.send(CODEC.number, messages.next())
            sent += 1

    for actor in (tracker, *actors):
        actor.progress = publish
    parent.send(where)
    await asyncio.Event().wait()


async def listen(name: str, actor: Actor) -> Contact:
    mine = credentials(name)
    door = await WebSocketTransport(mine, actor).listen(ANY_PORT)
    return Contact(mine.key.address, (door.address,))


class EchoLoad(picows.WSListener):
    """A plain client that answers each echo with the next message."""

    def __init__(self, arrived: Any) -> None:
        self.arrived = arrived

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type is picows.WSMsgType.BINARY:
            self.arrived.value += 1
            transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_bytes())


async def load_echo(address: str, arrived: Any, size: int, window: int) -> None:
    """The other process, for an echo."""
    transport, _ = await picows.ws_connect(lambda: EchoLoad(arrived), address)
    for _ in range(window):
        transport.send(picows.WSMsgType.BINARY, bytes(size))
    await asyncio.Event().wait()


def run(main: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    uvloop.run(until_orphaned(main(*arguments)))


async def until_orphaned(main: Coroutine[Any, Any, None]) -> None:
    """A load whose relay is gone, however it went, goes too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    asyncio.get_running_loop().add_reader(parent.sentinel, os._exit, 1)
    await main


@contextmanager
def process(*arguments: Any) -> Iterator[None]:
    """Another process, while this lasts."""
    child = SPAWN.Process(target=run, args=arguments, daemon=True)
    child.start()
    try:
        yield
    finally:
        child.kill()
        child.join()


# The relay


async def measure_relay(options: argparse.Namespace, *, signed: bool) -> float:
    """Messages per CPU-second of a node."""
    parent, child = SPAWN.Pipe()
    arrived = SPAWN.RawValue("q", 0)
    mine = credentials("relay")
    with process(load, child, arrived, options, signed), checks(real=signed):
        tracker = await asyncio.to_thread(receive, parent)
        node = mine.key.address
        machine = StreamNode(node, TrackerRing([tracker]), mine.key.sign, "1", Random(1))
        host = RuntimeHost(node, [machine], [CODEC], rng=Random(2))
        await host.open([WebSocketTransport(mine, host)], [ANY_PORT])
        try:
            host.command(machine, JoinStream(STREAM, subscribe=False))
            return await rate(arrived, options.seconds)
        finally:
            await host.stop()


def checks(*, real: bool) -> AbstractContextManager[object]:
    """Signature checks as they are, or a yes to everything: here, and nowhere else."""
    if real:
        return nullcontext()
    return mock.patch("shoal.runtime.workers.verify_signed", yes)


def yes(signer: NodeId, signed: bytes) -> bool:
    return True


def receive(parent: Connection) -> Contact:
    if not parent.poll(READY_S_MAX):
        raise TimeoutError("the load did not start")
    contact: Contact = parent.recv()
    return contact


class Echo(picows.WSListener):
    """A plain server."""

    def __init__(self, *, joined: bool) -> None:
        self.joined = joined
        self.waiting: list[bytes] = []

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type is not picows.WSMsgType.BINARY:
            transport.disconnect()
            return
        payload = frame.get_payload_as_bytes()
        if not self.joined:
            transport.send(picows.WSMsgType.BINARY, payload)
            return
        size = len(payload)
        short = size < 126
        header = struct.pack(">BB", 0x82, size) if short else struct.pack(">BBH", 0x82, 126, size)
        self.waiting += (header, payload)
        if frame.last_in_buffer:
            transport.underlying_transport.write(b"".join(self.waiting))
            self.waiting.clear()


async def measure_echo(options: argparse.Namespace, *, joined: bool) -> float:
    """Messages per CPU-second of a plain server, of the size that a node gets."""
    arrived = SPAWN.RawValue("q", 0)
    server = await picows.ws_create_server(lambda request: Echo(joined=joined), "127.0.0.1", 0)
    address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    size = message_bytes(options.payload)
    try:
        with process(load_echo, address, arrived, size, options.window):
            return await rate(arrived, options.seconds)
    finally:
        server.close()


def message_bytes(payload: int) -> int:
    """A message as it goes over a link, without the framing."""
    return len(Messages(payload, 0, signed=False).next())


async def rate(arrived: Any, seconds: float) -> float:
    """Messages that arrived at their ends, per CPU-second of this process."""
    async with asyncio.timeout(READY_S_MAX):
        while not arrived.value:
            await asyncio.sleep(0.01)
    await asyncio.sleep(WARM_UP_S)
    before, cpu_s = arrived.value, time.process_time()
    await asyncio.sleep(seconds)
    return float((arrived.value - before) / (time.process_time() - cpu_s))


# All


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every kind in every round."""
    kinds: dict[str, Callable[[], Coroutine[Any, Any, float]]] = {
        "verified": lambda: measure_relay(options, signed=True),
        "unverified": lambda: measure_relay(options, signed=False),
        "echo": lambda: measure_echo(options, joined=False),
        "echo_joined": lambda: measure_echo(options, joined=True),
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(options.repeat):
        for kind, measured in kinds.items():
            print(f"{kind}, round {number + 1} of {options.repeat} ...", file=sys.stderr)
            rates[kind].append(await measured())
    return {
        "benchmark": "relay",
        "unit": "messages per CPU-second of the relay",
        "payload_bytes": options.payload,
        "message_bytes": message_bytes(options.payload),
        "sinks": options.sinks,
        "window": options.window,
        "rounds": options.repeat,
        **{kind: spread_of(values, rates["echo_joined"]) for kind, values in rates.items()},
    }


def spread_of(rates: list[float], echoes: list[float]) -> Spread:
    middle = median(rates)
    ratio = median(rate / echo for rate, echo in zip(rates, echoes, strict=True))
    return Spread(middle, min(rates), max(rates), 1e6 / middle, ratio)


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    print(
        f"{result['payload_bytes']} bytes of content in messages of {result['message_bytes']}, one"
        f" source, {result['sinks']} sinks, at most {result['window']} under way"
    )
    print("              messages/CPU-s (range)                 microseconds   ratio")
    for kind in ("verified", "unverified", "echo", "echo_joined"):
        spread: Spread = result[kind]
        extent = f"({spread.min:,.0f} to {spread.max:,.0f})"
        print(
            f"{kind.replace('_', ' '):12} {spread.median:15,.0f} {extent:<22}"
            f" {spread.us_per_message:13.2f} {spread.ratio:7.3f}"
        )


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each measurement")
    parser.add_argument("--payload", type=int, default=300, help="bytes")
    parser.add_argument("--sinks", type=int, default=3, help="neighbours that get the messages")
    parser.add_argument("--window", type=int, default=64, help="messages under way at once")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the echo has still something to say when its load is killed
    result = uvloop.run(measure(options))
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)


if __name__ == "__main__":
    main()
