"""What a node tells others of its streams and topics, and what it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.base.errors import NotFound, SearchUnavailable, UsageError
from shoal.base.ids import parse_stream_id, show_node_id
from shoal.config.sections import DhtSection, PeerEntry, SearchSection
from shoal.identity import SeededEntropy
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import new_meta_topic
from shoal.kernel.access import Permission
from shoal.node import Hit, NetworkFile, Node
from shoal.node.search import announcements
from shoal.node.search.announcements import Announcements
from shoal.node.search.documents import NodeDocuments, PublishedDocument
from shoal.protocols.search.documents.document import NAME_CHARS_MAX, Life
from shoal.registry.port import EVERYBODY
from tests.node.network import PATIENCE_S, free_port, network_of, open_tracker, run
from tests.node.private import PrivateTown, key_of, make_stream
from tests.node.search import FAST, Door, SearchTown, found, until_found
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

    async def delete(self, name: str) -> PublishedDocument:
        self.puts.append(("deleted", name))
        raise NotFound(f"document {name} is not found")


class Stage(Door):
    def __init__(self, *trouble: Exception) -> None:
        super().__init__()
        self.documents = Documents(*trouble)
        self.told = Announcements(self, self.documents)
        self.work: list[asyncio.Task[None]] = []

    def start(self, work: Any) -> Any:
        self.work.append(asyncio.get_running_loop().create_task(work))
        return self.work[-1]


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


def test_what_is_withdrawn_is_deleted_also_if_another_process_announced_it() -> None:
    async def main() -> None:
        stage, id = Stage(), parse_stream_id(f"{OWNER}/x")
        stage.told.stream(id, 1)
        stage.told.withdraw(id)  # before the first was done
        stage.told.stream(id, 2)
        await asyncio.gather(*stage.work)
        assert [put[2]["partitions"] for put in stage.documents.puts] == [2]
        assert stage.told.announced == [id]
        stage.told.withdraw(id)
        await asyncio.gather(*stage.work)
        stage.told.withdraw(parse_stream_id(f"{OWNER}/y"))
        await asyncio.gather(*stage.work)
        assert stage.documents.puts[1:] == [("deleted", id), ("deleted", f"{OWNER}/y")]
        assert stage.told.announced == []

    asyncio.run(main())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.search.client.SearchConfig", FAST)


@pytest.mark.usefixtures("quick")
def test_a_stream_that_is_not_public_is_announced_to_nobody(tmp_path: Path) -> None:
    """Nor is who opens it: without a registry, whoever knows its id can read it."""

    async def main() -> None:
        async with open_tracker() as tracker:
            town = SearchTown(tmp_path, "ann")

            def network(name: str) -> NetworkFile:
                return msgspec.structs.replace(
                    town.network(name), trackers=network_of(tracker).trackers
                )

            async with (
                Node.open(network("ann"), entropy=SeededEntropy("ann")) as ann,
                Node.open(network("bob"), entropy=SeededEntropy("bob")) as bob,
            ):
                secret = await ann.create_stream("/merger-with-acme")
                async with (await bob.open_stream(secret.id)).subscribe():
                    shown = await ann.create_stream("/greetings", public=True)
                    (hit,) = await until_found(bob, "kind:stream", 1)
                    await asyncio.sleep(1)
                    hits = await found(bob, "kind:stream") + await found(ann, "kind:stream")
                    assert {hit.content["id"] for hit in hits} == {shown.id}
                assert hit.content["path"] == "/greetings"

    run(main())


@pytest.mark.usefixtures("quick")
def test_a_topic_is_announced_by_its_author_alone_and_only_if_it_is_public() -> None:
    async def main() -> None:
        network = NetworkFile(dht=DhtSection(), search=SearchSection())
        async with Node.open(network) as node:
            secret = await node.create_topic("secret")
            shown = await node.create_topic("news", public=True)
            await node.topic(secret.id)
            assert await until_found(node, "kind:topic", 1)
            await asyncio.sleep(0.5)
            assert [hit.content["cid"] for hit in await found(node, "kind:topic")] == [shown.cid]
            await shown.withdraw()
            assert await found(node, "kind:topic") == []
            await secret.announce()
            assert (await until_found(node, "kind:topic name:secret", 1))[0].name == secret.cid
        async with Node.open(NetworkFile(dht=DhtSection())) as node:
            with pytest.raises(UsageError, match=r"add \[search\]"):
                await node.create_topic("news", public=True)
            topic = await node.create_topic("news")
            with pytest.raises(UsageError, match=r"add \[search\]"):
                await topic.announce()

    run(main())


@pytest.mark.usefixtures("quick")
def test_what_the_registry_shows_to_everybody_is_announced_by_its_owner_and_withdrawn(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

    async def main() -> None:
        town = PrivateTown(tmp_path)
        address = f"ws://127.0.0.1:{free_port()}"
        first = PeerEntry(show_node_id(key_of("alice").address), (address,))

        def network(name: str) -> NetworkFile:
            given = town.network(name)
            listen = (address,) if name == "alice" else given.node.listen
            node = msgspec.structs.replace(given.node, listen=listen)
            search = SearchSection(bootstrap=(first,))
            return msgspec.structs.replace(given, node=node, search=search)

        def shown(hits: list[Hit]) -> dict[str, int]:
            return {hit.content["path"]: hit.content["partitions"] for hit in hits}

        async with town.registry() as registry, town.open("tracker"):
            early = await make_stream(registry, "/early")
            await registry.grant(early, [EVERYBODY], Permission.SUBSCRIBE)
            async with Node.open(network("alice")) as alice, Node.open(network("bob")) as bob:
                hits = await until_found(bob, "kind:stream", 1)
                assert shown(hits) == {"/early": 1}, "also of before it started"
                secret = await alice.create_stream("/merger-with-acme")
                await registry.grant(secret.id, [bob.id], Permission.SUBSCRIBE)
                await bob.open_stream(secret.id)
                opened = await bob.open_stream(early)
                async with opened.subscribe():
                    await alice.create_stream("/greetings", public=True)
                    hits = await until_found(bob, "kind:stream", 2)
                    assert shown(hits) == {"/early": 1, "/greetings": 1}
                    assert {hit.owner for hit in hits} == {show_node_id(alice.id)}
                await registry.revoke(early, [EVERYBODY], Permission.SUBSCRIBE)
                async with asyncio.timeout(PATIENCE_S):
                    while set(shown(await found(bob, "kind:stream"))) != {"/greetings"}:
                        await asyncio.sleep(0.1)

    asyncio.run(main())
