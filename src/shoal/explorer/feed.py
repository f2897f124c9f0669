"""The live feed: one line of JSON a moment, the same for everybody who looks.

Nodes are observed only while somebody looks: then a record costs them a few microseconds, and
otherwise nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial

import msgspec

from shoal.base.ids import NodeId
from shoal.explorer.batches import Batches
from shoal.explorer.seen import SeenNode, SeenNodes
from shoal.kernel.records import Record
from shoal.runtime.host import Observer

BEAT_S = 0.25
QUIET_BEATS = 20  # a line comes at least so often, so that a dead connection is noticed
WAITING_MAX = 16  # lines that wait for a slow reader; then the oldest are lost
READERS_MAX = 64  # pages that are open at once

_encode = msgspec.json.Encoder().encode


class Reader:
    """One page that looks."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._wake = asyncio.Event()
        self._over = False

    def push(self, line: bytes) -> None:
        self._waiting.append(line)
        self._wake.set()

    def end(self) -> None:
        self._over = True
        self._wake.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """As they come, until the end."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._over:
                return
            self._wake.clear()
            await self._wake.wait()


class Feed:
    """Observes nodes, and tells all readers."""

    def __init__(self, nodes: SeenNodes) -> None:
        self._nodes = nodes
        self._batches = Batches()
        self._readers: dict[Reader, None] = {}
        self._observers: dict[NodeId, Observer] = {}
        self._beating: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether nobody else can look."""
        return len(self._readers) >= READERS_MAX

    def begin(self, reader: Reader) -> None:
        """Somebody looks."""
        self._readers[reader] = None
        if self._beating is None:
            for node in self._nodes:
                self._observe(node)
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    def end(self, reader: Reader) -> None:
        """Somebody looks no more; the last one takes the observers along."""
        self._readers.pop(reader, None)
        if not self._readers and self._beating is not None:
            self._beating.cancel()
            self._beating = None
            for node in self._nodes:
                self.lost(node)
            self._batches = Batches()

    def came(self, node: SeenNode) -> None:
        """One more node is to be seen."""
        if self._beating is not None:
            self._observe(node)

    def lost(self, node: SeenNode) -> None:
        """A node is seen no more."""
        observer = self._observers.pop(node.id, None)
        if observer is not None and observer in node.host.observers:
            node.host.observers.remove(observer)

    def close(self) -> None:
        """Let nobody wait for a feed that is gone."""
        for reader in list(self._readers):
            reader.end()
            self.end(reader)

    def _observe(self, node: SeenNode) -> None:
        if node.id not in self._observers:
            observer = partial(self._seen, node.id)
            self._observers[node.id] = observer
            node.host.observers.append(observer)

    def _seen(self, node: NodeId, now_ns: int, record: Record) -> None:
        self._batches.observe(node, record)

    async def _beat(self) -> None:
        quiet = 0
        while True:
            await asyncio.sleep(BEAT_S)
            now_ns = next((node.host.now_ns() for node in self._nodes), 0)
            batch = self._batches.take(now_ns)
            quiet = quiet + 1 if batch.empty else 0
            if quiet and quiet < QUIET_BEATS:
                continue
            quiet = 0
            line = _encode(batch) + b"\n"
            for reader in self._readers:
                reader.push(line)
