"""A local consumer: bounded, never in the way, and told what it missed."""

from __future__ import annotations

import asyncio
from itertools import chain

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity.message_body import JSON
from shoal.node import Gap, Subscription
from shoal.node.streams.subscription import QUEUE_BYTES_EACH, QUEUE_BYTES_MIN
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.signed_message import VerifiedMessage
from tests.node.network import Town, contents, in_town, nothing_more, run, take

MISSED = "slow-consumer"


def arrived(number: int, *, gap_before: bool = False, size_bytes: int = 0) -> MessageArrived:
    id = MessageId(StreamId("s"), 0, 1_700_000_000_000 + number, 0, NodeId(bytes(20)), "c")
    verified = VerifiedMessage(id, None, JSON, str(number).encode(), bytes(size_bytes))
    return MessageArrived(verified, 1, 0, gap_before)


def test_messages_come_in_order_and_wait_for_nobody() -> None:
    async def main() -> None:
        subscription = Subscription()
        waiting = asyncio.ensure_future(take(subscription, 5))
        await asyncio.sleep(0)
        for number in range(5):
            subscription.push(arrived(number))
        assert contents(await waiting) == [0, 1, 2, 3, 4]

    run(main())


def test_a_consumer_that_is_too_slow_loses_the_oldest_and_is_told_how_many() -> None:
    async def main() -> None:
        subscription = Subscription(queue_max=3)
        for number in range(10):
            subscription.push(arrived(number))
        got = await take(subscription, 3)
        assert contents(got) == [7, 8, 9]
        assert [m.gap_before for m in got] == [Gap(7, MISSED), None, None]
        subscription.push(arrived(10))
        (message,) = await take(subscription, 1)
        assert message.gap_before is None, "told once"
        for number in range(11, 15):
            subscription.push(arrived(number))
        (message,) = await take(subscription, 1)
        assert (message.content, message.gap_before) == (12, Gap(1, MISSED))

    run(main())


def test_a_queue_is_bounded_in_bytes_as_well() -> None:
    async def main() -> None:
        subscription = Subscription()
        assert subscription._queue.bytes_max == QUEUE_BYTES_MIN
        for number in range(5):
            subscription.push(arrived(number, size_bytes=QUEUE_BYTES_MIN // 4))
        subscription.push(arrived(5))
        got = await take(subscription, 4)
        assert contents(got) == [2, 3, 4, 5]
        assert [m.gap_before for m in got] == [Gap(2, MISSED), None, None, None]
        # The newest is there, however large it is, and what was taken has made room.
        subscription.push(arrived(6))
        subscription.push(arrived(7, size_bytes=2 * QUEUE_BYTES_MIN))
        (message,) = await take(subscription, 1)
        assert (message.content, message.gap_before) == (7, Gap(1, MISSED))
        assert (len(subscription._queue), subscription._queue.size_bytes) == (0, 0)

    run(main())


def test_a_longer_queue_holds_more_bytes() -> None:
    async def main() -> None:
        longer = Subscription(queue_max=1_000_000)
        assert longer._queue.bytes_max == 1_000_000 * QUEUE_BYTES_EACH

    run(main())


def test_history_waits_for_room_instead_of_pushing_itself_out() -> None:
    async def main() -> None:
        subscription = Subscription()
        for number in range(3):  # a few, but large
            await subscription.room()
            subscription.take(arrived(number, size_bytes=QUEUE_BYTES_MIN // 5))
        waiting = asyncio.ensure_future(subscription.room())
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        await take(subscription, 1)
        async with asyncio.timeout(5):
            await waiting

    run(main())


def test_messages_that_could_not_be_had_are_a_gap_of_unknown_size() -> None:
    async def main() -> None:
        subscription = Subscription(queue_max=2)
        subscription.push(arrived(1))
        subscription.push(arrived(5, gap_before=True))
        assert [m.gap_before for m in await take(subscription, 2)] == [None, Gap(None, "lost")]
        for number in (6, 7, 8):
            subscription.push(arrived(number, gap_before=number == 6))
        # Two are missed here, and who knows how many before them.
        assert [m.gap_before for m in await take(subscription, 2)] == [Gap(None, MISSED), None]
        for number in (10, 11, 12):
            subscription.push(arrived(number))
        assert [m.gap_before for m in await take(subscription, 2)] == [Gap(1, MISSED), None]

    run(main())


def test_after_the_end_what_is_queued_still_comes() -> None:
    async def main() -> None:
        subscription = Subscription()
        subscription.push(arrived(1))
        subscription.close()
        assert [message.content async for message in subscription] == [1]
        assert [message async for message in subscription] == []

    run(main())


def test_the_end_wakes_whoever_waits() -> None:
    async def main() -> None:
        subscription = Subscription()

        async def read() -> list[object]:
            return [message.content async for message in subscription]

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        await asyncio.sleep(0)
        subscription.close()
        assert await asyncio.gather(*readers) == [[], [], []]

    run(main())


def test_several_readers_share_what_comes() -> None:
    async def main() -> None:
        subscription = Subscription()

        async def read() -> list[int]:
            got: list[int] = []
            async for message in subscription:
                got.append(message.content)
                await asyncio.sleep(0)
            return got

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        for number in range(100):
            subscription.push(arrived(number))
            if number % 7 == 0:
                await asyncio.sleep(0)
        subscription.close()
        assert sorted(chain.from_iterable(await asyncio.gather(*readers))) == list(range(100))

    run(main())


def test_a_slow_consumer_of_a_node_finds_the_gap() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        other = await two.open_stream(stream.id)
        async with other.subscribe(queue_max=10) as slow, other.subscribe() as fast:
            for number in range(100):
                await stream.publish(number)
            assert len(await take(fast, 100)) == 100
            got = await take(slow, 10)
            assert contents(got) == list(range(90, 100))
            assert got[0].gap_before == Gap(90, MISSED)
            await nothing_more(slow)
            await stream.publish(100)
            (message,) = await take(slow, 1)
            assert (message.content, message.gap_before) == (100, None)

    in_town(scenario)
