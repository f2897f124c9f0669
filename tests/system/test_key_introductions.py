"""A private stream over sockets, and a reader that was granted by address alone, none of whose
neighbours may read: the tracker introduces it to the publisher, and nobody else to anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.access import Permission
from shoal.kernel.records import Record, Rejected
from shoal.node import Node
from shoal.protocols.streams.commands import FindKey
from shoal.registry.contract_registry import ContractRegistry
from tests.node.network import contents, run, take
from tests.node.private import PrivateTown, grant, make_stream

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

DEGREE = 3
RELAYS = tuple(f"relay {n}" for n in range(6))  # they may publish, until one may read
PATIENCE_S = 30.0


class Stage:
    """A tracker, a storage node, alice and six relays, all in her stream."""

    def __init__(
        self, town: PrivateTown, registry: ContractRegistry, stack: AsyncExitStack
    ) -> None:
        self.town = town
        self.registry = registry
        self.refused: list[tuple[NodeId, str]] = []
        """What the tracker has rejected, and of whom."""
        self.nodes: dict[str, Node] = {}
        self.stream = StreamId("")
        self._stack = stack
        self._tracker = AsyncExitStack()

    async def start(self) -> None:
        await self.start_tracker()
        await self.open("storage")
        self.stream = await make_stream(self.registry, "/private", DEGREE)
        publish = Permission.PUBLISH
        await grant(self.registry, self.stream, *RELAYS, kinds=publish, known=False)
        for name in ("alice", *RELAYS):
            await self.open(name)
        await self.until_known()
        for name in (*RELAYS, "alice"):  # she comes last: few have ever been her neighbours
            await self.nodes[name]._memberships.stay_in(self.stream)
        await self.until_linked()

    async def start_tracker(self) -> None:
        node = await self._tracker.enter_async_context(self.town.open("tracker"))
        self.nodes["tracker"] = node
        node.host.observers.append(self._saw)

    async def stop_tracker(self) -> None:
        await self._tracker.aclose()

    async def open(self, name: str) -> Node:
        node = self.nodes[name] = await self._stack.enter_async_context(self.town.open(name))
        return node

    def _saw(self, now_ns: int, record: Record) -> None:
        if isinstance(record, Rejected):
            self.refused.append((record.peer, record.reason))

    def neighbours(self, node: Node) -> tuple[NodeId, ...]:
        assert node._streams is not None
        return tuple(node._streams.streams[self.stream].channel.active)

    async def until_linked(self) -> None:
        """Everybody has as many neighbours as it is to have."""
        members = [self.nodes[name] for name in ("storage", "alice", *RELAYS)]
        async with asyncio.timeout(PATIENCE_S):
            while any(len(self.neighbours(node)) != DEGREE for node in members):
                await asyncio.sleep(0.02)

    async def until_known(self) -> None:
        """Every node has heard of the registry's last change."""
        async with asyncio.timeout(PATIENCE_S):
            for node in self.nodes.values():
                assert node.registry is not None
                while node.registry.registry.seen.number < self.registry.seen.number:
                    await asyncio.sleep(0.01)

    async def choose_reader(self) -> Node:
        """Somebody who is no neighbour of alice's is permitted to read, by its address."""
        alice = self.nodes["alice"]
        far = [name for name in RELAYS if self.nodes[name].id not in self.neighbours(alice)]
        name = min(far, key=lambda name: alice.id in self.nodes[name].host.connections)
        async with asyncio.timeout(PATIENCE_S):
            while alice.id in self.nodes[name].host.connections:
                await asyncio.sleep(0.1)  # a link of the time before is let go after ten seconds
        await grant(self.registry, self.stream, name, known=False)
        await self.until_known()
        return self.nodes[name]


@asynccontextmanager
async def a_stage(folder: Path, called: Collection[str] = ()) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        town = PrivateTown(folder, called)
        registry = await stack.enter_async_context(town.registry())
        stage = Stage(town, registry, stack)
        stack.push_async_callback(stage.stop_tracker)
        await stage.start()
        yield stage
    # Its threads read keystores and wrap keys; nothing else may be left.
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize(
    "called", [(), ("alice",), ("alice", *RELAYS)], ids=["dialled", "publisher-called", "called"]
)
def test_the_publisher_hands_its_key_to_a_reader_far_away(
    tmp_path: Path, called: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with a_stage(tmp_path, called) as stage:
            alice, reader = stage.nodes["alice"], await stage.choose_reader()
            ours, theirs = [await node.open_stream(stage.stream) for node in (alice, reader)]
            async with theirs.subscribe() as messages:
                for number in range(3):
                    await ours.publish({"number": number}, durable=True)
                got = await take(messages, 3)
            assert contents(got) == [{"number": number} for number in range(3)]
            assert alice.id not in stage.neighbours(reader), "over a link outside the degree"
            read = [message async for message in theirs.read()]
            assert contents(read) == contents(got)
            if not called:
                await check_history_reader(stage)
            await check_others(stage, reader)

    run(main())


async def check_history_reader(stage: Stage) -> None:
    """One that is in no overlay, and was granted after all of it was published."""
    await grant(stage.registry, stage.stream, "late", known=False)
    late = await stage.open("late")
    await stage.until_known()
    read = [message async for message in (await late.open_stream(stage.stream)).read()]
    assert contents(read) == [{"number": number} for number in range(3)]


async def check_others(stage: Stage, reader: Node) -> None:
    """Neighbours that may publish have every message, and an outsider knows what to ask for: the
    tracker names nobody to them, and nobody gives them a key."""
    alice = stage.nodes["alice"]
    assert alice.keys is not None
    (key,) = alice.keys.ring.all()
    relays = [stage.nodes[name] for name in RELAYS if stage.nodes[name] is not reader]
    outsider = await stage.open("outsider")
    asking = [*relays, outsider]
    for node in asking:
        assert node.keys is not None
        exchange = node.keys._finder._exchange
        await node.host.issue(exchange, FindKey(stage.stream, alice.id, key.id), "token")
    async with asyncio.timeout(PATIENCE_S):
        while not all((node.id, "key-not-permitted") in stage.refused for node in asking):
            await asyncio.sleep(0.02)
    assert all(node.keys is not None and not node.keys.ring.all() for node in asking)
    members = {node.id for node in (alice, reader, *relays)}
    assert not members & set(outsider.host.connections)


def test_a_tracker_that_was_restarted_introduces_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_stage(tmp_path) as stage:
            alice, reader = stage.nodes["alice"], await stage.choose_reader()
            ours, theirs = [await node.open_stream(stage.stream) for node in (alice, reader)]
            before = stage.neighbours(reader)
            await stage.stop_tracker()
            await ours.publish("while it is away", durable=False)
            await stage.start_tracker()
            tracker = stage.nodes["tracker"].tracker
            assert tracker is not None
            async with asyncio.timeout(PATIENCE_S):
                while len(tracker._members(stage.stream)) < 2 + len(RELAYS):
                    await asyncio.sleep(0.02)
            await stage.until_linked()
            assert alice.id not in before
            async with theirs.subscribe() as messages:
                await ours.publish("here again")
                assert contents(await take(messages, 1)) == ["here again"]

    run(main())
