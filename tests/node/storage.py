"""Storage nodes on loopback, for tests of the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.base.ids import StreamId, show_node_id
from shoal.config.sections import (
    NodeSection,
    PeerEntry,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import NetworkFile, Node
from tests.node.network import PATIENCE_S, free_port


class StorageTown:
    """Network files for a tracker, storage nodes by name, and others, that know each other."""

    def __init__(self, folder: Path, *names: str, stream: str = "*") -> None:
        self.folder = folder
        self.storage = {name: _entry(name) for name in names}
        self._tracker = _entry("tracker")
        ids = tuple(entry.id for entry in self.storage.values())
        self._streams = (StreamSettings(id=stream, storage=ids),)

    def network(self, name: str | None = None) -> NetworkFile:
        """The file of a storage node or the tracker, by name, or of anybody."""
        entries = {"tracker": self._tracker, **self.storage}
        listen = entries[name].addresses if name in entries else ("ws://127.0.0.1:0",)
        return NetworkFile(
            node=NodeSection(listen=listen),
            trackers=(self._tracker,),
            storage_nodes=tuple(self.storage.values()),
            streams=self._streams,
            tracker=TrackerSection() if name == "tracker" else None,
            storage=StorageSection(folder=f"store-{name}") if name in self.storage else None,
            folder=str(self.folder),
        )

    @asynccontextmanager
    async def open(self, name: str | None = None) -> AsyncIterator[Node]:
        """A running node."""
        entropy = None if name is None else SeededEntropy(name)
        async with Node.open(self.network(name), entropy=entropy) as node:
            yield node


def _entry(name: str) -> PeerEntry:
    key = PrivateKey.generate(SeededEntropy(name))  # as Node.open makes it
    return PeerEntry(show_node_id(key.address), (f"ws://127.0.0.1:{free_port()}",))


async def until_taken_in(keeper: Node, tracker: Node, stream: str, *others: Node) -> None:
    """Wait until a storage node is in a stream, and linked with those of the others who are."""
    id = StreamId(stream)

    def sends(sender: Node, receiver: Node) -> bool:
        assert sender._streams is not None
        joined = sender._streams.streams.get(id)
        return joined is not None and receiver.id in joined.channel.active

    def is_taken_in() -> bool:
        assert tracker.tracker is not None
        state = tracker.tracker.streams.get(id)
        if state is None or keeper.id not in state.members:
            return False
        there = [other for other in others if other.id in state.members]
        return all(sends(keeper, other) and sends(other, keeper) for other in there)

    async with asyncio.timeout(PATIENCE_S):
        while not is_taken_in():
            await asyncio.sleep(0.02)


async def until_stored(node: Node, count: int, patience_s: float = 20) -> None:
    """Wait until a storage node has so many messages."""
    assert node.storage is not None
    async with asyncio.timeout(patience_s):
        while node.storage.store.info().messages < count:
            await asyncio.sleep(0.02)
