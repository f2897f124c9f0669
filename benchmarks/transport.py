"""Relay throughput of one link, beside a plain picows echo in the same run.

    .venv/bin/python benchmarks/transport.py                 a table
    .venv/bin/python benchmarks/transport.py --json          one object, for machines
    ... --seconds 3 --payload 300 --loop asyncio             longer, other sizes, without uvloop

The relay is this process: it takes payloads in and sends each back. The load is another process,
which keeps so many payloads ("batch") under way. What is measured is the CPU time of the relay
alone: payloads per CPU-second, each of them received once and sent once.

    link         ws://, authenticated by MAC: what a node runs
    link, TLS    wss://
    echo         picows without any of this: one message, and one write, per payload
    echo joined  the same, with all echoes of one read joined into one write: the best that the
                 library can do, without authentication, framing or back-pressure

`ratio` is link / echo joined. `framing` is the cost of framing and MAC alone, written and read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import ssl
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import picows
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.identity import PrivateKey, SeededEntropy
from shoal.transport.framing import HEAD_ROOM_BYTES, FrameReader, FrameWriter
from shoal.transport.port import Credentials, Frame, Link
from shoal.transport.websocket import WebSocketTransport

BATCHES = (1, 8, 64)
WARM_UP_S = 0.3

RELAY, LOAD = "relay", "load"

Main = Callable[[], Coroutine[Any, Any, Any]]


def credentials(name: str) -> Credentials:
    entropy = SeededEntropy(name)
    return Credentials(PrivateKey.generate(entropy), entropy, ("node",))


class Handler:
    """Sends everything back, and counts."""

    def __init__(self) -> None:
        self.relayed = 0

    def link_ready(self, link: Link) -> None: ...

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        send = link.send
        for protocol, payload in frames:
            send(protocol, payload)
        self.relayed += len(frames)

    def send_queue_changed(self, link: Link, *, high: bool) -> None: ...

    def frame_rejected(self, link: Link, reason: str) -> None:
        raise AssertionError(reason)

    def link_lost(self, link: Link, reason: str) -> None: ...

    def handshake_failed(self, address: str, reason: str) -> None:
        raise AssertionError(reason)


class Echo(picows.WSListener):
    """A plain server."""

    def __init__(self, counter: Handler, *, joined: bool) -> None:
        self.counter = counter
        self.joined = joined
        self.waiting: list[bytes] = []

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type is not picows.WSMsgType.BINARY:
            transport.disconnect()
            return
        self.counter.relayed += 1
        if not self.joined:
            transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_bytes())
            return
        payload = frame.get_payload_as_bytes()
        size = len(payload)
        header = (
            struct.pack(">BB", 0x82, size) if size < 126 else struct.pack(">BBH", 0x82, 126, size)
        )
        self.waiting += (header, payload)
        if frame.last_in_buffer:
            transport.underlying_transport.write(b"".join(self.waiting))
            self.waiting.clear()


class EchoLoad(picows.WSListener):
    """A plain client that answers each echo with the next payload."""

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type is picows.WSMsgType.BINARY:
            transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_bytes())


async def load(address: str, payload: int, batch: int, *, plain: bool) -> None:
    """The other process: begins with a batch, and returns whatever comes; ends by being killed."""
    if plain:
        transport, _ = await picows.ws_connect(EchoLoad, address)
        for _ in range(batch):
            transport.send(picows.WSMsgType.BINARY, bytes(payload))
    else:
        node = WebSocketTransport(credentials(LOAD), Handler())
        link = await node.dial(address, credentials(RELAY).key.address)
        for _ in range(batch):
            link.send(1, bytes(payload))
    await asyncio.Event().wait()


def run_load(loop: str, *arguments: Any, **settings: Any) -> None:
    runner(loop)(load(*arguments, **settings))


def runner(loop: str) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return uvloop.run if loop == "uvloop" else asyncio.run


async def measure(
    options: argparse.Namespace, counter: Handler, address: str, batch: int, *, plain: bool
) -> float:
    """Payloads per CPU-second of this process, while another one keeps it busy."""
    process = multiprocessing.get_context("spawn").Process(
        target=run_load,
        args=(options.loop, address, options.payload, batch),
        kwargs={"plain": plain},
        daemon=True,
    )
    process.start()
    try:
        while not counter.relayed:
            await asyncio.sleep(0.01)
        await asyncio.sleep(WARM_UP_S)
        relayed, cpu_s = counter.relayed, time.process_time()
        await asyncio.sleep(options.seconds)
        return (counter.relayed - relayed) / (time.process_time() - cpu_s)
    finally:
        process.kill()
        process.join()


async def measure_link(
    options: argparse.Namespace, batch: int, tls: ssl.SSLContext | None
) -> float:
    handler = Handler()
    async with WebSocketTransport(credentials(RELAY), handler, tls=tls) as node:
        door = await node.listen(f"{'wss' if tls else 'ws'}://127.0.0.1:0")
        return await measure(options, handler, door.address, batch, plain=False)


async def measure_echo(options: argparse.Namespace, batch: int, *, joined: bool) -> float:
    counter = Handler()
    server = await picows.ws_create_server(
        lambda request: Echo(counter, joined=joined), "127.0.0.1", 0
    )
    address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        return await measure(options, counter, address, batch, plain=True)
    finally:
        server.close()


def measure_framing(payload: int, batch: int, key: bytes | None) -> dict[str, float]:
    """Microseconds of CPU per payload; the best of several rounds, as others share the machine."""
    body, rounds = bytes(payload), 50
    write_ns = read_ns = float("inf")
    for _ in range(40):
        writer, reader = FrameWriter(key), FrameReader(key, payload)
        started_ns = time.process_time_ns()
        messages = []
        for _ in range(rounds):
            for _ in range(batch):
                writer.add(1, body)
            messages.append(writer.next_message())
        write_ns = min(write_ns, time.process_time_ns() - started_ns)
        received = [bytes(message[HEAD_ROOM_BYTES:]) for message in messages if message]
        started_ns = time.process_time_ns()
        for message in received:
            reader.read(message)
        read_ns = min(read_ns, time.process_time_ns() - started_ns)
    per_payload = 1000 * rounds * batch
    return {"write_us": write_ns / per_payload, "read_us": read_ns / per_payload}


def self_signed() -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pem")
        file.write_bytes(private + certificate.public_bytes(pem))
        context.load_cert_chain(file)
    return context


async def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    tls = self_signed()
    kinds: dict[str, Callable[[int], Awaitable[float]]] = {
        "link": lambda batch: measure_link(options, batch, None),
        "link_tls": lambda batch: measure_link(options, batch, tls),
        "echo": lambda batch: measure_echo(options, batch, joined=False),
        "echo_joined": lambda batch: measure_echo(options, batch, joined=True),
    }
    rows = []
    for batch in BATCHES:
        row: dict[str, Any] = {"batch": batch}
        for kind, measured in kinds.items():
            row[kind] = round(await measured(batch))
        row["ratio"] = round(row["link"] / row["echo_joined"], 3)
        rows.append(row)
    return {
        "payload_bytes": options.payload,
        "loop": options.loop,
        "unit": "payloads per CPU-second of the relay",
        "relay": rows,
        "framing": [
            {"batch": batch, "mac": key is not None, **measure_framing(options.payload, batch, key)}
            for key in (bytes(32), None)
            for batch in (1, 8, 16, 64)
        ],
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['payload_bytes']} bytes, {result['loop']}; {result['unit']}")
    print("batch      link  link, TLS       echo  echo joined  ratio")
    for row in result["relay"]:
        print(
            f"{row['batch']:5} {row['link']:9,} {row['link_tls']:10,} {row['echo']:10,}"
            f" {row['echo_joined']:12,} {row['ratio']:6.2f}"
        )
    print("framing, microseconds per payload")
    for row in result["framing"]:
        name = "MAC" if row["mac"] else "none"
        total = row["write_us"] + row["read_us"]
        print(
            f"{row['batch']:5} {name:>5}  write {row['write_us']:.2f}"
            f"  read {row['read_us']:.2f}  both {total:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--payload", type=int, default=300, help="bytes")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = runner(options.loop)(measure_all(options))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
