"""Durable topics over sockets: published, subscribed to, and followed to a new version."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from shoal.base.errors import TopicUnavailable, UsageError
from shoal.base.units import S_NS
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.node import ANYONE, Node
from shoal.protocols.topics.config import TopicsConfig
from tests.node.topics import in_town, numbers, payloads, publish, take
from tests.transport.recorder import until

NAMES = ("one", "two", "three", "four", "five", "six")


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
    monkeypatch.setattr("shoal.node.topics.client.TopicsConfig", hasty)

    async def scenario(one: Node, author: Node, other: Node) -> None:
        topic = await author.create_topic("news")
        await publish(topic, *numbers(3))
        gone = show_cid(cid_of(b"gone"))
        async with (await other.topic(topic.cid)).subscribe(start=gone) as events:
            with pytest.raises(TopicUnavailable, match=f"{gone}, the checkpoint: iterate on"):
                await take(events, 1)
            assert events.waits_for == gone

    in_town(tmp_path, scenario, *NAMES[:3])


def test_a_checkpoint_of_another_topic_is_refused(tmp_path: Path) -> None:
    async def scenario(one: Node, author: Node, other: Node) -> None:
        topic, wrong = await author.create_topic("news"), await author.create_topic("weather")
        event = await wrong.publish(b"rain")
        await event.stored()
        refused = f"start={event.cid} is an event of topic {wrong.cid}, not of {topic.cid}"
        for node in (author, other):
            async with (await node.topic(topic.cid)).subscribe(start=event) as events:
                with pytest.raises(UsageError, match=refused):
                    await take(events, 1)

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
