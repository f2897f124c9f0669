"""Durable topics over sockets: who may publish in them, and what is said if it cannot be done."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from shoal.base.errors import NotFound, TopicUnavailable, UsageError
from shoal.base.units import MS_NS, S_NS
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.node import ANYONE, CUSTOM, NOBODY, Node
from shoal.protocols.topics.config import TopicsConfig
from tests.node.network import run
from tests.node.topics import TopicTown, in_town, payloads, publish, take

NAMES = ("one", "two", "three", "four", "five", "six")


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
    monkeypatch.setattr(
        "shoal.node.topics.client.TopicsConfig", partial(TopicsConfig, beat_ns=S_NS)
    )

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


# What goes wrong


def test_fewer_replicas_than_asked_for_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shoal.protocols.topics.replication.RETRY_NS", 50 * MS_NS
    )  # not for a minute

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
    monkeypatch.setattr("shoal.node.topics.client.JOIN_TIMEOUT_S", 0.5)

    async def main() -> None:
        town = TopicTown(tmp_path, "away")
        async with town.open("lonely") as node:
            complaint = r"no bootstrap node within 0\.5 s \(0x[0-9a-f]{40}: .*\[\[dht\.bootstrap"
            with pytest.raises(TopicUnavailable, match=complaint):
                await node.create_topic("news")

    run(main())
