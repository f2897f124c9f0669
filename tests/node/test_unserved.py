"""A storage node that has rows of a stream, and does not keep it now, never says "nothing"."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shoal.base.ids import StreamId, show_node_id
from shoal.config.sections import PeerEntry
from shoal.identity import SeededEntropy
from shoal.node import Node
from tests.node.network import free_port
from tests.node.storage import StorageTown
from tests.node.test_storage_truth import read_all
from tests.transport.recorder import until

STREAM = "0x" + "ab" * 20 + "/s"


async def publish_three(town: StorageTown) -> None:
    """On the disk of one of two storage nodes, while the other is away."""
    async with town.open("one"), town.open() as publisher:
        stream = await publisher.open_stream(STREAM)
        for number in range(3):
            await stream.publish(number, durable=True)


def unreached(entry: PeerEntry) -> PeerEntry:
    return replace(entry, addresses=(f"ws://127.0.0.1:{free_port()}",))


async def read(node: Node) -> tuple[list[Any], Any]:
    return await read_all(await node.open_stream(STREAM))


def test_a_drained_node_does_not_say_that_there_is_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with town.open("tracker"):
            await publish_three(town)
            network = town.network("one")
            assert network.storage is not None
            draining = replace(network, storage=replace(network.storage, drain=True))
            # They cannot reach each other, and the other one is as good as new.
            one, two = network.storage_nodes
            draining = replace(draining, storage_nodes=(one, unreached(two)))
            alone = replace(town.network("two"), storage_nodes=(unreached(one), two))
            async with (
                Node.open(draining, entropy=SeededEntropy("one")) as drained,
                Node.open(alone, entropy=SeededEntropy("two")),
                town.open() as reader,
            ):
                found, answer = await read(reader)
                assert found == []
                assert not answer.complete
                assert show_node_id(drained.id) in str(answer.problem)
                assert "not-served" in str(answer.problem)

    asyncio.run(main())


def test_what_a_node_has_of_a_stream_that_it_keeps_no_more_is_fetched(tmp_path: Path) -> None:
    """The others still name it, in their settings: they copy what it has, and speak for it then."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with town.open("tracker"):
            await publish_three(town)
            network = town.network("one")
            (settings,) = network.streams
            two_alone = replace(settings, storage=settings.storage[1:])
            left = replace(network, streams=(two_alone,))
            async with (
                Node.open(left, entropy=SeededEntropy("one")) as one,
                town.open("two") as two,
                town.open() as reader,
            ):
                assert one.storage is not None
                assert two.storage is not None
                assert not one.storage.holds(StreamId(STREAM))
                found, answer = await read(reader)
                assert (found, answer.complete) in (([0, 1, 2], True), ([], False))
                store = two.storage.store
                await until(lambda: store.info().messages == 3, 10)
                assert [*(await read(reader))[0]] == [0, 1, 2]
                assert (await read(reader))[1].complete

    asyncio.run(main())
