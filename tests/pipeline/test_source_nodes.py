"""The source's reads from real storage nodes, which follow each other: one is closed, and messages
go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from shoal.base.errors import NotFound
from shoal.base.offsets import Offset
from shoal.config.sections import GatewaySection, StreamSettings
from shoal.gateway import Gateway
from shoal.gateway.server import gateway_of as opened_gateway
from shoal.identity import SeededEntropy
from shoal.node import Node
from shoal_spark.source.options import SourceOptions, parse_options
from shoal_spark.source.readers import BatchReader
from tests.node.archive import STREAM, Archive, in_archive
from tests.node.network import run
from tests.node.storage import StorageTown
from tests.support.log_server import numbers
from tests.support.source_reads import read_on
from tests.transport.recorder import until


async def gateway_of(node: Node, stack: AsyncExitStack) -> Gateway:
    assert node.storage is not None
    gateway = Gateway(node.host, disk=node.storage.disk, keeps=node.storage.keeps)
    stack.push_async_callback(gateway.close)
    await gateway.open("127.0.0.1:0")
    return gateway


def test_a_node_that_keeps_whatever_comes_knows_no_misspelt_stream(tmp_path: Path) -> None:
    town, named = StorageTown(tmp_path, "one"), StreamSettings(id=STREAM + "/named")

    def options(stream: str, address: str) -> SourceOptions:
        given = {"servers": address, "stream": stream, "patienceSeconds": "10"}
        return parse_options(given, streaming=False)

    async def main() -> None:
        network = town.network("one")
        network = replace(network, streams=(*network.streams, named))
        async with (
            town.open("tracker"),
            Node.open(network, entropy=SeededEntropy("one")) as keeper,
            town.open() as publisher,
            AsyncExitStack() as stack,
        ):
            gateway = opened_gateway(keeper, GatewaySection())
            stack.push_async_callback(gateway.close)
            address = await gateway.open("127.0.0.1:0")
            read = BatchReader(options(STREAM, address))
            with pytest.raises(NotFound, match="allowMissing"):
                await asyncio.to_thread(read.partitions)
            await asyncio.to_thread(BatchReader(options(named.id, address)).partitions)
            await (await publisher.open_stream(STREAM)).publish("first", durable=True)
            assert len(await asyncio.to_thread(read.partitions)) == 1
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main())


def followed(node: Node, other: Node, count: int) -> bool:
    """Whether a storage node has so many rows of another one's log."""
    assert node.storage is not None
    assert other.storage is not None
    stream = next(iter(node.storage.streams))
    held = node.storage.store.heads(stream, 0).get(other.storage.store.log)
    return held is not None and held.last >= count


def test_one_of_two_storage_nodes_goes_and_nothing_is_lost_or_doubled() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        async with AsyncExitStack() as stack:
            gateways = [await gateway_of(node, stack) for node in town.storage]
            servers = ",".join(gateway.address for gateway in gateways)
            given = {"servers": servers, "stream": STREAM, "patienceSeconds": "10"}
            options = parse_options(given, streaming=True)
            at, got = await asyncio.to_thread(read_on, options, Offset())
            assert (at, got) == (Offset(), []), "they keep it, and there is nothing yet"
            for number in range(120):
                await publisher.publish({"number": number})
            await town.kept(120)
            one, other = town.storage
            await until(lambda: followed(one, other, 120) and followed(other, one, 120), 30)
            at, got = await asyncio.to_thread(read_on, options, at)
            assert numbers(got) == list(range(120))
            assert one.storage is not None
            gone = 0 if at.partitions[0].log == one.storage.store.log else 1
            await gateways[gone].close()
            await town.storage[gone].close()
            for number in range(120, 150):
                await publisher.publish({"number": number}, durable=True)
            at, more = await asyncio.to_thread(read_on, options, at)
            assert numbers(got + more) == list(range(150))
            assert list(at.partitions[0].minus.values()) == [120]

    in_archive(scenario, storage=2)
