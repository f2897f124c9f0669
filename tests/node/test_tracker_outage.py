"""A tracker that goes away and comes back, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from shoal.config.network_file import tracker_contact
from shoal.node import NetworkFile, Node
from tests.node.network import contents, free_port, open_tracker, run, take
from tests.transport.recorder import until

NODES = 4


def test_nodes_come_back_to_a_tracker_that_restarts() -> None:
    listen = f"ws://127.0.0.1:{free_port()}"

    async def main() -> None:
        async with AsyncExitStack() as stack:
            async with open_tracker(listen=listen) as tracker:
                entry = tracker_contact(tracker.id, list(tracker.addresses))
                network = NetworkFile(trackers=(entry,))
                nodes = [await stack.enter_async_context(Node.open(network)) for _ in range(NODES)]
                id = (await nodes[0].create_stream("/x")).id
                streams = [await node.open_stream(id) for node in nodes]
                queues = [await stack.enter_async_context(stream.subscribe()) for stream in streams]
                await until(lambda: all(node.degree(id) == NODES - 1 for node in nodes))
            # It is gone; data flows on.
            for stream in streams:
                await stream.publish("meanwhile")
            for messages in queues:
                assert contents(await take(messages, NODES)) == ["meanwhile"] * NODES
            # Whoever comes now waits for it.
            newcomer = await stack.enter_async_context(Node.open(network))
            waiting = asyncio.ensure_future(newcomer.join(id))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            async with open_tracker(listen=listen) as again:
                assert again.id == tracker.id
                assert again.tracker is not None
                tracked = again.tracker.streams
                await waiting
                members = {node.id for node in (*nodes, newcomer)}
                await until(lambda: id in tracked and set(tracked[id].members) == members)
                await until(lambda: all(node.degree(id) == NODES for node in nodes))
                await streams[1].publish("after")
                for messages in queues:
                    assert contents(await take(messages, 1)) == ["after"]
                await (await newcomer.open_stream(id)).publish("new")
                for messages in queues:
                    assert contents(await take(messages, 1)) == ["new"]

    run(main())
