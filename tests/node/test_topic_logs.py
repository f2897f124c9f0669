"""The logs of topics at a storage node: every event once, whenever the node was away."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import ConfigError
from shoal.base.ids import StreamId
from shoal.identity import SeededEntropy
from shoal.identity.topics.canonical import decode_descriptor
from shoal.node import NetworkFile, Node
from shoal.node.network_file import StorageSection
from tests.node.network import run
from tests.node.topics import TopicTown
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


def test_topics_need_the_dht() -> None:
    section = StorageSection(topics=("zdpuAyTBnYSugBZhqJuLsNpzjmAjSmxDqBbtAqXMtsvxiN2v3",))
    with pytest.raises(ConfigError, match=r"storage.topics.*add \[dht\]"):
        NetworkFile(storage=section)
