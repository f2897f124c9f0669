"""Whatever a node is in the middle of, closing it and giving up on it end soon, and are noticed by
whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from shoal.base.errors import ShoalError
from shoal.config.sections import DhtSection, PeerEntry, SearchSection
from shoal.node import NetworkFile, Node
from shoal.node.streams import memberships as module
from shoal.transport.socket_listener import Door
from tests.node.network import Town, contents, in_town, take

NOBODY = (PeerEntry("0x" + "ab" * 20, ("ws://127.0.0.1:9",)),)
ALONE = NetworkFile(
    trackers=NOBODY,
    storage_nodes=NOBODY,
    dht=DhtSection(bootstrap=NOBODY),
    search=SearchSection(bootstrap=NOBODY),
)
"""A network in which nobody answers."""

STREAM = "0x" + "cd" * 20 + "/x"
HANG_S = 10.0  # far above what closing takes, below what any of these would wait by itself
CID = "zdpuAmyVF5ZGPQ1MnvCA1BxrDH9J65AsSXLHWZKeNCC5yxyv7"


async def publish(node: Node) -> None:
    await (await node.open_stream(STREAM)).publish(1)


async def subscribe(node: Node) -> None:
    async with (await node.open_stream(STREAM)).subscribe():
        pass


async def catch_up(node: Node) -> None:
    async with (await node.open_stream(STREAM)).subscribe(start="earliest"):
        pass


async def read(node: Node) -> None:
    await _drained((await node.open_stream(STREAM)).read())


async def open_topic(node: Node) -> None:
    await node.topic(CID)


async def search(node: Node) -> None:
    await _drained(node.search("x", within=60.0))


async def watch(node: Node) -> None:
    async with node.watch("x"):
        pass


async def measure(node: Node) -> None:
    await node.measure.size()


async def _drained(items: AsyncIterator[object]) -> None:
    async for _ in items:
        pass


WAITS = [publish, subscribe, catch_up, read, open_topic, search, watch, measure]


async def _begun(work: Awaitable[None]) -> asyncio.Task[None]:
    async def waited() -> None:
        await work

    task = asyncio.create_task(waited())
    await asyncio.sleep(0.05)
    assert not task.done()  # nobody answers
    return task


@pytest.mark.parametrize("wait", WAITS)
def test_closing_ends_every_wait(wait: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S):
            async with Node.open(ALONE) as node:
                waiting = await _begun(wait(node))
            with suppress(ShoalError):  # it says why, or has nothing more to say
                await waiting

    asyncio.run(main())


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_is_cancelled_ends_and_the_node_goes_on(
    wait: Callable[[Node], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S), Node.open(ALONE) as node:
            waiting = await _begun(wait(node))
            waiting.cancel()
            await asyncio.wait([waiting])
            again = await _begun(wait(node))
            again.cancel()
            await asyncio.wait([again])

    asyncio.run(main())


def test_a_close_that_is_cancelled_still_closes_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_long() -> None:
        await asyncio.sleep(2 * HANG_S)

    async def main() -> None:
        async with asyncio.timeout(HANG_S), Node.open(ALONE) as node:
            (door,) = node.host._doors
            assert isinstance(door, Door)
            with monkeypatch.context() as patch:
                patch.setattr(node.topics, "close", take_long)
                closing = await _begun(node.close())
                closing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await closing
            assert door._sock.fileno() < 0

    asyncio.run(main())


async def publish_without_a_neighbour(node: Node) -> None:
    """As when all links of a node are being made anew."""
    stream = await node.open_stream(STREAM)
    await stream.publish("first")
    node._memberships.machine.streams[stream.id].ready = False
    await stream.publish("waits")


def test_what_waits_for_a_neighbour_is_sent_before_a_node_leaves() -> None:
    async def scenario(town: Town) -> None:
        leaver, stayer = await town.move_in(2)
        await publish_without_a_neighbour(leaver)
        closing = asyncio.create_task(leaver.close())
        await asyncio.sleep(0.05)
        async with (await stayer.open_stream(STREAM)).subscribe() as messages:
            assert contents(await take(messages, 1)) == ["waits"]
        await closing

    in_town(scenario)


def test_a_node_that_finds_no_neighbour_says_what_it_did_not_send(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "UNSENT_S", 0.1)

    async def scenario(town: Town) -> None:
        (leaver,) = await town.move_in()
        await publish_without_a_neighbour(leaver)

    in_town(scenario)
    assert f"{STREAM}: left with 1 messages unsent: no neighbour" in caplog.text
