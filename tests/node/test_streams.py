"""Streams through the API: what is published arrives at every subscriber, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import show_node_id
from shoal.config.sections import TrackerSection
from shoal.kernel.records import Delivered, Published, Sent
from shoal.node import NetworkFile, Node, Stream
from tests.node.network import Town, contents, in_town, nothing_more, run, take
from tests.transport.recorder import until

# Messages


@pytest.mark.parametrize(
    "content",
    [{"speed": 8.3, "tags": ["a", None, True]}, [], None, 5, "text ✓", "", b"\x00\xff", b""],
)
def test_what_is_published_is_what_arrives(content: Any) -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2, partitions=4)
        stream = await one.create_stream("/x")
        other = await two.open_stream(stream.id)
        async with other.subscribe() as messages:
            id = await stream.publish(content, partition=3)
            (message,) = await take(messages, 1)
        assert message.content == content
        assert type(message.content) is type(content)
        assert message.id == id
        assert (id.stream, id.partition, id.publisher) == (stream.id, 3, one.id)
        assert message.stream == stream.id
        assert message.publisher == show_node_id(one.id)
        assert message.hops == 1
        assert message.gap_before is None
        assert abs(message.received_ns / 1e9 - message.timestamp.timestamp()) < 10

    in_town(scenario)


def test_bytes_like_content_travels_as_bytes() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with stream.subscribe() as messages:
            await stream.publish(bytearray(b"ab"))
            await stream.publish(memoryview(b"cd"))
            assert contents(await take(messages, 2)) == [b"ab", b"cd"]

    in_town(scenario)


def test_content_that_cannot_travel_is_refused() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        loop: list[Any] = []
        loop.append(loop)
        for content in (object(), {"x": {1, object()}}, 1j, "\ud800", loop):
            with pytest.raises(UsageError, match=r"is not JSON .*: publish what JSON can say"):
                await stream.publish(content)
        with pytest.raises(UsageError, match="split it"):
            await stream.publish(bytes(1_000_000))
        for partition in (-1, 100):
            with pytest.raises(UsageError, match="has one partition, 0; more are set"):
                await stream.publish(1, partition=partition)
        async with stream.subscribe() as messages:
            with pytest.raises(UsageError, match="durable=-1: give how many storage nodes"):
                await stream.publish(1, durable=-1)
            await nothing_more(messages)
        with pytest.raises(UsageError, match="give 'earliest', a datetime, Last"):
            async with stream.subscribe("tomorrow"):
                raise AssertionError("never reached")
        with pytest.raises(UsageError, match="give 1 or more"):
            async with stream.subscribe(queue_max=0):
                raise AssertionError("never reached")

    in_town(scenario)


def test_everything_from_everybody_arrives_everywhere_once() -> None:
    count = 40

    async def scenario(town: Town) -> None:
        nodes = await town.move_in(5)
        id = (await nodes[0].create_stream("/x")).id
        streams = [await node.open_stream(id) for node in nodes]
        async with AsyncExitStack() as stack:
            queues = [await stack.enter_async_context(s.subscribe()) for s in streams]

            async def publish(number: int, stream: Stream) -> None:
                for at in range(count):
                    await stream.publish([number, at])

            await asyncio.gather(*(publish(n, stream) for n, stream in enumerate(streams)))
            expected = Counter((n, at) for n in range(5) for at in range(count))
            for messages in queues:
                got = await take(messages, 5 * count)
                assert Counter(tuple(message.content) for message in got) == expected
                await nothing_more(messages)

    in_town(scenario)


def test_publish_returns_when_the_message_is_queued_for_every_neighbour() -> None:
    async def scenario(town: Town) -> None:
        nodes = await town.move_in(4)
        id = (await nodes[0].create_stream("/x")).id
        for node in nodes:
            await node.join(id)
        await until(lambda: all(node.degree(id) == 3 for node in nodes))
        records: list[Any] = []
        nodes[0].host.observers.append(lambda now_ns, record: records.append(record))
        message = await (await nodes[0].open_stream(id)).publish(1)
        published = [record for record in records if isinstance(record, Published)]
        assert [record.message for record in published] == [message]
        assert Sent(message, 3) in records

    in_town(scenario)


def test_many_tasks_may_publish_at_once() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        id = (await one.create_stream("/x")).id
        async with (await two.open_stream(id)).subscribe() as messages:
            stream = await one.open_stream(id)
            # None has joined before: all of them wait for the same place in the overlay.
            ids = await asyncio.gather(*(stream.publish(number) for number in range(200)))
            assert len(set(ids)) == 200
            got = await take(messages, 200)
            assert {m.id: m.content for m in got} == {id: n for n, id in enumerate(ids)}
        assert one._memberships.joined[stream.id].users == 1

    in_town(scenario)


def test_several_subscriptions_of_a_node_get_everything_each() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        other = await two.open_stream(stream.id)
        async with other.subscribe() as first, other.subscribe() as second:
            await stream.publish(1)
            assert contents(await take(first, 1)) == contents(await take(second, 1)) == [1]
            async with other.subscribe() as third:
                await stream.publish(2)
                assert contents(await take(third, 1)) == [2]
            await stream.publish(3)
            assert contents(await take(first, 2)) == [2, 3]
            with pytest.raises(StopAsyncIteration):
                await anext(third)

    in_town(scenario)


def test_a_node_may_be_its_own_tracker() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile(tracker=TrackerSection())) as node:
            stream = await node.create_stream("/x")
            async with stream.subscribe() as messages:
                await stream.publish("alone")
                (message,) = await take(messages, 1)
                assert (message.content, message.hops) == ("alone", 0)
                assert not node.host.connections

    run(main())


def test_a_tracker_takes_part_in_streams_like_any_node() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await town.tracker.create_stream("/x")
        async with (await node.open_stream(stream.id)).subscribe() as messages:
            await stream.publish("from the tracker")
            assert contents(await take(messages, 1)) == ["from the tracker"]
            async with stream.subscribe() as back:
                await (await node.open_stream(stream.id)).publish("back")
                assert contents(await take(back, 1)) == ["back"]

    in_town(scenario)


# Called from within


def test_a_callback_may_publish() -> None:
    """From a task that begins within a machine's step, as with an eager task factory."""

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        begun: list[Any] = []

        def observe(now_ns: int, record: Any) -> None:
            if isinstance(record, Delivered) and not begun:
                coroutine = stream.publish("from within")
                coroutine.send(None)  # as far as it gets: it waits for the step to end
                begun.append(coroutine)

        async with stream.subscribe() as messages:
            await stream.publish("first")
            node.host.observers.append(observe)
            second = await stream.publish("second")
            assert begun, "the step called us"
            with pytest.raises(StopIteration) as returned:
                begun[0].send(None)
            assert returned.value.value != second
            got = await take(messages, 3)
            assert contents(got) == ["first", "second", "from within"]
            assert [message.id for message in got][1:] == [second, returned.value.value]

    in_town(scenario)


# Places taken and given back


def test_the_last_subscription_takes_the_node_out_of_the_stream() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        other = await two.open_stream(stream.id)
        async with stream.subscribe():
            async with other.subscribe():
                async with other.subscribe():
                    assert town.members(stream.id) == [one.id, two.id]
                assert town.members(stream.id) == [one.id, two.id]
            await until(lambda: town.members(stream.id) == [one.id])
            async with other.subscribe() as messages:  # and back again
                await stream.publish(1)
                assert contents(await take(messages, 1)) == [1]
        await until(lambda: town.members(stream.id) == [one.id], 5)
        assert one._memberships.joined[stream.id].stays, "it publishes: until its end"

    in_town(scenario)


def test_who_publishes_or_carries_a_stream_stays_until_its_end() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        await two.join(stream.id)
        async with (await two.open_stream(stream.id)).subscribe() as messages:
            await stream.publish(1)
            assert contents(await take(messages, 1)) == [1]
        await asyncio.sleep(0.1)
        assert town.members(stream.id) == [two.id, one.id]
        await two.close()
        await until(lambda: town.members(stream.id) == [one.id])
        await one.close()
        await until(lambda: town.members(stream.id) == [])

    in_town(scenario)
