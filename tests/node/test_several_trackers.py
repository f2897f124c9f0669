"""Three trackers over real sockets, one of which dies."""

from __future__ import annotations

from contextlib import AsyncExitStack

from shoal.base.ids import StreamId
from shoal.config.network_file import tracker_contact
from shoal.config.sections import StreamSettings
from shoal.identity import SeededEntropy
from shoal.node import NetworkFile, Node
from tests.node.network import contents, open_tracker, run, take
from tests.transport.recorder import until

NODES = 4


def members(tracker: Node, stream: StreamId) -> set[bytes]:
    assert tracker.tracker is not None
    state = tracker.tracker.streams.get(stream)
    return set() if state is None else set(state.members)


def test_a_dead_tracker_stops_neither_messages_nor_joins() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            first = AsyncExitStack()
            opened = [first, stack, stack]
            trackers = [
                await each.enter_async_context(open_tracker(name=f"tracker {number}"))
                for number, each in enumerate(opened)
            ]
            entries = tuple(tracker_contact(t.id, list(t.addresses)) for t in trackers)
            # Pinned, so that the one that dies is the one that counts.
            pins = StreamSettings(trackers=tuple(entry.id for entry in entries[:2]))
            network = NetworkFile(trackers=entries, streams=(pins,))
            nodes = [await stack.enter_async_context(Node.open(network)) for _ in range(NODES)]
            id = (await nodes[0].create_stream("/x")).id
            streams = [await node.open_stream(id) for node in nodes]
            queues = [await stack.enter_async_context(stream.subscribe()) for stream in streams]
            everybody = {node.id for node in nodes}
            await until(lambda: members(trackers[0], id) == everybody)
            await until(lambda: all(node.degree(id) == NODES - 1 for node in nodes))
            await first.aclose()
            for number in range(10):
                await streams[number % NODES].publish(number)
            for messages in queues:
                assert sorted(contents(await take(messages, 10))) == list(range(10))
            newcomer = await stack.enter_async_context(Node.open(network))
            await newcomer.join(id)
            await until(lambda: members(trackers[1], id) == everybody | {newcomer.id})
            assert members(trackers[2], id) == set()
            await until(lambda: newcomer.degree(id) == NODES)
            await (await newcomer.open_stream(id)).publish("new")
            for messages in queues:
                assert contents(await take(messages, 1)) == ["new"]

    run(main())


def test_streams_of_one_node_go_to_different_trackers() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            trackers = [
                await stack.enter_async_context(open_tracker(name=f"tracker {number}"))
                for number in range(2)
            ]
            entries = tuple(tracker_contact(t.id, list(t.addresses)) for t in trackers)
            network, entropy = NetworkFile(trackers=entries), SeededEntropy("node")
            node = await stack.enter_async_context(Node.open(network, entropy=entropy))
            for number in range(12):
                await node.join(f"/stream/{number}")
            counts = [len(t.tracker.streams) for t in trackers if t.tracker is not None]
            assert sum(counts) == 12
            assert min(counts) >= 1

    run(main())
