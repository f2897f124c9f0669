"""The station process: a storage node that keeps the demo's streams, and a node with an outbox that
publishes what Spark hands in. Each has a gateway.

    python -m shoal_city.demo.station

Its first line of stdin is its StationWork; then a Stop, or the end of whoever started it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import msgspec
from msgspec.structs import replace

from shoal.config.sections import GatewaySection, NodeSection, OutboxSection, StorageSection
from shoal.gateway import Gateway
from shoal.node import Node
from shoal_city.demo.messages import Open, StationFigures, StationWork
from shoal_lab.testbed.child_process import read_stdin, run, say

FIGURES_S = 0.5
STORAGE_KEY, TOKEN = "storage.key", "token"
"""Files that are made before the station starts, in its folder."""
LISTEN = "127.0.0.1:0"


async def _main() -> None:
    reader = await read_stdin()
    work = msgspec.json.decode(await reader.readline(), type=StationWork)
    keeping = replace(
        work.network,
        node=NodeSection(key=STORAGE_KEY, listen=(work.listen,)),
        storage=StorageSection(),
    )
    publishing = replace(
        work.network, outbox=OutboxSection(token=f"file:{TOKEN}"), gateway=GatewaySection(LISTEN)
    )
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        keeper = await stack.enter_async_context(Node.open(keeping))
        publisher = await stack.enter_async_context(Node.open(publishing))
        storage = keeper.storage
        assert storage is not None
        log = Gateway(keeper.host, disk=storage.disk, keeps=storage.keeps)
        outbox = Gateway(publisher.host, outbox=publisher.outbox)
        for gateway in (log, outbox):
            stack.push_async_callback(gateway.close)
        say(Open(servers=await log.open(LISTEN), outbox=await outbox.open(LISTEN)))
        reporting = group.create_task(_report(publisher))
        await reader.readline()
        reporting.cancel()


async def _report(publisher: Node) -> None:
    assert publisher.outbox is not None
    while True:
        state = await publisher.outbox.state()
        say(StationFigures(state.waiting_parts, state.problem, time.process_time()))
        await asyncio.sleep(FIGURES_S)


if __name__ == "__main__":
    run(_main())
