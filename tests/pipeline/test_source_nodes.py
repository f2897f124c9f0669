"""The source's reads from real storage nodes, which follow each other: one is closed, and messages
go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from shoal.base.offsets import Offset
from shoal.gateway import Gateway
from shoal.node import Node
from shoal.pipeline.sources.options import parse_options
from tests.node.archive import STREAM, Archive, in_archive
from tests.support.log_server import numbers
from tests.support.source_reads import read_on
from tests.transport.recorder import until


async def gateway_of(node: Node, stack: AsyncExitStack) -> Gateway:
    assert node.storage is not None
    gateway = Gateway(node.host, disk=node.storage.disk, keeps=node.storage.keeps)
    stack.push_async_callback(gateway.close)
    await gateway.open("127.0.0.1:0")
    return gateway


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
