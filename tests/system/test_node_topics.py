"""Durable topics over sockets: nodes of one event loop, on loopback."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from shoal.base.errors import NotFound, TopicUnavailable, UsageError
from shoal.base.units import MS_NS, S_NS
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.node import ANYONE, CUSTOM, NOBODY, Node, Topic
from shoal.protocols.topics.config import TopicsConfig
from tests.node.network import run
from tests.node.topics import TopicTown, in_town, payloads, take
from tests.transport.recorder import until

NAMES = ("one", "two", "three", "four", "five", "six")


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + count)]


async def publish(topic: Topic, *contents: bytes) -> list[str]:
    return [(await topic.publish(content)).cid for content in contents]


# Publishing and subscribing


def test_a_late_subscriber_gets_everything_in_order_and_then_what_comes(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, *others: Node) -> None:
        topic = await author.create_topic("news")
        assert await topic.stored(replicas=5) >= 5
        cids = await publish(topic, *numbers(50))
        last = await topic.publish(b"the last")
        assert await last.stored(replicas=5) == 5
        found = await others[-1].topic(topic.cid)
        assert (found.name, found.author, found.cid) == ("news", author.peer_id, topic.cid)
        assert found.descriptor == topic.descriptor
        async with found.subscribe(start="earliest") as events:
            got = await take(events, 51)
            assert payloads(got) == [*numbers(50), b"the last"]
            assert [event.cid for event in got] == [*cids, last.cid]
            assert [event.parent for event in got] == [None, *cids]
            assert {event.author for event in got} == {author.peer_id}
            assert {event.publisher for event in got} == {author.peer_id}
            assert not any(event.gap_before for event in got)
            await topic.publish(b"live")
            assert payloads(await take(events, 1)) == [b"live"]

    in_town(tmp_path, scenario, *NAMES)


def test_without_a_start_only_what_comes_is_told(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, other: Node) -> None:
        topic = await author.create_topic("news")
        await publish(topic, b"early")
        async with (await other.topic(topic.cid)).subscribe() as events:
            await until(lambda: len(author.topics.machine.topics[topic.id].tree.children) == 1, 20)
            await publish(topic, *numbers(10))
            got = payloads(await take(events, 10))
            # What is a minute old may be told as new: clocks of others are not exact.
            assert [content for content in got if content != b"early"][:9] == numbers(9)

    in_town(tmp_path, scenario, *NAMES[:3])


def test_one_who_stopped_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, other: Node) -> None:
        topic = await author.create_topic("news")
        await publish(topic, *numbers(20))
        theirs = await other.topic(topic.cid)
        async with theirs.subscribe(start="earliest") as events:
            checkpoint = (await take(events, 7))[-1].checkpoint
        await publish(topic, *numbers(5, 20))
        async with theirs.subscribe(start=checkpoint) as events:
            assert payloads(await take(events, 18)) == numbers(18, 7)

    in_town(tmp_path, scenario, *NAMES[:3])


def test_a_checkpoint_that_nobody_has_is_waited_for_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = partial(TopicsConfig, gap_patience_ns=S_NS, want_timeout_ns=S_NS // 4)
    monkeypatch.setattr("shoal.node.topic_role.TopicsConfig", hasty)

    async def scenario(one: Node, author: Node, other: Node) -> None:
        topic = await author.create_topic("news")
        await publish(topic, *numbers(3))
        gone = show_cid(cid_of(b"gone"))
        async with (await other.topic(topic.cid)).subscribe(start=gone) as events:
            with pytest.raises(TopicUnavailable, match=f"{gone}, the checkpoint: iterate on"):
                await take(events, 1)
            assert events.waits_for == gone

    in_town(tmp_path, scenario, *NAMES[:3])


def test_a_slow_application_loses_nothing(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, other: Node) -> None:
        topic = await author.create_topic("news")
        theirs = await other.topic(topic.cid)
        async with (
            theirs.subscribe(start="earliest", queue_max=4) as slow,
            theirs.subscribe(start="earliest") as quick,
        ):
            await publish(topic, *numbers(200))
            assert payloads(await take(quick, 200)) == numbers(200)
            assert len(slow._queue) == 4, "the rest waits where it is kept"
            got = await take(slow, 200)
            assert payloads(got) == numbers(200)
            assert not any(event.gap_before for event in got)

    in_town(tmp_path, scenario, *NAMES[:3])


def test_what_limits_take_before_it_was_read_is_told_as_a_gap(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, other: Node) -> None:
        topic = await author.create_topic("news")
        async with (await other.topic(topic.cid)).subscribe("earliest", queue_max=2) as events:
            sent = [number + bytes(10_000) for number in numbers(100)]
            last = (await publish(topic, *sent))[-1]
            log = other.topics.machine.topics[topic.id].log
            await until(lambda: log.last is not None and show_cid(log.last) == last, 20)
            got = await take(events, 3)
            while got[-1].cid != last:
                got += await take(events, 1)
        assert payloads(got[:2]) == sent[:2], "these were in the queue"
        assert [event.gap_before for event in got] == [
            False,
            False,
            True,
            *[False] * (len(got) - 3),
        ]
        assert payloads(got[2:]) == sent[-len(got[2:]) :]
        assert 10 < len(got) < 40

    in_town(tmp_path, scenario, *NAMES[:3], megabytes_max=0.3)


def test_the_author_subscribes_to_its_own_topic(tmp_path: Path) -> None:
    async def scenario(alone: Node) -> None:
        topic = await alone.create_topic("diary")
        await publish(topic, *numbers(3))
        for _ in range(2):
            async with topic.subscribe(start="earliest") as events:
                assert payloads(await take(events, 3)) == numbers(3)

    in_town(tmp_path, scenario, "one")


# Who may


def test_one_who_may_not_publish_asks_one_who_may(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, guest: Node) -> None:
        topic = await author.create_topic("letters")
        asked = await guest.topic(topic.cid)
        async with topic.subscribe(start="earliest") as events:
            event = await asked.publish(b"dear editor")
            (got,) = await take(events, 1)
        assert got == event
        assert (got.author, got.publisher) == (guest.peer_id, author.peer_id)

    in_town(tmp_path, scenario, *NAMES[:3])


def test_where_nobody_may_ask_publishing_is_refused_at_once(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, guest: Node) -> None:
        topic = await author.create_topic("closed", requests=NOBODY)
        theirs = await guest.topic(topic.cid)
        with pytest.raises(UsageError, match=f"{guest.peer_id}, may neither publish nor ask"):
            await theirs.publish(b"dear editor")
        with pytest.raises(UsageError, match="only its author makes new versions"):
            await theirs.new_version()
        listed = await author.create_topic("listed", publishers=[guest.peer_id], requests=NOBODY)
        event = await (await guest.topic(listed.cid)).publish(b"as agreed")
        assert event.publisher == guest.peer_id

    in_town(tmp_path, scenario, *NAMES[:3])


def test_anyone_publishes_and_all_get_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who joins its tree after an event was sent on finds it when neighbours compare.
    monkeypatch.setattr("shoal.node.topic_role.TopicsConfig", partial(TopicsConfig, beat_ns=S_NS))

    async def scenario(*nodes: Node) -> None:
        cid = (await nodes[1].create_topic("wall", publishers=ANYONE)).cid
        topics = [await node.topic(cid) for node in nodes]
        async with topics[0].subscribe("earliest") as one, topics[3].subscribe("earliest") as two:
            await asyncio.gather(
                *[publish(t, *[b"%d/%d" % (i, n) for n in range(10)]) for i, t in enumerate(topics)]
            )
            expected = sorted(b"%d/%d" % (i, n) for i in range(len(nodes)) for n in range(10))
            for events in (one, two):
                got = await take(events, len(expected))
                assert sorted(payloads(got)) == expected
                told: set[str | None] = {None}
                for event in got:
                    assert event.parent in told, "an event comes after the one that it follows"
                    told.add(event.cid)

    in_town(tmp_path, scenario, *NAMES)


def test_under_custom_linking_the_publisher_says_what_its_event_follows(tmp_path: Path) -> None:
    async def scenario(author: Node) -> None:
        topic = await author.create_topic("tree", linking=CUSTOM)
        root = await topic.publish(b"root")
        left = await topic.publish(b"left", parent=root)
        right = await topic.publish(b"right", parent=root.cid)
        assert (root.parent, left.parent, right.parent) == (None, root.cid, root.cid)
        with pytest.raises(TopicUnavailable, match=r"not published: nobody has an event zdpu"):
            await topic.publish(b"nowhere", parent=show_cid(cid_of(b"unheard of")))
        chain = await author.create_topic("chain")
        with pytest.raises(UsageError, match=r"give no parent, or create it with linking=shoal\."):
            await chain.publish(b"x", parent=root)

    in_town(tmp_path, scenario, "one")


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


# Versions


def test_a_new_version_is_announced_and_followed_by_who_wants_to(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, follower: Node) -> None:
        first = await author.create_topic("news", sub_topics={})
        await publish(first, b"1")
        theirs = await follower.topic(first.cid)
        async with theirs.subscribe(start="earliest", follow=True) as events:
            assert payloads(await take(events, 1)) == [b"1"]
            second = await first.new_version(publishers=ANYONE, sub_topics={"old": first})
            assert second.descriptor.parent == first.id
            assert second.descriptor.sub_topic("meta") == first.descriptor.sub_topic("meta")
            await publish(second, b"2")
            (event,) = await take(events, 1)
            assert (event.payload, event.topic) == (b"2", second.cid)
            assert theirs.newer is not None
            assert theirs.newer.cid == second.cid
            third = await second.new_version()
            await publish(third, b"3")
            await publish(first, b"still there")
            got = sorted(payloads(await take(events, 2)))
            assert got == [b"3", b"still there"]
        late = await one.topic(first.cid)
        async with late.subscribe(start="earliest", follow=True) as events:
            got = sorted(payloads(await take(events, 4)))
            assert got == [b"1", b"2", b"3", b"still there"], "versions of the past, too"

    in_town(tmp_path, scenario, *NAMES[:3])


# Disks


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


# What goes wrong


def test_fewer_replicas_than_asked_for_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.protocols.topics.storing.RETRY_NS", 50 * MS_NS)  # not for a minute

    async def scenario(one: Node, two: Node) -> None:
        topic = await one.create_topic("news")
        event = await topic.publish(b"x")
        assert await event.stored() == 1
        with pytest.raises(TopicUnavailable, match=r"is kept by 1 other nodes, not by 2") as caught:
            await topic.stored(replicas=2)
        assert caught.value.replicas == 1
        for replicas in (0, 21):
            with pytest.raises(UsageError, match=f"replicas={replicas}: give 1 to 20"):
                await event.stored(replicas)

    in_town(tmp_path, scenario, "one", "two")


def test_a_topic_that_nobody_knows_is_named(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node) -> None:
        missing = show_cid(cid_of(b"no topic"))
        with pytest.raises(NotFound, match=f"topic {missing}: neither this node nor the DHT"):
            await two.topic(missing)
        event = await (await one.create_topic("news")).publish(b"x")
        with pytest.raises(NotFound, match="neither this node nor the DHT"):
            await two.topic(event.cid)
        with pytest.raises(UsageError, match="is not the CID of a topic"):
            await two.topic("news")

    in_town(tmp_path, scenario, "one", "two")


def test_a_closed_node_says_so_and_ends_its_subscriptions(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node) -> None:
        topic = await two.create_topic("news")
        async with topic.subscribe() as events:
            waiting = asyncio.create_task(anext(events))
            asking = asyncio.create_task(two.fetch_event(show_cid(cid_of(b"nobody has it"))))
            await asyncio.sleep(0)
            await two.close()
            with pytest.raises(StopAsyncIteration):
                await waiting
            with pytest.raises((UsageError, NotFound)):
                await asking
        for call in (topic.publish(b"x"), topic.pin(), two.create_topic("x"), two.topic(topic.cid)):
            with pytest.raises(UsageError, match="this node is closed: open another one"):
                await call

    in_town(tmp_path, scenario, "one", "two")


def test_a_node_that_meets_nobody_says_whom_it_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.topics.JOIN_TIMEOUT_S", 0.5)

    async def main() -> None:
        town = TopicTown(tmp_path, "away")
        async with town.open("lonely") as node:
            complaint = r"no bootstrap node within 0\.5 s \(0x[0-9a-f]{40}: .*\[\[dht\.bootstrap"
            with pytest.raises(TopicUnavailable, match=complaint):
                await node.create_topic("news")

    run(main())
