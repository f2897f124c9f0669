"""Nodes with topics on loopback, for tests of the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from shoal.base.ids import show_node_id
from shoal.config.sections import DhtSection, NodeSection, PeerEntry, TopicsSection
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import Event, NetworkFile, Node, Topic, TopicSubscription
from tests.node.network import free_port, run

PATIENCE_S = 60.0


class TopicTown:
    """Network files of nodes that know each other by name; the first ones are met by the others."""

    def __init__(self, folder: Path, *first: str) -> None:
        self.folder = folder
        self._bootstrap = {name: _entry(name) for name in first}

    def network(self, name: str, *, disk: bool = False, **topics: Any) -> NetworkFile:
        """The file of a node; with a disk, or settings of [topics], it has a folder."""
        entry = self._bootstrap.get(name)
        listen = ("ws://127.0.0.1:0",) if entry is None else entry.addresses
        section = TopicsSection(folder=f"topics-{name}", **topics) if disk or topics else None
        return NetworkFile(
            node=NodeSection(listen=listen),
            dht=DhtSection(tuple(self._bootstrap.values())),
            topics=section,
            folder=str(self.folder),
        )

    @asynccontextmanager
    async def open(self, name: str, **settings: Any) -> AsyncIterator[Node]:
        """A running node, whose key is made of its name."""
        async with Node.open(self.network(name, **settings), entropy=SeededEntropy(name)) as node:
            yield node


def in_town(folder: Path, scenario: Any, *names: str, **settings: Any) -> None:
    """Run a scenario among nodes, of which the first is met by the others; nothing may be left."""

    async def main() -> None:
        town = TopicTown(folder, names[0])
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(town.open(name, **settings)) for name in names]
            await scenario(*nodes)

    run(main())


def _entry(name: str) -> PeerEntry:
    key = PrivateKey.generate(SeededEntropy(name))  # as Node.open makes it
    return PeerEntry(show_node_id(key.address), (f"ws://127.0.0.1:{free_port()}",))


async def take(events: TopicSubscription, count: int) -> list[Event]:
    """The next so many events."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(events) for _ in range(count)]


def payloads(events: list[Event]) -> list[bytes]:
    return [event.payload for event in events]


def numbers(count: int, begin: int = 0) -> list[bytes]:
    """Contents that say which they are."""
    return [b"%d" % number for number in range(begin, begin + count)]


async def publish(topic: Topic, *contents: bytes) -> list[str]:
    """One after the other; what they are called."""
    return [(await topic.publish(content)).cid for content in contents]
