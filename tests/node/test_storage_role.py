"""Nodes with a [storage] section, on loopback."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec
import pytest

from shoal.base.errors import HistoryUnavailable
from shoal.base.ids import StreamId
from shoal.base.units import S_NS
from shoal.config.sections import NodeSection, StorageSection, TrackerSection
from shoal.gateway.endpoints.metrics import gauges_of
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.node import Last, NetworkFile, Node
from shoal.node.roles import storage
from shoal.storage.errors import StoreFull, StoreGone, StoreInUse
from shoal.storage.message_store.layout import place_of, tail_of
from shoal.storage.message_store.store import Store
from tests.node.network import contents, run, take
from tests.node.storage import StorageTown, until_stored, until_taken_in

STREAM = "0x" + "ab" * 20 + "/city/vehicles"


def contents_of(store: Store, stream: str) -> list[bytes]:
    return [row.signed for page in store.range(stream, 0) for row in page]  # type: ignore[arg-type]


def test_what_is_published_is_kept_and_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", stream=STREAM)
        async with town.open("tracker") as tracker, town.open() as alice:
            stream = await alice.open_stream(STREAM)
            async with town.open("one") as keeper:
                assert keeper.storage is not None
                assert list(keeper.storage.streams) == [STREAM]
                await until_taken_in(keeper, tracker, STREAM, alice)
                for number in range(50):
                    await stream.publish(number)
                await until_stored(keeper, 50)
                before = contents_of(keeper.storage.store, STREAM)
                log = keeper.storage.store.log
            async with town.open("one") as keeper:
                assert keeper.storage is not None
                assert keeper.storage.store.log == log
                assert contents_of(keeper.storage.store, STREAM) == before
                await until_taken_in(keeper, tracker, STREAM, alice)
                await stream.publish("one more")
                await until_stored(keeper, 51)

    run(main())


def test_a_node_kept_for_all_joins_a_stream_when_a_publisher_wants_it_kept(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        async with town.open("tracker") as tracker, town.open() as alice:
            stream = await alice.open_stream(STREAM)
            async with town.open("one") as keeper:
                assert keeper.storage is not None
                assert list(keeper.storage.streams) == []
                await stream.publish("durable", durable=True)
                assert list(keeper.storage.streams) == [STREAM]
                assert keeper.storage.store.info().messages == 1
                assert alice.host.connections[keeper.id].peer.roles == ("node", "storage")
                await until_taken_in(keeper, tracker, STREAM, alice)
                await stream.publish("and now by itself")
                await until_stored(keeper, 2)
            async with town.open("one") as keeper:
                assert keeper.storage is not None
                assert list(keeper.storage.streams) == [STREAM]  # for it holds it

    run(main())


def test_two_storage_nodes_end_up_with_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with AsyncExitStack() as stack:
            tracker = await stack.enter_async_context(town.open("tracker"))
            alice = await stack.enter_async_context(town.open())
            one = await stack.enter_async_context(town.open("one"))
            stream = await alice.open_stream(STREAM)
            await until_taken_in(one, tracker, STREAM, alice)
            for number in range(30):
                await stream.publish(number)
            await until_stored(one, 30)
            two = await stack.enter_async_context(town.open("two"))
            await until_stored(two, 30)
            assert one.storage is not None
            assert two.storage is not None
            assert set(contents_of(one.storage.store, STREAM)) == set(
                contents_of(two.storage.store, STREAM)
            )
            for store in (one.storage.store, two.storage.store):
                store.check_invariants()

    run(main())


def test_a_node_kept_for_all_keeps_what_somebody_publishes(tmp_path: Path) -> None:
    """Nobody says durable, and the messages are there before storage has heard of the stream."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        async with town.open("tracker"), town.open("one") as keeper, town.open() as alice:
            assert keeper.storage is not None
            stream = await alice.open_stream(STREAM)
            for number in range(100):
                await stream.publish(number)
            await until_stored(keeper, 100)
            assert [m.content async for m in stream.read()] == list(range(100))
            ours = await keeper.open_stream(STREAM + "/own")
            await ours.publish("of the storage node itself")
            await until_stored(keeper, 101)

    run(main())


def test_streams_that_one_node_of_all_was_told_of_come_to_the_other(tmp_path: Path) -> None:
    """The publisher is gone before the second storage node is there; and the metrics say so."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two")
        async with town.open("one") as one:
            async with town.open("tracker"), town.open() as alice:
                for number in range(3):
                    stream = await alice.open_stream(f"{STREAM}/{number}")
                    await stream.publish(number, durable=True)
            async with town.open("tracker"), town.open("two") as two:
                await until_stored(two, 3)
                async with asyncio.timeout(20):
                    while any(gauge.value for gauge in gauges_of(one)):
                        await asyncio.sleep(0.02)
                names = [gauge.name for gauge in gauges_of(one)]
                assert "storage_single_copies" in names
                assert one.storage is not None
                assert two.storage is not None
                for number in range(3):
                    id = f"{STREAM}/{number}"
                    assert contents_of(one.storage.store, id) == contents_of(two.storage.store, id)

    run(main())


def test_a_silent_tracker_stops_neither_durable_messages_nor_history(tmp_path: Path) -> None:
    """Its links are up, and it says nothing: as if it were stopped by a signal."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        async with (
            town.open("tracker") as tracker,
            town.open("one"),
            town.open() as alice,
            town.open() as bob,
        ):
            assert tracker.tracker is not None
            known = await alice.open_stream(STREAM)
            await known.publish(0)
            with mock.patch.object(tracker.tracker, "handle", return_value=[]):
                async with asyncio.timeout(20):
                    for number in range(1, 20):
                        await known.publish(number, durable=True)
                    fresh = await alice.open_stream(STREAM + "/fresh")
                    await fresh.publish("new", durable=True)
                    theirs = await bob.open_stream(fresh.id)
                    assert [m.content async for m in theirs.read()] == ["new"]
                    read = [m.content async for m in known.read()]
                    assert read[-19:] == list(range(1, 20))
            async with theirs.subscribe() as live:  # and it goes on as if nothing had been
                await fresh.publish("after")
                got = contents(await take(live, 1))
                assert got[-1] in ("new", "after")

    run(main())


def test_a_storage_node_that_is_new_does_not_speak_for_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with AsyncExitStack() as stack:
            tracker = await stack.enter_async_context(town.open("tracker"))
            one = await stack.enter_async_context(town.open("one"))
            reader = await stack.enter_async_context(town.open())
            stream = await reader.open_stream(STREAM)
            async with town.open() as alice:
                publishing = await alice.open_stream(STREAM)
                await until_taken_in(one, tracker, STREAM, alice)
                for number in range(300):
                    await publishing.publish(number)
                await until_stored(one, 300)
            # Its own node is the first that it asks.
            two = await stack.enter_async_context(town.open("two"))
            at_two = await two.open_stream(STREAM)
            for read in (at_two, stream):
                assert [m.content async for m in read.read()] == list(range(300))
                assert [m.content async for m in read.read(Last(5))] == list(range(295, 300))

    run(main())


def test_a_full_disk_is_told_and_the_node_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", stream=STREAM)
        async with (
            town.open("tracker") as tracker,
            town.open() as alice,
            town.open("one") as keeper,
        ):
            assert keeper.storage is not None
            stream = await alice.open_stream(STREAM)
            await until_taken_in(keeper, tracker, STREAM, alice)
            full = mock.patch.object(
                keeper.storage.store, "append", side_effect=StoreFull("the disk is full")
            )
            with full:
                for number in range(5):
                    await stream.publish(number)
                async with asyncio.timeout(10):
                    while keeper.storage.problem is None:
                        await asyncio.sleep(0.01)
                assert keeper.storage.problem == "the disk is full"
            await stream.publish("room again")
            async with asyncio.timeout(10):
                while keeper.storage.problem is not None:
                    await asyncio.sleep(0.01)
            assert keeper.storage.store.info().messages >= 1

    run(main())
    assert caplog.text.count("nothing can be stored: the disk is full") == 1


def test_a_store_in_use_is_said_at_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", stream=STREAM)
        async with town.open("one"):
            with pytest.raises(StoreInUse, match="is open in this process"):
                async with town.open("one"):
                    raise AssertionError("two nodes have one store")

    run(main())


def test_retention_is_as_the_section_says() -> None:
    config = storage.store_config(StorageSection(days_max=1.5, gigabytes_max=2.0))
    assert config.retention.age_ns == 36 * 3600 * S_NS
    assert config.retention.size_bytes_max == 2_000_000_000
    large = storage.store_config(StorageSection(gigabytes_max=5_000.0))
    assert large.map_bytes_max >= 10_000_000_000_000


def test_a_storage_node_may_subscribe_and_publish_too(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", stream=STREAM)
        async with (
            town.open("tracker") as tracker,
            town.open() as alice,
            town.open("one") as keeper,
        ):
            theirs = await alice.open_stream(STREAM)
            ours = await keeper.open_stream(STREAM)
            async with ours.subscribe() as messages:
                await until_taken_in(keeper, tracker, STREAM, alice)
                for number in range(5):
                    await theirs.publish(number)
                await ours.publish("our own")
                got = contents(await take(messages, 6))
                assert [content for content in got if content != "our own"] == [0, 1, 2, 3, 4]
            await until_stored(keeper, 6)
            await theirs.publish("nobody subscribes, but it is kept")
            await until_stored(keeper, 7)

    run(main())


# A store that is there once


def town_with_key(folder: Path, create: bool | None = None) -> NetworkFile:
    """The file of a storage node with a key on disk."""
    keystore = folder / "keys" / "node.key"
    if not keystore.exists():
        keystore.parent.mkdir(parents=True)
        entropy = SeededEntropy("keeper")
        key = PrivateKey.generate(entropy)
        cost = ScryptCost(n=2, r=1, p=1)
        create_keystore(keystore, key, "", entropy, cost=cost, allow_empty_passphrase=True)
    return NetworkFile(
        node=NodeSection(key="keys/node.key", listen=("ws://127.0.0.1:0",)),
        tracker=TrackerSection(),
        storage=StorageSection(create=create),
        folder=str(folder),
    )


def starts(network: NetworkFile) -> UUID:
    """The log of a node that starts and stops."""

    async def main() -> UUID:
        async with Node.open(network) as node:
            assert node.storage is not None
            return node.storage.store.log

    return asyncio.run(main())


def test_a_store_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    network = town_with_key(tmp_path)
    log = starts(network)
    assert starts(network) == log
    data, moved = tmp_path / "store", tmp_path / "unmounted"
    data.rename(moved)
    refusal = r"no store in .*store, and none is made, .*had one there: .*create = true"
    with pytest.raises(StoreGone, match=refusal):
        starts(network)
    data.mkdir()  # a place to mount a disk at, and none is
    with pytest.raises(StoreGone, match=refusal):
        starts(network)
    (data / "data.mdb").touch()
    with pytest.raises(StoreGone, match=refusal):
        starts(network)
    assert sorted(file.name for file in data.iterdir()) == ["data.mdb"], "nothing was made"
    shutil.rmtree(data)
    moved.rename(data)
    assert starts(network) == log


def test_a_folder_that_was_moved_as_a_whole_is_the_same_node(tmp_path: Path) -> None:
    log = starts(town_with_key(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    assert starts(town_with_key(tmp_path / "b")) == log
    shutil.rmtree(tmp_path / "b" / "store")
    with pytest.raises(StoreGone):
        starts(town_with_key(tmp_path / "b"))


def test_a_file_may_say_that_a_store_is_made_or_never_made(tmp_path: Path) -> None:
    with pytest.raises(StoreGone, match="create = false says so"):
        starts(town_with_key(tmp_path, create=False))
    assert not (tmp_path / "store").exists()
    log = starts(town_with_key(tmp_path))
    shutil.rmtree(tmp_path / "store")
    assert starts(town_with_key(tmp_path, create=True)) != log, "as containers need"


def test_a_key_in_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = town_with_key(tmp_path)

    def refuse(path: Path, text: str) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    starts(network)
    assert "made anew without a word: write create = false under [storage]" in caplog.text


def test_streams_without_a_row_make_room_for_others(tmp_path: Path) -> None:
    """Somebody joins streams in which nothing is ever published."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        few = mock.patch.object(storage, "ROWLESS_MAX", 3)
        async with town.open("tracker"), town.open("one") as keeper:
            assert keeper.storage is not None
            streams = keeper.storage.streams
            with few:
                async with town.open() as alice:
                    used = await alice.open_stream(STREAM)
                    await used.publish(1)
                    await until_stored(keeper, 1)
                    for number in range(6):
                        await alice.join(f"{STREAM}/{number}")
                    last = f"{STREAM}/5"
                    async with asyncio.timeout(20):
                        while last not in streams:
                            await asyncio.sleep(0.02)
                    assert len(streams) == 4
                    assert STREAM in streams  # it has a row
                    assert keeper._streams is not None
                    async with asyncio.timeout(20):
                        while len(keeper._streams.streams) > 4:
                            await asyncio.sleep(0.02)

    run(main())


def test_when_names_are_scarce_those_without_rows_are_used_again(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        async with town.open("tracker"), town.open("one") as keeper, town.open() as alice:
            assert keeper.storage is not None
            machine, store = keeper.storage.machine, keeper.storage.store
            for number in range(3):
                stream = await alice.open_stream(f"{STREAM}/{number}")
                await stream.publish(number, durable=True)
            few = msgspec.structs.replace(machine.config, streams_max=3)
            quota = msgspec.structs.replace(machine.quota.quotas, names_max=3)
            with (
                mock.patch.object(machine, "config", few),
                mock.patch.object(machine.quota, "quotas", quota),
                mock.patch.object(store, "forget_empty", return_value=[]) as forget,
            ):
                another = await alice.open_stream(f"{STREAM}/another")
                with pytest.raises(HistoryUnavailable, match="too-many-streams"):
                    await another.publish("x", durable=True)
                # Retention has let go of their rows.
                forget.return_value = [StreamId(f"{STREAM}/{number}") for number in range(3)]
                keeper.storage._looked_ns = 0
                await another.publish("x", durable=True)
                assert len(keeper.storage.streams) == 4  # they are kept still

    run(main())


def test_a_read_says_that_a_damaged_row_is_missing(tmp_path: Path) -> None:
    """The last of its chain too, which no gap shows."""

    async def main() -> None:
        town = StorageTown(tmp_path, "one", stream=STREAM)
        async with town.open("tracker"), town.open("one") as keeper, town.open() as alice:
            stream = await alice.open_stream(STREAM)
            for number in range(10):
                await stream.publish(number, durable=True)
            assert keeper.storage is not None
            store = keeper.storage.store
            rows = [row for page in store.range(StreamId(STREAM), 0) for row in page]
            kept = store._database.tables.messages

            def hurt(txn: Any) -> None:
                for row in (rows[4], rows[9]):
                    key = place_of(0, 0) + tail_of(row.id)
                    value = txn.get(key, db=kept)
                    txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=kept)

            store._database.write(hurt)
            async with town.open() as reader:
                reading = (await reader.open_stream(STREAM)).read()
                got = [message.content async for message in reading]
            assert got == [0, 1, 2, 3, 5, 6, 7, 8]
            assert not reading.complete
            assert keeper.storage.problem is not None
            assert "2 damaged rows" in keeper.storage.problem

    run(main())
