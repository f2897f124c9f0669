"""History over sockets: read, resumed, and followed by what is live."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shoal import HistoryUnavailable, Last, NotFound, UsageError
from shoal.base.ids import show_node_id
from shoal.base.offsets import Offset, PartitionOffset, format_offset
from shoal.node import Message, Stream, Subscription
from tests.node.archive import STREAM, Archive, in_archive
from tests.node.network import Town, contents, in_town, nothing_more, take


async def all_of(messages: Any) -> list[Message]:
    async with asyncio.timeout(20):
        return [message async for message in messages]


async def publish(stream: Stream, begin: int, end: int, **where: Any) -> None:
    for number in range(begin, end):
        await stream.publish(number, **where)


# Reading


def test_what_was_published_can_be_read_later() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        before = datetime.now(UTC) - timedelta(seconds=5)
        await publish(publisher, 0, 300)
        await town.kept(300)
        await publisher._node.close()  # whoever published it is gone
        reader = await town.subscriber()
        got = await all_of(reader.read())
        assert contents(got) == list(range(300))
        assert all(message.gap_before is None for message in got)
        assert {message.publisher for message in got} == {show_node_id(publisher._node.id)}
        assert contents(await all_of(reader.read(Last(7)))) == list(range(293, 300))
        assert contents(await all_of(reader.read(before))) == list(range(300))
        assert await all_of(reader.read(before, before + timedelta(seconds=1))) == []
        middle = got[100].timestamp
        assert contents(await all_of(reader.read(end=middle)))[:101] == list(range(101))
        assert contents(await all_of(reader.read(publisher="0x" + "12" * 20))) == []
        assert town.members(STREAM) == [town.storage[0].id], "reading needs no place in the stream"

    in_archive(scenario)


def test_partitions_come_merged_by_time_or_chosen() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        for number in range(60):
            await publisher.publish(number, partition=number % 3)
            await asyncio.sleep(0.001)
        for partition in range(3):
            await town.kept(20, partition)
        reader = await town.subscriber()
        got = await all_of(reader.read())
        assert [message.timestamp for message in got] == sorted(m.timestamp for m in got)
        assert sorted(contents(got)) == list(range(60))
        chosen = await all_of(reader.read(partitions=[0, 2]))
        assert {message.id.partition for message in chosen} == {0, 2}
        assert contents(await all_of(reader.read(Last(2), partitions=1))) == [55, 58]

    in_archive(scenario, partitions=3)


def test_a_reader_that_stops_early_stops_the_read() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 1500)
        await town.kept(1500)
        reader = await town.subscriber()
        history = reader._node.history
        async for message in reader.read():
            if message.content == 10:
                break
        await asyncio.sleep(0.1)
        assert history._client._jobs == {}
        assert history._reads == {}

    in_archive(scenario)


def test_a_slow_reader_holds_little_and_live_messages_go_on_meanwhile() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 2000)
        await town.kept(2000)
        reader = await town.subscriber()
        async with reader.subscribe() as live:
            slow = reader.read()
            assert (await anext(slow)).content == 0
            await publish(publisher, 2000, 2100)
            assert contents(await take(live, 100)) == list(range(2000, 2100))
            (job,) = reader._node.history._client._jobs.values()
            assert len(job._held) <= 256  # type: ignore[union-attr]
            (read,) = reader._node.history._reads
            assert len(read._rows) <= 256
            rest = await all_of(slow)
            assert contents(rest) == list(range(1, 2100))

    in_archive(scenario)


# Durable


def test_a_durable_message_is_on_disk_when_publish_returns() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        for number in range(20):
            await publisher.publish(number, durable=True)
            assert len(await all_of(publisher.read())) == number + 1
        await publisher.publish("both", durable=2)
        for storage in town.storage:
            reader = await storage.open_stream(STREAM)
            assert contents(await all_of(reader.read(Last(1)))) == ["both"], "it reads its own"
        with pytest.raises(HistoryUnavailable, match="3 copies, but 2 storage nodes"):
            await publisher.publish("too many", durable=3)

    in_archive(scenario, storage=2)


def test_a_storage_node_that_is_gone_costs_nothing_but_time() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 100)
        await town.kept(100)
        await town.storage[0].close()
        reader = await town.subscriber()
        assert contents(await all_of(reader.read())) == list(range(100))
        await publisher.publish("more", durable=True)
        with pytest.raises(HistoryUnavailable, match="published, and may be kept"):
            await publisher.publish("twice", durable=2)
        await town.storage[1].close()
        with pytest.raises(HistoryUnavailable, match="are they running"):
            await all_of(reader.read())

    in_archive(scenario, storage=2)


# Subscribing from history on


class Feed:
    """Publishes without end, until it is told to stop."""

    def __init__(self, stream: Stream, begin: int) -> None:
        self.next = begin
        self._stream = stream
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._stream.publish(self.next)
            self.next += 1
            await asyncio.sleep(0.002)

    async def stop(self) -> int:
        self._task.cancel()
        await asyncio.wait([self._task])
        return self.next


async def until_content(messages: Subscription, content: Any) -> list[Message]:
    async with asyncio.timeout(30):
        got = []
        async for message in messages:
            got.append(message)
            if message.content == content:
                break
        return got


def test_a_late_joiner_gets_the_last_hundred_and_then_all_that_is_live() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 500)
        await town.kept(500)
        feed = Feed(publisher, 500)
        joiners = [await town.subscriber() for _ in range(5)]

        async def follow(stream: Stream, delay_s: float) -> list[Message]:
            await asyncio.sleep(delay_s)
            async with stream.subscribe(start=Last(100)) as messages:
                got = await take(messages, 600)
                return got

        results = await asyncio.gather(
            *(follow(stream, 0.3 * number) for number, stream in enumerate(joiners))
        )
        await feed.stop()
        for got in results:
            numbers = contents(got)
            assert numbers == list(range(numbers[0], numbers[0] + 600))
            assert all(message.gap_before is None for message in got)
            live = next(i for i, message in enumerate(got) if message.hops)
            assert live >= 100, "a hundred of history at least"

    in_archive(scenario)


@pytest.mark.parametrize("start", ["earliest", "time"])
def test_history_and_live_meet_without_a_seam(start: str) -> None:
    async def scenario(town: Archive) -> None:
        one, two = await town.publisher(), await town.publisher()
        feeds = [Feed(one, 0), Feed(two, 100_000)]
        await asyncio.sleep(1)
        reader = await town.subscriber()
        begin: Any = start if start == "earliest" else datetime.now(UTC) - timedelta(minutes=1)
        async with reader.subscribe(start=begin) as messages:
            got = await take(messages, 500)
            await asyncio.sleep(0.5)
            ends = [await feed.stop() for feed in feeds]
            got += await take(messages, ends[0] + ends[1] - 100_000 - len(got))
            await nothing_more(messages, 2.5)
        assert [c for c in contents(got) if c < 100_000] == list(range(ends[0]))
        assert [c for c in contents(got) if c >= 100_000] == list(range(100_000, ends[1]))
        assert all(message.gap_before is None for message in got)

    in_archive(scenario, storage=2)


def test_an_offset_goes_on_exactly_after_its_message() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 200)
        await town.kept(200)
        reader = await town.subscriber()
        store = town.storage[0].storage
        assert store is not None
        begin = format_offset(Offset({0: PartitionOffset(store.store.log, 0)}))
        first = await all_of(reader.read(begin))
        assert contents(first) == list(range(200))
        offset = first[49].offset
        assert offset == format_offset(Offset({0: PartitionOffset(store.store.log, 50)}))
        assert contents(await all_of(reader.read(offset))) == list(range(50, 200))
        feed = Feed(publisher, 200)
        async with reader.subscribe(start=offset) as messages:
            assert contents(await take(messages, 400)) == list(range(50, 450))
        await feed.stop()
        unknown = format_offset(Offset({0: PartitionOffset(type(store.store.log)(int=7), 0)}))
        with pytest.raises(NotFound, match="no storage node has the log of this offset"):
            await all_of(reader.read(unknown))
        beyond = format_offset(Offset({0: PartitionOffset(store.store.log, 10**6)}))
        with pytest.raises(HistoryUnavailable, match=r"the log of this offset ends at [4-9]\d\d:"):
            await all_of(reader.read(beyond))

    in_archive(scenario)


@pytest.mark.parametrize("start", ["latest", "earliest", Last(3), "time"])
def test_after_the_offset_of_any_message_comes_what_follows_in_all_partitions(start: Any) -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()

        async def spread(begin: int, end: int) -> None:
            for number in range(begin, end):
                await publisher.publish(number, partition=number % 3, durable=True)

        before = datetime.now(UTC)
        await spread(0, 15)
        reader = await town.subscriber()
        first = {"latest": 15, Last(3): 6}.get(start, 0)
        async with reader.subscribe(before if start == "time" else start) as messages:
            await spread(15, 30)
            got = await take(messages, 30 - first)
        assert sorted(contents(got)) == list(range(first, 30))
        await spread(30, 36)
        for at in (0, 5, len(got) - 1):
            offset = got[at].offset
            assert offset is not None
            later = sorted([*contents(got[at + 1 :]), *range(30, 36)])
            async with reader.subscribe(offset) as messages:
                assert sorted(contents(await take(messages, len(later)))) == later
                await nothing_more(messages)
            assert sorted(contents(await all_of(reader.read(offset)))) == later
        only = await all_of(reader.read(publisher=got[0].publisher))
        assert {message.offset for message in only} == {None}

    in_archive(scenario, partitions=3)


def test_a_consumer_that_takes_its_time_with_history_loses_nothing() -> None:
    """Far more comes live meanwhile than waits: the rest comes out of storage."""

    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 1000)
        await town.kept(1000)
        reader = await town.subscriber()
        async with reader.subscribe(start="earliest", queue_max=50) as messages:
            got = await take(messages, 10)
            await publish(publisher, 1000, 2000)
            await town.kept(2000)
            got += await take(messages, 1990)
            assert contents(got) == list(range(2000))
            assert all(message.gap_before is None for message in got)

    in_archive(scenario)


def test_history_that_is_lost_under_way_is_said_in_its_place_and_live_goes_on() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 3000)
        await town.kept(3000)
        reader = await town.subscriber()
        async with reader.subscribe(start="earliest") as messages:
            got = await take(messages, 10)
            await town.storage[0].close()
            with pytest.raises(HistoryUnavailable):
                await until_content(messages, 2999)
            await publish(publisher, 3000, 3010)
            live = await take(messages, 10)
            assert contents(got) == list(range(10))
            assert contents(live) == list(range(3000, 3010))
            assert live[0].gap_before is not None

    in_archive(scenario)


# Misuse


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"start": "tomorrow"}, "give 'earliest', a datetime, Last"),
        ({"start": "latest"}, "give 'earliest', a datetime, Last"),
        ({"start": datetime(2026, 1, 1)}, "give it a time zone"),
        ({"start": datetime(1960, 1, 1, tzinfo=UTC)}, "before 1970"),
        ({"start": Last(5), "end": datetime.now(UTC)}, "give no end"),
        ({"start": "{}"}, "is no offset"),
        (
            {"start": datetime(2026, 2, 1, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)},
            "start 2026-02-01T00:00:00.000Z is after end 2026-01-01",
        ),
        ({"publisher": "bob"}, "publisher='bob'"),
        ({"partitions": 4}, "partition 4"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(arguments: Any, complaint: str) -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        with pytest.raises(UsageError, match=complaint):
            stream.read(**arguments)

    in_town(scenario)
    with pytest.raises(UsageError, match=r"Last\(0\)"):
        Last(0)


def test_a_stream_that_nobody_keeps_names_the_remedy() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        remedy = (
            r"kept by nobody: name its storage nodes as storage = \[...\] under \[\[streams\]\]"
        )
        with pytest.raises(UsageError, match=remedy):
            await all_of(stream.read())
        with pytest.raises(UsageError, match=remedy):
            async with stream.subscribe(start=Last(10)):
                raise AssertionError("never reached")
        assert not node._memberships.joined
        with pytest.raises(UsageError, match=remedy):
            await stream.publish(1, durable=True)

    in_town(scenario)


def test_a_node_that_closes_lets_no_reader_wait() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        await publish(publisher, 0, 1000)
        await town.kept(1000)
        reader = await town.subscriber()
        reading = reader.read()
        await anext(reading)
        async with asyncio.timeout(10):
            await reader._node.close()
            with pytest.raises(HistoryUnavailable, match="this node is closed"):
                await all_of(reading)
            with pytest.raises(UsageError, match="this node is closed"):
                reader.read()

    in_archive(scenario)
