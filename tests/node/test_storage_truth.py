"""Over sockets: no read says that there is nothing more while a storage node may have more."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from time import time_ns
from typing import Any
from unittest import mock

import pytest

from shoal import HistoryIncomplete, HistoryUnavailable, connect
from shoal.base.ids import StreamId, show_node_id
from shoal.base.offsets import Offset, PartitionOffset, format_offset
from shoal.gateway.live_feeds import INCOMPLETE, Gap, doors_of
from shoal.identity.session_record import SessionRecord
from shoal.node import Last, Node
from shoal.protocols.streams.history.anti_entropy import Progress
from tests.node.network import PATIENCE_S
from tests.node.storage import StorageTown
from tests.transport.recorder import until

STREAM = "0x" + "ab" * 20 + "/s"
STREAMS = 20


async def publish_one_each(node: Node, count: int) -> list[Any]:
    """One message to each of so many streams, on disk at one storage node."""
    streams = [await node.create_stream(f"/truth/{number}") for number in range(count)]
    await asyncio.gather(*(stream.publish("here", durable=True) for stream in streams))
    return streams


async def read_all(stream: Any, *what: Any) -> tuple[list[Any], Any]:
    read = stream.read(*what)
    async with asyncio.timeout(PATIENCE_S):
        return [message.content async for message in read], read


@pytest.mark.parametrize("late", [0, 2])
def test_what_one_of_three_has_acknowledged_is_read(late: int, tmp_path: Path) -> None:
    """Also if the others have never heard of the stream."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", "three")
        names = list(town.storage)
        async with AsyncExitStack() as stack, town.open("tracker"):
            for name in names[: 3 - late]:
                await stack.enter_async_context(town.open(name))
            publisher = await stack.enter_async_context(town.open())
            streams = await publish_one_each(publisher, STREAMS)
            for name in names[3 - late :]:
                await stack.enter_async_context(town.open(name))
            reader = await stack.enter_async_context(town.open())
            for stream in streams:
                opened = await reader.open_stream(stream.id)
                found, read = await read_all(opened)
                assert (found, read.complete) == (["here"], True), stream.id

    asyncio.run(main())


def test_a_storage_node_that_died_is_missed_until_it_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with AsyncExitStack() as stack, town.open("tracker"):
            one = await stack.enter_async_context(town.open("one"))
            publisher = await stack.enter_async_context(town.open())
            stream = await publisher.open_stream(STREAM)
            async with town.open("two") as two:
                for number in range(3):
                    await stream.publish(number, durable=2)
                found, read = await read_all(stream)
                assert (found, read.complete, read.missing) == ([0, 1, 2], True, ())
                id = show_node_id(two.id)
            found, read = await read_all(stream)
            assert found == [0, 1, 2], "what was found is given"
            assert not read.complete
            (missing,) = read.missing
            assert missing.node == id
            assert missing.until is not None, "they were compared before"
            assert id in str(read.problem)
            with pytest.raises(HistoryIncomplete, match=id):
                read.raise_if_incomplete()
            _, read = await read_all(stream, Last(1))
            assert not read.complete
            async with stream.subscribe(start="earliest") as messages:
                async with asyncio.timeout(PATIENCE_S):
                    assert [(await anext(messages)).content for _ in range(3)] == [0, 1, 2]
                await until(lambda: messages.problem, PATIENCE_S)
                assert not messages.complete
                assert messages.missing[0].node == id
            assert one.storage is not None
            async with town.open("two"):
                async with asyncio.timeout(60):
                    while not (await read_all(stream))[1].complete:
                        await asyncio.sleep(0.5)

    asyncio.run(main())


def test_a_new_storage_node_does_not_say_that_there_is_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with town.open("tracker"):
            async with town.open("one"), town.open() as publisher:
                stream = await publisher.open_stream(STREAM)
                for number in range(3):
                    await stream.publish(number, durable=True)
            # All that have them are gone: one that never met them has nothing to say.
            async with town.open("two") as two, town.open() as reader:
                stream = await reader.open_stream(STREAM)
                for what in ((), (Last(10),)):
                    found, read = await read_all(stream, *what)
                    assert found == []
                    assert not read.complete
                    assert read.missing[0].until is None
                assert two.storage is not None
                assert two.storage.behind is not None

    asyncio.run(main())


def test_a_stream_of_which_no_storage_node_has_heard_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two")
        async with town.open("tracker"), town.open("one"), town.open("two"), town.open() as node:
            stream = await node.create_stream("/unheard-of")
            with pytest.raises(
                HistoryUnavailable, match="none of its storage nodes has heard of it"
            ):
                await read_all(stream)

    asyncio.run(main())


def test_the_api_without_async_says_it_too(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with town.open("tracker"), town.open("one"):
            async with town.open("two") as two, town.open() as publisher:
                stream = await publisher.open_stream(STREAM)
                for number in range(3):
                    await stream.publish(number, durable=2)
                id = show_node_id(two.id)
            await asyncio.to_thread(blocking, town, id)

    def blocking(town: StorageTown, id: str) -> None:
        with connect(town.network()) as node:
            stream = node.open_stream(STREAM)
            with stream.read() as read:
                assert not read.complete, "it is being read"
                with pytest.raises(HistoryIncomplete):
                    read.raise_if_incomplete()
                assert [message.content for message in read] == [0, 1, 2]
                assert not read.complete
                assert [missing.node for missing in read.missing] == [id]
                assert id in str(read.problem)
            with stream.subscribe(Last(2), timeout=2) as messages:
                assert [message.content for message in messages] == [1, 2]
                assert not messages.complete
                assert [missing.node for missing in messages.missing] == [id]
            with stream.subscribe(timeout=0.1) as messages:
                assert messages.complete, "no history was wanted"

    asyncio.run(main())


def test_subscribers_of_a_gateway_are_told_of_a_gap(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with town.open("tracker"), town.open("one"), town.open() as node:
            stream = await node.open_stream(STREAM)
            async with town.open("two"):
                await stream.publish(0, durable=2)
            door = doors_of(node).streams
            assert door is not None
            async with door.subscribe(StreamId(STREAM), "earliest") as messages:
                async with asyncio.timeout(PATIENCE_S):
                    told = [await anext(messages)]
                    await asyncio.sleep(0.5)
                    await stream.publish(1)
                    told.append(await anext(messages))
            assert [one.content for one in told] == [0, 1]
            assert [one.gap_before for one in told if one.gap_before] == [Gap(None, INCOMPLETE)]

    asyncio.run(main())


def test_a_storage_node_that_catches_up_is_not_ready_and_says_how_far_it_is(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with town.open("tracker"), town.open("one") as one, town.open("two") as two:
            assert one.storage is not None
            async with asyncio.timeout(PATIENCE_S):
                while one.storage.behind is not None:
                    await asyncio.sleep(0.05)
            behind = (Progress(two.id, True, True, 3, 2, 1_234_567),)
            with mock.patch.object(one.storage.sync, "progress", return_value=behind):
                assert not one.readiness.ready
                assert any("1,234,567 rows" in problem for problem in one.readiness.problems)
                assert show_node_id(two.id) in str(one.storage.behind)
            away = (Progress(two.id, False, False, 3, 2, 0),)
            with mock.patch.object(one.storage.sync, "progress", return_value=away):
                assert not any("behind" in problem for problem in one.readiness.problems)
                assert "which is away" in str(one.storage.behind)

    asyncio.run(main())


def test_a_log_that_was_closed_is_not_the_whole_history(tmp_path: Path) -> None:
    """Its storage node goes on under a new log id, as after a restore, or a wrong clock."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one", stream=STREAM)
        async with town.open("tracker"), town.open("one") as one, town.open() as node:
            assert one.storage is not None
            store = one.storage.store
            stream = await node.open_stream(STREAM)
            for number in range(5):
                if number == 3:
                    store.new_log(time_ns())
                await stream.publish(number, durable=True)
                if number == 2:
                    old = format_offset(Offset({0: PartitionOffset(store.log, 1)}))
            new = format_offset(Offset({0: PartitionOffset(store.log, 1)}))
            found, read = await read_all(stream, new)
            assert (found, read.complete) == ([1, 2, 3, 4], True)
            found, read = await read_all(stream, old)
            assert found == [1, 2], "what the log has is given"
            assert not read.complete
            assert "another log: start at a time" in str(read.problem)
            async with stream.subscribe(start=old) as messages, asyncio.timeout(PATIENCE_S):
                assert [(await anext(messages)).content for _ in range(2)] == [1, 2]
                await until(lambda: messages.problem, PATIENCE_S)
                assert not messages.complete

    asyncio.run(main())


def test_one_of_two_under_one_key_does_not_speak_for_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", stream=STREAM)
        async with town.open("tracker"), town.open("one") as one, town.open() as node:
            stream = await node.open_stream(STREAM)
            for number in range(3):
                await stream.publish(number, durable=True)
            assert one.storage is not None
            one._session_replaced(SessionRecord(1))
            (unheard,) = await one.storage.unheard(StreamId(STREAM))  # what HTTP tells with heads
            assert unheard.node == show_node_id(one.id)
            for what in ((), (Last(2),)):
                found, read = await read_all(stream, *what)
                assert found == [0, 1, 2][-2 if what else 0 :], "what it has is told"
                assert not read.complete
                assert show_node_id(one.id) in str(read.problem)

    asyncio.run(main())
