"""Durable topics over sockets, later: read back, after a restart, and without their author."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.base.errors import NotFound, UsageError
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.node import ANYONE, CUSTOM, Node
from tests.node.network import run
from tests.node.topics import TopicTown, in_town, numbers, payloads, publish, take
from tests.transport.recorder import until

NAMES = ("one", "two", "three", "four", "five", "six")


# Reading back


def test_history_is_read_along_the_links_newest_first(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, reader: Node) -> None:
        topic = await author.create_topic("news")
        assert [event async for event in topic.read()] == []
        cids = await publish(topic, *numbers(10))
        assert payloads([e async for e in topic.read(limit=3)]) == [b"9", b"8", b"7"]
        theirs = await reader.topic(topic.cid)
        got = [event async for event in theirs.read(cids[4])]
        assert payloads(got) == [b"4", b"3", b"2", b"1", b"0"]
        assert (await reader.fetch_event(cids[9])).payload == b"9"
        with pytest.raises(UsageError, match="limit=0: give 1 or more"):
            await anext(topic.read(limit=0))
        other = await author.create_topic("other")
        with pytest.raises(UsageError, match=f"is of topic {topic.cid}, not {other.cid}"):
            await anext(other.read(cids[0]))
        missing = show_cid(cid_of(b"nobody has it"))
        with pytest.raises(NotFound, match=f"event {missing}: nobody who can be reached has it"):
            await reader.fetch_event(missing)

    in_town(tmp_path, scenario, *NAMES[:3])


def test_one_who_saw_nothing_reads_from_what_publishers_say_is_the_newest(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, reader: Node) -> None:
        topic = await author.create_topic("wall", publishers=ANYONE)
        theirs = await reader.topic(topic.cid)
        assert [event async for event in theirs.read()] == []
        await publish(topic, *numbers(3))
        await (await topic.publish(b"3")).stored(2)
        assert payloads([event async for event in theirs.read()]) == numbers(4)[::-1]

    in_town(tmp_path, scenario, *NAMES[:3])


def test_history_is_read_from_all_ends_of_a_topic_that_forks(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, reader: Node) -> None:
        topic = await author.create_topic("tree", publishers=ANYONE, linking=CUSTOM)
        root = await topic.publish(b"root")
        left = await topic.publish(b"left", parent=root)
        await topic.publish(b"leaf", parent=left)
        await (await topic.publish(b"right", parent=root)).stored(2)
        for who in (author, reader):
            got = [event async for event in (await who.topic(topic.cid)).read()]
            assert payloads(got) == [b"right", b"leaf", b"left", b"root"]

    in_town(tmp_path, scenario, *NAMES[:3])


# Disks


def test_one_that_was_off_reads_what_came_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        town = TopicTown(tmp_path, "first")
        async with town.open("first"), town.open("author") as author:
            topic = await author.create_topic("news")
            await publish(topic, *numbers(3))
            async with town.open("reader", disk=True) as reader:
                theirs = await reader.topic(topic.cid)
                async with theirs.subscribe("earliest") as events:
                    assert payloads(await take(events, 3)) == numbers(3)
            await publish(topic, *numbers(4, 3))
            await (await topic.publish(b"7")).stored()
            async with town.open("reader", disk=True) as reader:
                theirs = await reader.topic(topic.cid)
                assert payloads([e async for e in theirs.read(limit=3)]) == [b"7", b"6", b"5"]

    run(main())


def test_a_restart_continues_the_chain(tmp_path: Path) -> None:
    async def main() -> None:
        town = TopicTown(tmp_path, "first")
        async with town.open("first"):
            async with town.open("author", disk=True) as author:
                topic = await author.create_topic("news")
                cids = await publish(topic, *numbers(5))
            for number in (5, 6):
                async with town.open("author", disk=True) as author:
                    again = await author.topic(topic.cid)
                    assert payloads([e async for e in again.read()]) == numbers(number)[::-1]
                    event = await again.publish(b"%d" % number)
                    assert event.parent == cids[-1], "no fork"
                    cids.append(event.cid)

    run(main())


def test_what_was_stored_is_found_after_its_author_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        town = TopicTown(tmp_path, "first")
        async with town.open("first"), town.open("second"), town.open("third"):
            async with town.open("author") as author:
                topic = await author.create_topic("news")
                await publish(topic, *numbers(4))
                await (await topic.publish(b"4")).stored(replicas=3)
            async with town.open("reader") as reader:
                theirs = await reader.topic(topic.cid)
                assert payloads([e async for e in theirs.read(limit=1)]) == [b"4"]
                async with theirs.subscribe("earliest") as events:
                    assert payloads(await take(events, 5)) == numbers(5)

    run(main())


def test_a_pinned_topic_is_kept_by_a_node_that_nobody_subscribes_at(tmp_path: Path) -> None:
    async def main() -> None:
        town = TopicTown(tmp_path, "first")
        async with town.open("first") as first:
            async with town.open("author") as author:
                topic = await author.create_topic("news")
                cids = await publish(topic, *numbers(5))
                async with town.open("keeper", pinned=(topic.cid,)) as keeper:
                    held = keeper.topics.machine.topics
                    await until(lambda: topic.id in held and len(held[topic.id].log) == 5, 30)
                    assert held[topic.id].pinned
            async with town.open("keeper", disk=True) as keeper:
                kept = await keeper.topic(topic.cid)
                assert payloads([e async for e in kept.read(cids[-1])]) == numbers(5)[::-1]
                assert keeper.topics.machine.topics[topic.id].pinned
                await kept.unpin()
                assert not keeper.topics.machine.topics[topic.id].pinned
                await kept.pin()
            assert first.topics is not None

    run(main())


# Copies


def test_an_author_that_goes_on_from_an_older_copy_follows_what_it_published_since(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        town = TopicTown(tmp_path, "first")
        async with town.open("first"), town.open("second"), town.open("reader") as reader:
            async with town.open("author", disk=True) as author:
                topic = await author.create_topic("news")
                await publish(topic, *numbers(3))
                await (await topic.publish(b"3")).stored(2)
            shutil.copytree(tmp_path / "topics-author", tmp_path / "backup")
            async with town.open("author", disk=True) as author:
                topic = await author.topic(topic.cid)
                await publish(topic, b"4")
                last = await topic.publish(b"5")
                await last.stored(2)
            shutil.rmtree(tmp_path / "topics-author")
            (tmp_path / "backup").rename(tmp_path / "topics-author")
            theirs = await reader.topic(topic.cid)
            async with theirs.subscribe(start=last.checkpoint) as events:
                async with town.open("author", disk=True) as author:
                    again = await (await author.topic(topic.cid)).publish(b"6")
                    assert again.parent == last.cid
                    (event,) = await take(events, 1)
                assert (event.payload, event.gap_before) == (b"6", False)

    run(main())
