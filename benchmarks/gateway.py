"""Subscribers of one gateway on loopback: whether each gets every message, and what they cost.

    .venv/bin/python benchmarks/gateway.py                    10,000 by server-sent events, and
                                                              10,000 by WebSocket
    .venv/bin/python benchmarks/gateway.py --json             one object, for machines
    ... --subscribers 500 --messages 3                        fewer

The gateway is that of `shoal serve` in a process of its own; subscribers are bare sockets in two
more. `kib_each` is what the gateway's memory grew by for each subscriber; `first_s` and `last_s`
are the times from the publishing request to the first and the last subscriber that had all of the
messages; `cpu_us_each` is the gateway's CPU time for one message to one subscriber.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

STREAM = "0x" + "ab" * 20 + "/benchmark"
CLIENTS = 2
AT_ONCE = 200  # connections that are being made
PATIENCE_S = 300.0
NETWORK = """
[tracker]
[gateway]
requests_per_s = 1000000
burst = 1000000
"""
HEADS = {
    "events": f"GET /streams/{STREAM}/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "websocket": f"GET /ws/streams/{STREAM} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
}
READY = {"events": b": welcome\n\n", "websocket": b"\r\n\r\n"}
MARK = b'"content":"'  # once in each message


class Subscriber(asyncio.Protocol):
    """One connection; counts messages."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._text = b""
        self._count = -1  # not ready yet

    def data_received(self, data: bytes) -> None:
        text = self._text + data
        if self._count < 0:
            found = text.find(READY[self._crowd.kind])
            if found < 0:
                self._text = text
                return
            text, self._count = text[found:], 0
            self._crowd.ready += 1
        self._count += text.count(MARK)
        # Of the next mark a part may be here.
        self._text = text[-len(MARK) + 1 :]
        if self._count == self._crowd.messages:
            self._crowd.done.append(time.time())
            self._count += 1_000_000  # one more would show

    def connection_lost(self, error: Exception | None) -> None:
        self._crowd.lost += 1


class Crowd:
    """The subscribers of one process."""

    def __init__(self, kind: str, messages: int) -> None:
        self.kind = kind
        self.messages = messages
        self.ready = 0
        self.lost = 0
        self.done: list[float] = []

    async def gather(self, port: int, count: int, parent: Connection) -> None:
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)

        async def connect() -> asyncio.BaseTransport:
            async with room:
                transport, _ = await loop.create_connection(
                    lambda: Subscriber(self), "127.0.0.1", port
                )
                transport.write(HEADS[self.kind].encode())
                return transport

        transports = await asyncio.gather(*[connect() for _ in range(count)])
        await self._until(lambda: self.ready + self.lost == count)
        parent.send(self.ready)
        await self._until(lambda: len(self.done) + self.lost >= count)
        parent.send((len(self.done), min(self.done, default=0.0), max(self.done, default=0.0)))
        await asyncio.to_thread(parent.recv)
        for transport in transports:
            transport.close()

    async def _until(self, condition: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)


def client(kind: str, port: int, count: int, messages: int, parent: Connection) -> None:
    raise_limit()
    uvloop.run(Crowd(kind, messages).gather(port, count, parent))


def raise_limit() -> None:
    """A socket for each subscriber."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Server:
    """`shoal serve`, with a gateway."""

    def __init__(self, folder: Path) -> None:
        (folder / "shoal.toml").write_text(NETWORK)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", "serve"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=raise_limit,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.address = line.removeprefix("# gateway ").strip()

    def publish(self, text: str) -> None:
        url = f"{self.address}/streams/{STREAM}/messages"
        request = urllib.request.Request(url, text.encode(), {"Content-Type": "text/plain"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status == 201

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def measure(kind: str, subscribers: int, messages: int) -> dict[str, float]:
    """One crowd, at a gateway of its own."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            server.publish("first")  # whatever is made once is made now
            before_kib = server.memory_kib()
            port = int(server.address.rpartition(":")[2])
            crowds = []
            for at in range(CLIENTS):
                count = len(range(at, subscribers, CLIENTS))
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=client, args=(kind, port, count, messages, theirs))
                process.start()
                crowds.append((process, ours))
            ready = sum([pipe.recv() for _, pipe in crowds])
            grown_kib, cpu_s, begin = server.memory_kib() - before_kib, server.cpu_s(), time.time()
            for number in range(messages):
                server.publish(f"message {number}")
            results = [pipe.recv() for _, pipe in crowds]
            used_s = server.cpu_s() - cpu_s
            for process, pipe in crowds:
                pipe.send("enough")
                process.join()
        finally:
            server.close()
    complete = sum([count for count, _, _ in results])
    return {
        "subscribers": ready,
        "complete": complete,
        "lost": subscribers - complete,
        "kib_each": round(grown_kib / max(1, ready), 1),
        "first_s": round(min([first for _, first, _ in results]) - begin, 3),
        "last_s": round(max([last for _, _, last in results]) - begin, 3),
        "cpu_us_each": round(used_s * 1e6 / max(1, complete * messages), 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--subscribers", type=int, default=10_000)
    options.add_argument("--messages", type=int, default=3)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    rows = {kind: measure(kind, given.subscribers, given.messages) for kind in HEADS}
    if given.json:
        print(json.dumps({"messages": given.messages, **rows}))
        return
    print(f"{given.messages} messages to each of {given.subscribers} subscribers")
    names = list(next(iter(rows.values())))
    print(f"{'':<12}" + "".join([f"{name:>13}" for name in names]))
    for kind, row in rows.items():
        print(f"{kind:<12}" + "".join([f"{row[name]:>13}" for name in names]))


if __name__ == "__main__":
    main()
