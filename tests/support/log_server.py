"""The HTTP log of a store, served from a thread: what a storage node's gateway serves, alone.

Tests of readers need logs that are exactly so, and servers that die when they are told to.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from time import time_ns
from typing import Self

from aiohttp import web

from shoal.base.gateway_messages import UnheardNode
from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.gateway.endpoints.storage_log import Logs
from shoal.gateway.route_table import Table
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.message_body import JSON, Body, encode_body
from shoal.protocols.streams.history.log_entries import read_kept
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import DEFAULTS, StoreConfig
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import ReplicaRow

ALICE = PrivateKey.generate(SeededEntropy("alice"))
BOB = PrivateKey.generate(SeededEntropy("bob"))
STREAM = StreamId(f"{show_node_id(ALICE.address)}/city/vehicles")
START_MS = 1_767_225_600_000  # the first of January 2026


def signed(
    number: int,
    *,
    partition: int = 0,
    key: PrivateKey = ALICE,
    stream: StreamId = STREAM,
    content: bytes | None = None,
    content_type: int = JSON,
    forged: bool = False,
) -> VerifiedMessage:
    """A message that says its number, in that millisecond; signed by somebody else if forged."""
    id = MessageId(stream, partition, START_MS + number, 0, key.address, "c1")
    content = b'{"number":%d}' % number if content is None else content
    body = encode_body(Body(id, None, content_type, content))
    signature = (BOB if forged else key).sign(body)
    return VerifiedMessage(id, None, content_type, content, signature + body)


class LogServer:
    """A store and its log over HTTP, until `die`."""

    def __init__(
        self,
        folder: Path,
        *,
        config: StoreConfig = DEFAULTS,
        keeps: Callable[[StreamId], bool] | None = None,
        names: Callable[[StreamId], bool] | None = None,
    ) -> None:
        # The log's id is made of the folder's name: a checkpoint names it.
        self.store = Store(folder, SeededEntropy(folder.name), config)
        self.address = ""
        self.asked: list[str] = []
        """Paths and queries, in the order they came."""
        self.pages_left: int | None = None
        """After so many pages of rows it answers nobody any more."""
        self.unheard: list[UnheardNode] = []
        """Storage nodes of the stream that it cannot compare with."""
        self._keeps, self._names = keeps, names
        self._port = 0
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()
        self.store.close()

    def start(self) -> None:
        """Serve, on the same port as before."""
        ready = threading.Event()
        self.pages_left = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(20)

    def die(self) -> None:
        """Be gone: no answer, no connection; the store stays as it is."""
        self._stop()
        if self._thread is not None:
            self._thread.join(20)
            self._thread = None

    def append(self, messages: Iterable[VerifiedMessage], now_ns: int | None = None) -> None:
        """Store messages as if they had come in."""
        batch = list(messages)
        for begin in range(0, len(batch), 1000):
            self.store.append(batch[begin : begin + 1000], now_ns or time_ns())

    def follow(self, other: LogServer, *, upto: int = 2**60, stream: StreamId = STREAM) -> None:
        """Copy the own log of another one, as anti-entropy does."""
        log = other.store.log
        for partition, place in other.store.stream_heads(stream).items():
            held = self.store.heads(stream, partition).get(log)
            after = 0 if held is None else held.last
            while after < min(upto, place.logs[log].last):
                page = other.store.log_read(log, stream, partition, after, min(1000, upto - after))
                rows = [
                    ReplicaRow(r.seq, r.ingest_ns, r.id, read_kept(stream, r.signed).message)
                    for r in page.rows
                ]
                self.store.append_replica(log, stream, partition, rows, time_ns())
                after = page.through

    async def _serve(self, ready: threading.Event) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        logs = Logs(self.store, NodeId(bytes(20)), self._keeps, self._compare, names=self._names)
        app = web.Application(middlewares=[self._count])
        Table([logs]).add_to(app.router)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        self._port = runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self._port}"
        ready.set()
        await stopped.wait()
        await runner.cleanup()
        logs.close()
        self._stop = lambda: None

    async def _compare(self, stream: StreamId) -> list[UnheardNode]:
        return self.unheard

    @property
    def _count(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def count(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self.asked.append(f"{request.method} {request.path_qs}")
            if self.pages_left is not None:
                if request.path.endswith("/log") and self.pages_left > 0:
                    self.pages_left -= 1
                elif self.pages_left == 0 and request.transport is not None:
                    request.transport.abort()
            return await handler(request)

        return count


def servers_of(*servers: LogServer) -> str:
    """The option of that name."""
    return ",".join(server.address for server in servers)


def numbers(values: Sequence[str]) -> list[int]:
    """What messages say, in order."""
    return sorted(int(value.removeprefix('{"number":').removesuffix("}")) for value in values)
