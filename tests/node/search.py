"""Nodes of a search network, for tests of the API: whole ones on loopback, and a door without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from shoal.base.errors import SessionReplaced
from shoal.base.ids import Contact, NodeId, show_node_id
from shoal.base.units import MS_NS
from shoal.config.sections import NodeSection, PeerEntry, SearchSection
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import Hit, NetworkFile, Node
from shoal.node.search.client import NodeSearch, Token
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import Document, Life, sign_document
from tests.node.network import free_port, run

ALICE = PrivateKey.generate(SeededEntropy("alice"))
BOB = PrivateKey.generate(SeededEntropy("bob"))
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
CERTAIN = 1 - 1e-9  # everybody is asked: a new network does not know yet how large it is

# Nodes of one machine need not wait as long for each other as those of the world. On a busy one,
# whoever is silent for two seconds may still be there.
FAST = partial(SearchConfig, beat_ns=100 * MS_NS, pings_missed_max=20, answer_ns=500 * MS_NS)


def document(
    name: str = "kallio",
    content: dict[str, Any] | None = None,
    *,
    version: int = 1,
    life: Life = "durable",
    owner: PrivateKey = ALICE,
    deleted: bool = False,
) -> Document:
    """A signed document, or a deletion."""
    return sign_document(
        owner,
        name,
        None if deleted else content or {"title": name},
        version=version,
        life=life,
        expires_ms=NOW_MS + DAY_MS,
    )


class Door(NodeSearch):
    """Writes down what is said to a machine that is not there."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, Token | None]] = []
        self.taken_back: list[tuple[Any, Token | None]] = []
        self.remembered: dict[Token, None] = {}
        self.known: dict[NodeId, Contact] = {}
        self.listeners = []
        self.node = ALICE.address
        self.rng = Random(1)
        self.host = _Host(self)  # type: ignore[assignment]
        self.machine = None  # type: ignore[assignment]

    async def when_joined(self) -> None:
        await asyncio.sleep(0)

    async def say(self, command: Any, token: Token | None = None) -> None:
        self.said.append((command, token))

    async def say_last(self, command: Any, token: Token | None = None) -> None:
        self.taken_back.append((command, token))

    def remember(self, token: Token) -> None:
        self.remembered[token] = None

    def forget(self, token: Token) -> None:
        self.remembered.pop(token, None)

    def contact_of(self, node: NodeId) -> Contact | None:
        return self.known.get(node)

    def tell(self, event: Any) -> None:
        """As the machine would, to nobody in particular."""
        for listener in self.listeners:
            listener(event)


class _Host:
    """What is left of the host."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.check_clock: Any = None
        self.replaced = False
        """Whether another session of the key runs."""

    def now_ns(self) -> int:
        return (NOW_MS + 31 * DAY_MS) * 1_000_000  # the clock was ahead at the start

    def wall_ns(self) -> int:
        return NOW_MS * 1_000_000

    def demand_session(self) -> None:
        if self.replaced:
            raise SessionReplaced("a newer session runs")

    def dial_problem(self, peer: NodeId) -> str | None:
        return None

    async def wait_for_room(self, patience_ns: int) -> None:
        await asyncio.sleep(0)

    def command(self, machine: Any, command: Any, token: Any = None) -> None:
        self._door.taken_back.append((command, token))


class SearchTown:
    """Network files of nodes that know each other by name; the first is met by the others."""

    def __init__(self, folder: Path, first: str) -> None:
        self.folder = folder
        self.first = first
        key = PrivateKey.generate(SeededEntropy(first))  # as Node.open makes it
        address = f"ws://127.0.0.1:{free_port()}"
        self.entry = PeerEntry(show_node_id(key.address), (address,))

    def network(self, name: str, **settings: Any) -> NetworkFile:
        """The file of a node; settings are those of [search]."""
        listen = self.entry.addresses if name == self.first else ("ws://127.0.0.1:0",)
        settings.setdefault("bootstrap", (self.entry,))
        return NetworkFile(
            node=NodeSection(listen=listen),
            search=SearchSection(**settings),
            folder=str(self.folder),
        )

    @asynccontextmanager
    async def open(self, name: str, **settings: Any) -> AsyncIterator[Node]:
        """A running node that has its place, whose key is made of its name."""
        async with Node.open(self.network(name, **settings), entropy=SeededEntropy(name)) as node:
            await node.measure.size()
            yield node


def in_search_town(folder: Path, scenario: Any, *names: str) -> None:
    """Run a scenario among nodes; nothing may be left."""

    async def main() -> None:
        town = SearchTown(folder, names[0])
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(town.open(name)) for name in names]
            await scenario(*nodes)

    run(main())


async def found(node: Node, query: str, **settings: Any) -> list[Hit]:
    """What all nodes of a network have."""
    return [hit async for hit in node.search(query, confidence=CERTAIN, **settings)]


async def until_found(node: Node, query: str, count: int) -> list[Hit]:
    """Documents are on their way for a moment after they were put."""
    async with asyncio.timeout(30):
        while True:
            hits = await found(node, query, limit=count)
            if len(hits) >= count:
                return hits
