"""A topic's subscription alone: room, grants, new versions, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.base.errors import NotFound, TopicUnavailable, UsageError
from shoal.identity import PrivateKey
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import (
    SIGNATURE_BYTES,
    Signatures,
    TopicDescriptor,
    new_meta_topic,
    new_topic,
)
from shoal.identity.topics.event_signatures import sign_event, sign_topic
from shoal.node.topics.client import NodeTopics, Source
from shoal.node.topics.subscription import TopicSubscription
from shoal.protocols.topics.commands import BEGINNING, LIVE, EventArrived
from tests.support.topics import ALICE, BOB, CREATED_MS, META_CID, TOPIC_CID, event_of, peer

DESCRIPTOR = new_meta_topic("any", peer(ALICE), CREATED_MS)


def version(parent: Cid, author: PrivateKey = ALICE, signer: PrivateKey | None = None) -> bytes:
    """The block of a topic that follows another one."""
    topic = new_topic("any", peer(author), CREATED_MS, meta=META_CID, parent=parent)
    if signer is None:
        return encode_descriptor(sign_topic(topic, author))
    forged = Signatures(signer.sign(encode_descriptor(topic))[:SIGNATURE_BYTES])
    return encode_descriptor(replace(topic, metadata=replace(topic.metadata, signatures=forged)))


SECOND = version(TOPIC_CID)
NEXT = cid_of(SECOND)
THIRD = version(NEXT)
LATER = cid_of(THIRD)


class Door(NodeTopics):
    """Writes down what a subscription asks for."""

    def __init__(self) -> None:
        self.subscribed: list[tuple[Cid, Any, int | None]] = []
        self.granted: list[int] = []
        self.gone: list[Cid] = []
        self.sources: dict[Cid, Source] = {}
        self.unknown: set[Cid] = set()
        self.waiting: dict[Cid, Cid] = {}
        self.work: list[asyncio.Task[None]] = []

    async def subscribe(self, source: Source, start: Any, credit: int | None) -> TopicDescriptor:
        self.subscribed.append((source.topic, start, credit))
        if source.topic in self.unknown:
            raise NotFound("nobody knows it")
        self.sources[source.topic] = source
        return DESCRIPTOR

    def waits_for(self, source: Source) -> Cid | None:
        return self.waiting.get(source.topic)

    async def grant(self, source: Source, events: int) -> None:
        self.granted.append(events)

    async def unsubscribe(self, source: Source) -> None:
        self.gone.append(source.topic)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.work.append(asyncio.get_running_loop().create_task(work))
        return self.work[-1]

    def tell(self, *numbers: int, topic: Cid = TOPIC_CID, gap_before: bool = False) -> None:
        for number in numbers:
            event = event_of(ALICE, b"%d" % number)
            source = self.sources[topic]
            id = cid_of(b"%d" % number)
            source.arrived(EventArrived(source, id, event, 0, gap_before))

    def meta_says(self, payload: bytes) -> None:
        source = self.sources[META_CID]
        event = event_of(ALICE, payload)
        source.arrived(EventArrived(source, cid_of(payload), event, 0))


class Stage:
    def __init__(self, *, queue_max: int = 4, follow: bool = False) -> None:
        self.door = Door()
        self.versions: list[Cid] = []
        self.events = TopicSubscription(
            self.door,
            peer(ALICE),
            queue_max=queue_max,
            follow=follow,
            on_version=lambda id, topic: self.versions.append(id),
        )

    async def begin(self, *, meta: Cid | None = META_CID, start: Any = LIVE) -> None:
        await self.events.begin(TOPIC_CID, start, meta)

    async def take(self, count: int) -> list[bytes]:
        async with asyncio.timeout(5):
            return [(await anext(self.events)).payload for _ in range(count)]


def test_it_subscribes_to_the_meta_topic_as_well_and_leaves_both() -> None:
    async def main() -> None:
        stage = Stage()
        await stage.begin(start=NEXT)
        assert stage.door.subscribed == [(META_CID, BEGINNING, None), (TOPIC_CID, NEXT, 4)]
        await stage.events.end()
        assert stage.door.gone == [META_CID, TOPIC_CID]
        alone = Stage()
        await alone.begin(meta=None)
        assert alone.door.subscribed == [(TOPIC_CID, LIVE, 4)]

    asyncio.run(main())


def test_the_machine_may_tell_more_once_half_the_queue_was_taken() -> None:
    async def main() -> None:
        stage = Stage(queue_max=4)
        await stage.begin()
        stage.door.tell(1, 2, 3, 4)
        assert stage.door.granted == [], "nobody has read anything"
        assert await stage.take(1) == [b"1"]
        assert stage.door.granted == []
        assert await stage.take(3) == [b"2", b"3", b"4"]
        assert stage.door.granted == [2, 2]
        one = Stage(queue_max=1)
        await one.begin()
        one.door.tell(1)
        await one.take(1)
        assert one.door.granted == [1]

    asyncio.run(main())


def test_an_event_says_what_it_is_and_that_something_is_missing_before_it() -> None:
    async def main() -> None:
        stage = Stage()
        await stage.begin()
        stage.door.tell(1)
        stage.door.tell(2, gap_before=True)
        first, second = await anext(stage.events), await anext(stage.events)
        assert (first.gap_before, second.gap_before) == (False, True)
        assert first.checkpoint == first.cid
        assert first.cid.startswith("zdpu")
        assert first.created.timestamp() * 1000 == CREATED_MS

    asyncio.run(main())


def test_a_new_version_is_told_and_followed_only_if_that_was_asked_for() -> None:
    async def main() -> None:
        for follow in (False, True):
            stage = Stage(follow=follow)
            await stage.begin()
            stage.door.meta_says(version(META_CID))
            assert stage.versions == [], "it is of another topic"
            stage.door.meta_says(SECOND)
            stage.door.meta_says(SECOND)
            await asyncio.gather(*stage.door.work)
            assert stage.versions == [NEXT]
            assert ((NEXT, BEGINNING, 4) in stage.door.subscribed) == follow
            stage.door.meta_says(THIRD)
            await asyncio.gather(*stage.door.work)
            assert stage.versions == [NEXT, LATER], "of ours, whether it is followed or not"
            if follow:
                stage.door.tell(7, topic=NEXT)
                stage.door.tell(8)
                assert await stage.take(2) == [b"7", b"8"]
                await stage.events.end()
                assert stage.door.gone == [META_CID, TOPIC_CID, NEXT, LATER]

    asyncio.run(main())


def test_only_the_author_makes_new_versions_and_signs_them() -> None:
    async def main() -> None:
        stage = Stage(follow=True)
        await stage.begin()
        for payload in (
            version(TOPIC_CID, BOB),
            version(TOPIC_CID, ALICE, signer=BOB),
            b"no descriptor",
            encode_descriptor(sign_event(event_of(ALICE), ALICE)),
        ):
            stage.door.meta_says(payload)
        assert stage.versions == []
        assert stage.door.work == []
        stage.door.meta_says(SECOND)
        assert stage.versions == [NEXT]
        await asyncio.gather(*stage.door.work)

    asyncio.run(main())


def test_a_version_that_cannot_be_followed_is_an_error_in_its_place() -> None:
    async def main() -> None:
        stage = Stage(follow=True)
        await stage.begin()
        stage.door.unknown.add(NEXT)
        stage.door.tell(1)
        stage.door.meta_says(SECOND)
        await asyncio.gather(*stage.door.work)
        stage.door.tell(2)
        assert await stage.take(1) == [b"1"]
        with pytest.raises(NotFound):
            await anext(stage.events)
        assert await stage.take(1) == [b"2"]

    asyncio.run(main())


def test_a_checkpoint_that_nobody_has_is_an_error_once_and_waiting_goes_on() -> None:
    async def main() -> None:
        stage = Stage()
        await stage.begin(start=NEXT)
        stage.door.waiting[TOPIC_CID] = NEXT
        assert stage.events.waits_for == show_cid(NEXT)
        for _ in range(3):
            stage.door.sources[TOPIC_CID].failed(TopicUnavailable("nobody has it"))
        with pytest.raises(TopicUnavailable):
            await stage.take(1)
        stage.door.waiting.clear()
        assert stage.events.waits_for is None
        stage.door.tell(1)
        assert await stage.take(1) == [b"1"]

    asyncio.run(main())


def test_the_end_comes_after_what_is_queued_and_wakes_who_waits() -> None:
    async def main() -> None:
        stage = Stage()
        await stage.begin()
        stage.door.tell(1)
        stage.door.sources[TOPIC_CID].ended()
        assert [event.payload async for event in stage.events] == [b"1"]
        waiting = Stage()
        await waiting.begin()
        task = asyncio.create_task(anext(waiting.events))
        await asyncio.sleep(0)
        waiting.events.close()
        with pytest.raises(StopAsyncIteration):
            await task

    asyncio.run(main())


def test_a_queue_has_room_for_one_event_at_least() -> None:
    with pytest.raises(UsageError, match="a queue of 0 events: give 1 or more"):
        TopicSubscription(Door(), peer(ALICE), queue_max=0, on_version=lambda id, topic: None)
