"""The aware policy on real links: members probe each other, while messages go on.

Where links go when delays differ is for the simulator, and for `lab run` over sockets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from shoal.base.ids import StreamId
from shoal.config.network_file import tracker_contact
from shoal.config.sections import TrackerSection
from shoal.node import NetworkFile, Node, Subscription
from shoal.protocols.streams.topology.aware_policy import AwarePolicy
from tests.node.network import run, take

NODES = 14
MESSAGES_MIN, MESSAGES_MAX = 40, 1200  # up to a minute


def known_of(policy: AwarePolicy, node: Node) -> int:
    """Others whose round trip to a member the tracker has heard of."""
    slot = policy._slots.get(node.id)
    return 0 if slot is None else len(policy._map.round_trips.known(slot))


def test_members_probe_each_other_and_nothing_is_lost() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            network = NetworkFile(tracker=TrackerSection(policy="aware"))
            tracker = await stack.enter_async_context(Node.open(network))
            assert tracker.tracker is not None
            entry = tracker_contact(tracker.id, list(tracker.addresses))
            nodes: list[Node] = []
            queues: list[Subscription] = []
            id = StreamId("")
            for _ in range(NODES):
                node = await stack.enter_async_context(Node.open(NetworkFile(trackers=(entry,))))
                id = (await node.create_stream("/aware")).id if not nodes else id
                stream = await node.open_stream(id)
                queues.append(await stack.enter_async_context(stream.subscribe()))
                nodes.append(node)
            policy = tracker.tracker.streams[id].policy
            assert isinstance(policy, AwarePolicy)
            publisher = await nodes[0].open_stream(id)
            sent = 0
            while sent < MESSAGES_MIN or not all(known_of(policy, node) >= 8 for node in nodes):
                assert sent < MESSAGES_MAX, "they do not get to know each other"
                await publisher.publish(sent)
                sent += 1
                await asyncio.sleep(0.05)  # while links are measured, and may move
            for queue in queues:
                got = [message.content for message in await take(queue, sent)]
                assert got == list(range(sent))

    run(main())
