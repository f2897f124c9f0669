"""A small network in one process, with an explorer to look at it: what the browser tests open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from shoal.base.ids import show_node_id
from shoal.base.units import MS_NS
from shoal.config.sections import DhtSection, PeerEntry, SearchSection, TrackerSection
from shoal.explorer import ExplorerRoutes, SeenNode
from shoal.gateway import Gateway
from shoal.identity import SeededEntropy
from shoal.node import ANYONE, NetworkFile, Node
from shoal.protocols.search.config import SearchConfig

REGIONS = ("eu-north-1", "eu-west-1", "us-east-1", "us-west-2", "ap-northeast-1", "sa-east-1")
MEMBERS = 12
PUBLISH_S = 0.4
LOOK_S = 0.05
START_S = 60.0
# Nodes of one machine need not wait as long for each other as those of the world.
FAST = partial(SearchConfig, beat_ns=100 * MS_NS, pings_missed_max=20, answer_ns=500 * MS_NS)
STREAM = "/city/vehicles"
TOPIC = "news"
EVENTS = 12
HOSTILE = "<img src=x onerror=window.wasRun=1>"
TITLES = ("Air in Kallio", "Air in Sörnäinen", "Noise in Töölö", f"hostile {HOSTILE}")


class ExplorerTown:
    """Nodes that publish now and then; and the address of their explorer."""

    def __init__(self, results: Path, members: int) -> None:
        self.address = ""
        self.stream = ""
        self._results = results
        self._members = members
        self._stack = AsyncExitStack()
        self.nodes: list[Node] = []
        self._seen: dict[bytes, SeenNode] = {}
        self._invited = threading.Event()

    async def open(self) -> None:
        """Everything, ready to be looked at."""
        first = await self._open_first()
        self._entry = PeerEntry(show_node_id(first.id), first.addresses)
        for number in range(self._members):
            await self._open_member(self._entry, number)
        self.routes = ExplorerRoutes(self._seen.values(), self._results)
        self._stack.callback(self.routes.close)
        self.gateway = Gateway(first.host, first.tracker, extras=[self.routes])
        self._stack.push_async_callback(self.gateway.close)
        self.address = await self.gateway.open("127.0.0.1:0")
        if self._members:
            await self._fill()

    async def run(self, stopped: asyncio.Event) -> None:
        """Publish until told to stop; whoever is invited comes and goes."""
        streams = [await node.open_stream(self.stream) for node in self.nodes[1:]]
        number = 0
        while not stopped.is_set():
            if streams:
                await streams[number % len(streams)].publish({"number": number})
            number += 1
            if self._invited.is_set():
                self._invited.clear()
                async with Node.open(NetworkFile(trackers=(self._entry,))) as visitor:
                    await visitor.join(self.stream)
            try:
                async with asyncio.timeout(PUBLISH_S):
                    await stopped.wait()
            except TimeoutError:
                continue

    def invite(self) -> None:
        """Have a node join the stream, and leave it."""
        self._invited.set()

    async def close(self) -> None:
        await self._stack.aclose()

    async def _open_first(self) -> Node:
        """The tracker, whom all others meet; with nobody to meet it takes part in nothing."""
        if not self._members:
            return await self._opened(NetworkFile(), "alone", "")
        network = NetworkFile(
            tracker=TrackerSection(4),
            dht=DhtSection(),
            search=SearchSection(announce=False),
        )
        return await self._opened(network, "first", "eu-central-1")

    async def _open_member(self, entry: PeerEntry, number: int) -> None:
        network = NetworkFile(
            trackers=(entry,),
            dht=DhtSection(bootstrap=(entry,)),
            search=SearchSection(bootstrap=(entry,), announce=False),
        )
        node = await self._opened(network, f"member {number}", REGIONS[number % len(REGIONS)])
        await node.measure.size()  # one after the other: those who come at once wait for each other

    async def _opened(self, network: NetworkFile, name: str, region: str) -> Node:
        opening = Node.open(network, entropy=SeededEntropy(name))
        node = await self._stack.enter_async_context(opening)
        self.nodes.append(node)
        search = None if network.search is None else node.search
        self._seen[node.id] = SeenNode(node.host, region=region, search=search)
        return node

    async def _fill(self) -> None:
        """A stream that all members are in, a topic with events, and documents."""
        owner = self.nodes[1]
        self.stream = (await owner.create_stream(STREAM)).id
        await asyncio.gather(*[node.join(self.stream) for node in self.nodes[1:]])
        topic = await owner.create_topic(TOPIC, publishers=ANYONE)
        others = [await node.topic(topic.cid) for node in self.nodes[2:5]]
        for number in range(EVENTS):
            source = (topic, *others)[number % 4]
            await source.publish(f"event {number} {HOSTILE}".encode())
            await asyncio.sleep(LOOK_S)  # the others see it, and follow it
        for number, title in enumerate(TITLES):
            node = self.nodes[1 + number]
            await node.put({"title": title, "pm25": 3.0 + number}, name=f"document-{number}")


@contextmanager
def explorer_town(results: Path, members: int = MEMBERS) -> Iterator[ExplorerTown]:
    """A town in a thread of its own: tests wait for a browser, and it must go on meanwhile."""
    ready = threading.Event()
    failed: list[BaseException] = []
    town = ExplorerTown(results, members)
    loop: asyncio.AbstractEventLoop | None = None
    stopped = asyncio.Event()

    async def main() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(START_S):
                await town.open()
            ready.set()
            await town.run(stopped)
        finally:
            await town.close()

    def work() -> None:
        try:
            with patch("shoal.node.search.client.SearchConfig", FAST):
                asyncio.run(main())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work, name="explorer-town")
    thread.start()
    try:
        assert ready.wait(2 * START_S)
        if failed:
            raise failed[0]
        yield town
    finally:
        if loop is not None and thread.is_alive():
            loop.call_soon_threadsafe(stopped.set)
        thread.join(30)
    assert not failed, failed
