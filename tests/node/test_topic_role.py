"""The topics role: limits from the file, disks beside each other, and a DHT of real nodes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import lmdb
import msgspec
import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import show_node_id
from shoal.config.sections import DhtSection, NodeSection, TopicsSection
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import NetworkFile, Node
from shoal.node.topics.client import TopicRole
from shoal.protocols.dht.config import K
from shoal.protocols.topics.config import TopicsConfig
from shoal.storage.errors import StoreDamaged, StoreError, StoreInUse
from tests.node.network import run
from tests.node.storage import StorageTown, until_stored, until_taken_in
from tests.node.topics import TopicTown, in_town, payloads, take

KEY = PrivateKey.generate(SeededEntropy("role"))


def role(
    listen: tuple[str, ...] = ("ws://127.0.0.1:0",),
    dht: DhtSection | None = None,
    topics: TopicsSection | None = None,
    folder: Path = Path(),
) -> TopicRole:
    section = dht or DhtSection()
    network = NetworkFile(
        NodeSection(listen=listen), dht=section, topics=topics, folder=str(folder)
    )
    return TopicRole(network, section, KEY, Random(1))


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        (("ws://127.0.0.1:0",), True),
        (("ws://127.3.2.1:0", "ws://[::1]:1", "ws://localhost:2"), True),
        (("ws://192.0.2.1:1",), False),
        (("ws://127.0.0.1:0", "ws://node.example:1"), False),
    ],
)
def test_nodes_of_one_machine_may_fill_a_table_and_no_others(
    listen: tuple[str, ...], local: bool
) -> None:
    config = role(listen).dht.config
    assert (config.prefix_bucket_max, config.prefix_table_max >= 10_000) == (
        (K, True) if local else (2, False)
    )
    told = role(listen, DhtSection(prefix_bucket_max=5, prefix_table_max=50)).dht.config
    assert (told.prefix_bucket_max, told.prefix_table_max) == (5, 50)


def test_what_the_file_says_of_topics_is_what_the_machine_goes_by(tmp_path: Path) -> None:
    section = TopicsSection("t", days_max=2, megabytes_max=1.5, children_max=3)
    made = role(topics=section, folder=tmp_path)
    config = made.machine.config
    assert config.age_max_ns == 2 * 86_400 * 10**9
    assert config.events_bytes_max == 1_500_000
    assert config.children_max == 3
    for disk in made.disks(made.machines).values():
        disk.close()
    assert role().machine.config.children_max == TopicsConfig().children_max


def test_nodes_on_loopback_know_each_other_all(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(14)]

    async def scenario(*nodes: Node) -> None:
        event = await (await nodes[5].create_topic("news")).publish(b"x")
        assert await event.stored(replicas=12) >= 12, "more than a prefix has elsewhere"

    in_town(tmp_path, scenario, *names)


def test_a_node_without_a_dht_says_what_is_missing() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            with pytest.raises(UsageError, match=r"not in the DHT: add \[dht\] to its network"):
                await node.create_topic("news")

    run(main())


# Disks


def test_a_storage_node_with_topics_has_both_disks_and_neither_mixes_them_up(
    tmp_path: Path,
) -> None:
    stream = "0x" + "ab" * 20 + "/city/vehicles"

    async def main() -> None:
        town = StorageTown(tmp_path, "keeper", stream=stream)
        both = msgspec.structs.replace(
            town.network("keeper"), dht=DhtSection(), topics=TopicsSection()
        )
        async with town.open("tracker") as tracker, town.open() as alice:
            cid = ""
            for number in range(2):
                async with Node.open(both, entropy=SeededEntropy("keeper")) as keeper:
                    published = await alice.open_stream(stream)
                    topic = await (keeper.topic(cid) if cid else keeper.create_topic("news"))
                    cid = topic.cid
                    await topic.publish(b"%d" % number)
                    await until_taken_in(keeper, tracker, stream, alice)
                    await published.publish(number)
                    await until_stored(keeper, number + 1)
                    got = [event async for event in topic.read()]
                    assert payloads(got) == [b"1", b"0"][1 - number :]

    run(main())


def test_a_folder_that_cannot_be_used_leaves_no_other_one_locked(tmp_path: Path) -> None:
    town = StorageTown(tmp_path, "keeper")
    (tmp_path / "file").write_text("no folder")
    broken = msgspec.structs.replace(
        town.network("keeper"), dht=DhtSection(), topics=TopicsSection(folder="file")
    )

    async def main() -> None:
        with pytest.raises(StoreError, match="file is a file: name a folder"):
            async with Node.open(broken, entropy=SeededEntropy("keeper")):
                raise AssertionError("never reached")
        async with town.open("keeper"):
            pass

    run(main())


def test_a_folder_has_one_node_at_a_time_and_no_other_ever(tmp_path: Path) -> None:
    town = TopicTown(tmp_path, "one")

    async def main() -> None:
        async with town.open("one", disk=True) as one:
            with pytest.raises(StoreInUse):
                async with town.open("one", disk=True):
                    raise AssertionError("never reached")
            owner = show_node_id(one.id)
        async with AsyncExitStack() as stack:
            network = town.network("one", disk=True)
            with pytest.raises(StoreError, match=f"belongs to node {owner}, .*name another"):
                await stack.enter_async_context(
                    Node.open(network, entropy=SeededEntropy("another"))
                )

    run(main())


@pytest.mark.parametrize("key", [b"s", b"t"])
def test_a_damaged_folder_is_not_taken_for_a_new_one(tmp_path: Path, key: bytes) -> None:
    town = TopicTown(tmp_path, "one")
    folder = tmp_path / "one-topics"

    async def main() -> None:
        network = msgspec.structs.replace(
            town.network("one", disk=True), topics=TopicsSection(folder=str(folder))
        )
        entropy = SeededEntropy("one")
        async with Node.open(network, entropy=entropy) as one:
            topic = await one.create_topic("news")
            await topic.publish(b"kept")
        with lmdb.open(str(folder), max_dbs=8) as file:
            values = file.open_db(b"key-values")
            with file.begin(write=True) as txn, txn.cursor(values) as cursor:
                assert cursor.set_range(b"topics\0" + key)
                found, value = cursor.item()
                assert found.startswith(b"topics\0" + key)
                cursor.put(found, bytes([*value[:-1], value[-1] ^ 1]))
        with pytest.raises(StoreDamaged, match="not as it was written: restore a copy"):
            async with Node.open(network, entropy=SeededEntropy("one")):
                raise AssertionError("never reached")
        with lmdb.open(str(folder), max_dbs=8) as file:  # it is not locked
            values = file.open_db(b"key-values")
            with file.begin(write=True) as txn:
                txn.put(found, value, db=values)
        async with Node.open(network, entropy=SeededEntropy("one")) as one:
            events = [event async for event in (await one.topic(topic.cid)).read()]
            assert payloads(events) == [b"kept"]

    run(main())


def test_without_a_folder_topics_are_in_memory(tmp_path: Path) -> None:
    async def scenario(alone: Node) -> None:
        topic = await alone.create_topic("news")
        async with topic.subscribe("earliest") as events:
            await topic.publish(b"x")
            assert payloads(await take(events, 1)) == [b"x"]

    in_town(tmp_path, scenario, "one")
    assert list(tmp_path.iterdir()) == []
