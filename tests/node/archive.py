"""A town whose streams are kept: storage nodes on loopback, for tests of history."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from shoal.config.network_file import tracker_contact
from shoal.config.sections import (
    NodeSection,
    PeerEntry,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import NetworkFile, Node, Stream
from tests.node.network import Town, run
from tests.transport.recorder import until

OWNER = PrivateKey.generate(SeededEntropy("owner"))
STREAM = f"0x{OWNER.address.hex()}/x"
NOWHERE = "ws://127.0.0.1:9"  # where nobody listens: the tracker knows better


class Archive(Town):
    """A tracker, storage nodes that keep STREAM, and whoever moves in."""

    def __init__(self, tracker: Node, stack: AsyncExitStack, partitions: int) -> None:
        super().__init__(tracker, stack)
        self.storage: list[Node] = []
        self.partitions = partitions

    def network(self, **settings: Any) -> NetworkFile:
        """The network file of a node in this town."""
        entry = tracker_contact(self.tracker.id, list(self.tracker.addresses))
        return NetworkFile(
            node=NodeSection(),
            trackers=(entry,),
            storage_nodes=self.tracker.network.storage_nodes,
            streams=self.tracker.network.streams,
            **settings,
        )

    async def open(self, **settings: Any) -> Node:
        """One more node."""
        node = await self._stack.enter_async_context(Node.open(self.network(**settings)))
        self.nodes.append(node)
        return node

    async def publisher(self) -> Stream:
        """A node that publishes, and is in the stream."""
        stream = await (await self.open()).open_stream(STREAM)
        await stream._node.join(STREAM)
        return stream

    async def subscriber(self) -> Stream:
        """A node that is not in the stream yet."""
        return await (await self.open()).open_stream(STREAM)

    async def kept(self, count: int, partition: int = 0) -> None:
        """Wait until every storage node has so many messages."""
        for node in self.storage:
            await until(lambda n=node: kept(n, partition) >= count, 20)  # type: ignore[misc]


def kept(node: Node, partition: int = 0) -> int:
    """How many messages of a partition a storage node has."""
    assert node.storage is not None
    store = node.storage.store
    stream = next(iter(node.storage.streams))
    return store.heads(stream, partition)[store.log].last


def in_archive(scenario: Any, *, storage: int = 1, partitions: int = 1) -> None:
    """Run a scenario in a town with storage nodes; nothing may be left of it."""

    async def main() -> None:
        names = [f"storage {number}" for number in range(storage)]
        ids = [PrivateKey.generate(SeededEntropy(name)).address for name in names]
        shown = [f"0x{id.hex()}" for id in ids]
        settings = StreamSettings(STREAM, partitions=partitions, storage=tuple(shown))
        public = NetworkFile(
            node=NodeSection(),
            tracker=TrackerSection(),
            storage_nodes=tuple(PeerEntry(id, (NOWHERE,)) for id in shown),
            streams=(settings,),
        )
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            tracker = await stack.enter_async_context(
                Node.open(public, entropy=SeededEntropy("tracker"))
            )
            town = Archive(tracker, stack, partitions)
            for name in names:
                section = StorageSection(str(folder / name))
                network = town.network(storage=section)
                node = Node.open(network, entropy=SeededEntropy(name))
                town.storage.append(await stack.enter_async_context(node))
            await until(lambda: len(town.members(STREAM)) == storage, 20)
            await scenario(town)
        # Steps of retention run in the loop's own threads, which stay for the next ones.
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main())
