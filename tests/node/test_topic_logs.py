"""The logs of topics at a storage node: every event once, whenever the node was away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import ConfigError
from shoal.base.ids import StreamId, show_node_id
from shoal.config.sections import DhtSection, PeerEntry, StorageSection, StreamSettings
from shoal.config.stream_settings import Terms
from shoal.identity import SeededEntropy
from shoal.identity.topics.cid import Cid, cid_of, show_cid
from shoal.identity.topics.descriptor_codec import decode_descriptor, encode_descriptor
from shoal.identity.topics.descriptors import EventDescriptor, EventMetadata
from shoal.identity.topics.event_signatures import publish_event, sign_event
from shoal.node import Event, NetworkFile, Node
from shoal.node.roles.storage import StorageRole, TopicLogs
from tests.node.network import run
from tests.node.topics import TopicTown
from tests.support.topics import ALICE, BOB, TOPIC_CID, peer
from tests.transport.recorder import until


def payloads(node: Node, topic: str) -> list[bytes]:
    """What the log of a topic has."""
    logs = node.topic_logs
    assert logs is not None
    page = logs.store.log_read(logs.store.log, StreamId(topic), 0, 0, 100)
    assert [row.seq for row in page.rows] == list(range(1, len(page.rows) + 1))
    return [decode_descriptor(row.signed).payload for row in page.rows]  # type: ignore[union-attr]


def test_events_that_came_while_it_was_away_are_appended_and_none_twice(tmp_path: Path) -> None:
    async def main() -> None:
        town = TopicTown(tmp_path, "author")
        async with AsyncExitStack() as stack:
            author = await stack.enter_async_context(town.open("author"))
            topic = await author.create_topic("city/delays")
            section = StorageSection(folder="store", topics=(topic.cid,))
            network = msgspec.structs.replace(town.network("storage"), storage=section)
            said: list[bytes] = []
            for number in range(2):
                for payload in (b"a%d" % number, b"b%d" % number):
                    await topic.publish(payload)
                    said.append(payload)
                async with Node.open(network, entropy=SeededEntropy("storage")) as storage:
                    logs = storage.topic_logs
                    assert logs is not None
                    assert logs.keeps(StreamId(topic.cid))
                    await until(lambda s=storage: held(s, topic.cid) == len(said), 60)  # type: ignore[misc]
                    assert payloads(storage, topic.cid) == said

    run(main())


def held(node: Node, topic: str) -> int:
    logs = node.topic_logs
    assert logs is not None
    return logs.store.heads(StreamId(topic), 0)[logs.store.log].last


def test_what_is_from_another_time_is_left_out_and_an_event_is_one_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stamp of next year would push the watermark of all queries, and retention's horizon."""
    now_ms = time.time_ns() // 1_000_000
    placed = [
        published(b"late", now_ms - 3_600_000),
        published(b"next year", now_ms + 365 * 86_400_000),
        published(b"1950", -600_000_000_000),
        published(b"early", now_ms + 30_000),
        published(b"late", now_ms - 3_600_000, parent=cid_of(b"another")),
    ]
    section = StorageSection(folder="store", topics=(show_cid(TOPIC_CID),))
    network = NetworkFile(storage=section, dht=DhtSection(), folder=str(tmp_path))
    role = StorageRole(Terms(network), section, ALICE.address, SeededEntropy("x"))
    logs = TopicLogs(role, section)
    topic = StreamId(show_cid(TOPIC_CID))
    events = [Event(cid_of(encode_descriptor(one)), one) for one in placed]

    async def main() -> None:
        await logs._append(topic, events)
        await logs.close()

    asyncio.run(main())
    rows = role.store.log_read(role.store.log, topic, 0, 0, 10).rows
    assert [row.signed for row in rows] == [encode_descriptor(placed[n]) for n in (0, 3)]
    assert (logs.left_out, caplog.text.count("is left out")) == (2, 2)
    role.store.close()


def test_the_event_loop_does_not_wait_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its map may be growing, and then a look into it waits for the disk."""
    section = StorageSection(folder="store", topics=(show_cid(TOPIC_CID),))
    network = NetworkFile(storage=section, dht=DhtSection(), folder=str(tmp_path))
    role = StorageRole(Terms(network), section, ALICE.address, SeededEntropy("x"))
    logs = TopicLogs(role, section)
    asked: list[tuple[str, bool]] = []

    def noted(name: str, done: Callable[..., object], *args: object) -> object:
        asked.append((name, threading.current_thread() is threading.main_thread()))
        return done(*args)

    for name in ("stream_heads", "append"):
        monkeypatch.setattr(role.store, name, partial(noted, name, getattr(role.store, name)))
    event = published(b"one", time.time_ns() // 1_000_000)

    async def main() -> None:
        await logs._append(StreamId(show_cid(TOPIC_CID)), [Event(cid_of(b"x"), event)])
        await logs.close()

    asyncio.run(main())
    assert asked == [("stream_heads", False), ("append", False)]
    role.store.close()


def published(payload: bytes, created_ms: int, parent: Cid | None = None) -> EventDescriptor:
    event = EventDescriptor(TOPIC_CID, peer(ALICE), payload, EventMetadata(created_ms))
    return publish_event(sign_event(event, ALICE), BOB if parent else ALICE, parent)


def test_nobody_can_have_a_message_kept_in_a_topic_s_place(tmp_path: Path) -> None:
    """Where a node keeps whatever stream it is asked to, the CID of a topic is no stream."""
    id = show_node_id(ALICE.address)
    network = NetworkFile(
        storage_nodes=(PeerEntry(id, ("ws://127.0.0.1:1",)),),
        streams=(StreamSettings(storage=(id,)),),
        folder=str(tmp_path),
    )
    role = StorageRole(Terms(network), StorageSection(), ALICE.address, SeededEntropy("x"))
    assert role.keeps(StreamId(f"{id}/any"))
    assert not role.keeps(StreamId(show_cid(TOPIC_CID)))
    role.store.close()


def test_topics_need_the_dht() -> None:
    section = StorageSection(topics=("zdpuAyTBnYSugBZhqJuLsNpzjmAjSmxDqBbtAqXMtsvxiN2v3",))
    with pytest.raises(ConfigError, match=r"storage.topics.*add \[dht\]"):
        NetworkFile(storage=section)
