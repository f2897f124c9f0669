"""What a node tells others of its streams and topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.base.errors import SearchUnavailable, UsageError
from shoal.base.ids import parse_stream_id
from shoal.identity.topics.canonical import encode_descriptor
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.identity.topics.descriptors import new_meta_topic
from shoal.node import announcements
from shoal.node.announcements import Announcements
from shoal.node.documents import NodeDocuments, PublishedDocument
from shoal.protocols.search.documents import NAME_CHARS_MAX, Life
from tests.node.search import Door
from tests.support.topics import ALICE, CREATED_MS, peer

OWNER = "0x" + "ab" * 20


class Documents(NodeDocuments):
    """Writes down what is put, after some trouble."""

    def __init__(self, *trouble: Exception) -> None:
        self.puts: list[tuple[Any, ...]] = []
        self.trouble = list(trouble)

    async def put(
        self, content: Any, life: Life, name: str | None, lasts: Any, kind: str
    ) -> PublishedDocument:
        if self.trouble:
            raise self.trouble.pop(0)
        self.puts.append((kind, name, content, life, lasts))
        return PublishedDocument(b"", OWNER, name or "", 1, 1)


class Stage(Door):
    def __init__(self, *trouble: Exception) -> None:
        super().__init__()
        self.documents = Documents(*trouble)
        self.told = Announcements(self, self.documents)
        self.work: list[asyncio.Task[None]] = []

    def start(self, work: Any) -> None:
        self.work.append(asyncio.get_running_loop().create_task(work))


def test_a_stream_is_told_once_with_what_is_known_of_it() -> None:
    async def main() -> None:
        stage, id = Stage(), parse_stream_id(f"{OWNER}/city/vehicles")
        stage.told.stream(id, 4)
        stage.told.stream(id, 4)
        await asyncio.gather(*stage.work)
        content = {"id": id, "owner": OWNER, "path": "/city/vehicles", "partitions": 4}
        assert stage.documents.puts == [("stream", id, content, "managed", None)]

    asyncio.run(main())


def test_a_long_stream_has_a_name_of_its_own() -> None:
    async def main() -> None:
        stage = Stage()
        for end in "ab":
            stage.told.stream(parse_stream_id(f"{OWNER}/{'x' * 150}{end}"), 1)
        await asyncio.gather(*stage.work)
        names = {put[1] for put in stage.documents.puts}
        assert len(names) == 2
        assert {len(name) for name in names} == {NAME_CHARS_MAX}

    asyncio.run(main())


def test_a_topic_is_told_by_its_cid_and_found_by_its_name() -> None:
    async def main() -> None:
        stage, topic = Stage(), new_meta_topic("news", peer(ALICE), CREATED_MS)
        id = cid_of(encode_descriptor(topic))
        stage.told.topic(id, topic)
        await asyncio.gather(*stage.work)
        ((kind, name, content, _, _),) = stage.documents.puts
        assert (kind, name, content["cid"]) == ("topic", show_cid(id), show_cid(id))
        assert content["name"] == topic.name
        assert set(content) == {"name", "cid", "author", "created"}

    asyncio.run(main())


def test_a_network_that_is_not_there_is_tried_again_and_a_mistake_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(announcements, "RETRY_S", 0.01)

    async def main() -> None:
        id = parse_stream_id(f"{OWNER}/x")
        stage = Stage(SearchUnavailable("alone"), SearchUnavailable("alone"))
        stage.told.stream(id, 1)
        await asyncio.gather(*stage.work)
        assert len(stage.documents.puts) == 1
        wrong = Stage(UsageError("too long"))
        wrong.told.stream(id, 1)
        await asyncio.gather(*wrong.work)
        assert wrong.documents.puts == []

    asyncio.run(main())
    assert f"stream {OWNER}/x cannot be found by others: too long" in caplog.text
