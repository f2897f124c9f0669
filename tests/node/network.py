"""Nodes and a tracker on loopback, for tests of the API."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from shoal.config.network_file import tracker_contact
from shoal.config.sections import NodeSection, StreamSettings, TrackerSection
from shoal.identity import SeededEntropy
from shoal.node import Message, NetworkFile, Node, Subscription
from shoal_lab.testbed.child_process import free_port as free_port
from tests.runtime.world import left_over
from tests.transport.recorder import until

PATIENCE_S = 20.0


@asynccontextmanager
async def open_tracker(
    *, degree: int = 4, name: str = "tracker", listen: str = "ws://127.0.0.1:0"
) -> AsyncIterator[Node]:
    """A tracker whose key is made of its name."""
    network = NetworkFile(node=NodeSection(listen=(listen,)), tracker=TrackerSection(degree))
    async with Node.open(network, entropy=SeededEntropy(name)) as node:
        yield node


def network_of(tracker: Node, **settings: Any) -> NetworkFile:
    """The network file of a node that uses this tracker."""
    entry = tracker_contact(tracker.id, list(tracker.addresses))
    return NetworkFile(node=NodeSection(**settings), trackers=(entry,))


class Town:
    """A tracker and a few nodes in one event loop."""

    def __init__(self, tracker: Node, stack: AsyncExitStack) -> None:
        self.tracker = tracker
        self._stack = stack
        self.nodes: list[Node] = []

    async def move_in(self, count: int = 1, *, partitions: int = 1) -> list[Node]:
        """Some more nodes, in whose network every stream has so many partitions."""
        settings = (StreamSettings(partitions=partitions),)
        network = msgspec.structs.replace(network_of(self.tracker), streams=settings)
        nodes = [await self._stack.enter_async_context(Node.open(network)) for _ in range(count)]
        self.nodes += nodes
        return nodes

    def members(self, stream: str) -> list[bytes]:
        """Who is in a stream, as the tracker sees it."""
        assert self.tracker.tracker is not None
        state = {str(id): state for id, state in self.tracker.tracker.streams.items()}.get(stream)
        return [] if state is None else list(state.members)


def in_town(scenario: Any, *, degree: int = 4) -> None:
    """Run a scenario in a town; nothing may be left of it."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            tracker = await stack.enter_async_context(open_tracker(degree=degree))
            await scenario(Town(tracker, stack))

    run(main())


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, and look for what is left."""

    async def checked() -> None:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        before = left_over()
        await main
        await until(lambda: left_over() == before, 5)
        gc.collect()
        assert not complaints, complaints

    asyncio.run(checked())


async def take(messages: Subscription, count: int) -> list[Message]:
    """The next so many messages."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(messages) for _ in range(count)]


async def nothing_more(messages: Subscription, during_s: float = 0.1) -> None:
    """No message comes."""
    try:
        async with asyncio.timeout(during_s):
            message = await anext(messages)
    except TimeoutError:
        return
    raise AssertionError(f"one too many: {message}")


def contents(messages: Sequence[Message]) -> list[Any]:
    return [message.content for message in messages]
