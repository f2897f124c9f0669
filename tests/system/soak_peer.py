"""A process with a few nodes that take part in a stream until somebody kills it.

python -m tests.system.soak_peer NETWORK_FILE STREAM NODES
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import uvloop

from shoal.node import Node, Subscription

PUBLISH_INTERVAL_S = 0.05


async def main(network: str, id: str, nodes: int) -> None:
    """Subscribe and publish for ever."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for number in range(nodes):
            node = await stack.enter_async_context(Node.open(network))
            stream = await node.open_stream(id)
            messages = await stack.enter_async_context(stream.subscribe())
            group.create_task(_read(messages))
            await stream.publish(["peer", number])
        print("ready", flush=True)
        while True:
            await stream.publish(["peer", "again"])
            await asyncio.sleep(PUBLISH_INTERVAL_S)


async def _read(messages: Subscription) -> None:
    async for _ in messages:
        pass


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
