"""Durable messages that storage nodes do not confirm: kept by their publisher, and tried again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from shoal.base.errors import HistoryUnavailable, NotFound
from shoal.base.ids import MessageId, StreamId
from shoal.config.network_file import NetworkFile
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.identity.message_body import decode_body
from shoal.node.node import Node
from shoal.node.streams import publishing
from shoal.node.streams.publishing import UnkeptMessages
from shoal.node.streams.stream import Stream
from tests.node.network import contents, run, take
from tests.node.storage import StorageTown, until_stored
from tests.support.history import history

STREAM = "0x" + "ab" * 20 + "/city/vehicles"
SOON = mock.patch.object(publishing, "PAUSE_S", 0.05)


async def fails(stream: Stream, content: Any) -> MessageId:
    """Publish what no storage node confirms; the id under which it waits."""
    with pytest.raises(HistoryUnavailable, match="tries again") as raised:
        await stream.publish(content, durable=True)
    assert raised.value.message is not None
    return raised.value.message


def ids_of(node: Node) -> list[MessageId]:
    assert node.storage is not None
    store = node.storage.store
    return [row.id for page in store.range(StreamId(STREAM), 0) for row in page]


@SOON
def test_what_was_published_while_storage_was_away_comes_to_it_under_its_id(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        async with town.open("tracker"), town.open() as alice, town.open() as bob:
            stream = await alice.open_stream(STREAM)
            async with (await bob.open_stream(STREAM)).subscribe() as live:
                id = await fails(stream, 1)
                assert contents(await take(live, 1)) == [1]  # it was published all the same
            assert alice.unkept is not None
            assert alice.unkept.waiting == 1
            async with town.open("one") as keeper:
                assert await stream.retry(id) == id
                assert ids_of(keeper) == [id]
                assert alice.unkept.waiting == 0
                assert await stream.retry(id) == id  # whoever is late hears the same

    run(main())


@SOON
def test_nobody_has_to_ask_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        async with town.open("tracker"), town.open() as alice:
            stream = await alice.open_stream(STREAM)
            id = await fails(stream, 1)
            async with town.open("one") as keeper:
                await until_stored(keeper, 1)
                assert ids_of(keeper) == [id]

    run(main())


def with_key(town: StorageTown, folder: Path) -> NetworkFile:
    """The file of a publisher whose key is in a file."""
    path, entropy = folder / "alice.key", SeededEntropy("alice")
    if not path.exists():
        key, cost = PrivateKey.generate(entropy), ScryptCost(n=2, r=1, p=1)
        create_keystore(path, key, "", entropy, cost=cost, allow_empty_passphrase=True)
    network = town.network()
    node = msgspec.structs.replace(network.node, key=str(path))
    return msgspec.structs.replace(network, node=node)


@SOON
def test_it_survives_its_publisher(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        network = with_key(town, tmp_path)
        file = tmp_path / "alice.key.unkept"
        async with town.open("tracker"):
            async with Node.open(network) as alice:
                stream = await alice.open_stream(STREAM)
                id = await fails(stream, "before the crash")
                copy = file.read_bytes()
            file.write_bytes(copy)  # as a crash would have left it
            assert os.stat(file).st_mode & 0o077 == 0
            async with Node.open(network) as alice, town.open("one") as keeper:
                assert alice.unkept is not None
                assert alice.unkept.waiting == 1
                await until_stored(keeper, 1)
                assert ids_of(keeper) == [id]
                async with asyncio.timeout(20):
                    while alice.unkept.waiting:
                        await asyncio.sleep(0.02)
            async with Node.open(network) as alice:
                assert alice.unkept is not None
                assert alice.unkept.waiting == 0

    asyncio.run(main())


def test_a_command_that_is_soon_over_hands_in_what_an_earlier_one_left(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        network = with_key(town, tmp_path)
        async with town.open("tracker"):
            async with Node.open(network) as alice:
                id = await fails(await alice.open_stream(STREAM), 1)
            async with town.open("one") as keeper, Node.open(network):
                async with asyncio.timeout(publishing.PAUSE_S / 2):
                    await until_stored(keeper, 1)
                assert ids_of(keeper) == [id]

    asyncio.run(main())


# The file, and what is tried


class Storage:
    """Storage nodes that take what they are told to take."""

    def __init__(self) -> None:
        self.takes = False
        self.refuses: list[bytes] = []
        self.kept: list[bytes] = []

    async def keep(self, stream: StreamId, signed: bytes, copies: int) -> None:
        await asyncio.sleep(0)
        if signed in self.refuses:
            raise HistoryUnavailable("no-permission", refused=True)
        if not self.takes:
            raise HistoryUnavailable("nobody is there")
        self.kept.append(signed)


def id_of(signed: bytes) -> MessageId:
    return decode_body(signed).id


async def opened(storage: Storage, path: Path, add: Sequence[bytes] = ()) -> UnkeptMessages:
    messages = UnkeptMessages(storage.keep)
    messages.open(path)
    for signed in add:
        assert messages.add(id_of(signed), signed, 1)
    await messages.flushed()
    return messages


def test_a_record_that_a_crash_cut_off_loses_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        path, storage, signed = tmp_path / "unkept", Storage(), history(3)
        await (await opened(storage, path, signed)).close()
        whole = path.read_bytes()
        for cut in (1, 7, 40):
            path.write_bytes(whole[:-cut])
            messages = await opened(storage, path)
            assert messages.waiting == 2
            assert messages.add(id_of(signed[2]), signed[2], 1)
            await messages.close()
            again = await opened(storage, path)
            assert again.waiting == 3
            await again.close()

    asyncio.run(main())


def test_a_write_that_failed_half_way_hides_nothing_that_follows(tmp_path: Path) -> None:
    async def main() -> None:
        path, storage, signed = tmp_path / "unkept", Storage(), history(3)
        messages = await opened(storage, path, signed[:1])
        write = os.write

        def full(descriptor: int, data: bytes) -> int:
            write(descriptor, bytes(data)[:10])
            raise OSError(28, "No space left on device")

        with mock.patch.object(os, "write", full):
            assert messages.add(id_of(signed[1]), signed[1], 1)
            await messages.flushed()
        assert messages.add(id_of(signed[2]), signed[2], 1)
        await messages.close()
        again = await opened(storage, path)
        assert again.waiting == 3
        await again.close()

    asyncio.run(main())


def test_a_damaged_record_costs_no_other_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        path, storage, signed = tmp_path / "unkept", Storage(), history(4)
        await (await opened(storage, path, signed)).close()
        whole = path.read_bytes()
        at = whole.index(signed[1]) + 80
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        path.write_bytes(damaged)
        messages = await opened(storage, path)
        assert messages.waiting == 3
        assert "not as they were written" in caplog.text
        assert (tmp_path / "unkept.damaged").read_bytes() == damaged
        caplog.clear()
        await messages.flushed()
        await messages.close()
        again = await opened(storage, path)
        assert (again.waiting, caplog.text) == (3, "")
        await again.close()

    asyncio.run(main())


def test_a_publisher_is_told_on_disk_only_what_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        network = with_key(town, tmp_path)
        async with town.open("tracker"), Node.open(network) as alice:
            stream = await alice.open_stream(STREAM)

            def full(descriptor: int, data: bytes) -> int:
                raise OSError(28, "No space left on device")

            with (
                mock.patch.object(os, "write", full),
                pytest.raises(HistoryUnavailable, match=r"in memory, for .* cannot be written"),
            ):
                await stream.publish(1, durable=True)
            with pytest.raises(HistoryUnavailable, match="on disk in"):
                await stream.publish(2, durable=True)

    asyncio.run(main())


def test_what_is_kept_leaves_the_file_and_the_rest_stays(tmp_path: Path) -> None:
    async def main() -> None:
        path, storage, signed = tmp_path / "unkept", Storage(), history(4)
        messages = await opened(storage, path, signed)
        storage.takes = True
        await messages.retry(id_of(signed[1]))
        with pytest.raises(NotFound, match="does not wait"):
            await messages.retry(id_of(history(5)[4]))
        await messages.close()
        again = await opened(storage, path)
        assert again.waiting == 3
        for one in (signed[0], *signed[2:]):
            await again.retry(id_of(one))
        await again.close()
        assert len(path.read_bytes()) < 100
        assert sorted(storage.kept) == sorted(signed)

    asyncio.run(main())


@SOON
def test_what_storage_refuses_for_good_is_given_up_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        storage, signed = Storage(), history(5)
        storage.refuses, storage.takes = signed[:4], True
        messages = await opened(storage, tmp_path / "unkept", signed)
        messages.start()
        async with asyncio.timeout(10):
            while messages.waiting:
                await asyncio.sleep(0.01)
        assert (messages.dropped, storage.kept) == (4, signed[4:])
        await messages.close()

    asyncio.run(main())


def test_there_is_no_room_for_any_number(tmp_path: Path) -> None:
    async def main() -> None:
        storage, signed = Storage(), history(3)
        with mock.patch.object(publishing, "MESSAGES_MAX", 2):
            messages = await opened(storage, tmp_path / "unkept", signed[:2])
            assert not messages.add(id_of(signed[2]), signed[2], 1)
            assert messages.add(id_of(signed[0]), signed[0], 1)  # it is there
            assert (messages.waiting, messages.dropped) == (2, 1)
            await messages.close()

    asyncio.run(main())


def test_a_file_of_another_format_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "unkept"
        path.write_bytes(b"shoal unkept messages 9\nsomething")
        messages = await opened(Storage(), path, history(1))
        await messages.close()
        assert (tmp_path / "unkept.unreadable").read_bytes().endswith(b"something")
        assert (await opened(Storage(), path)).waiting == 1

    asyncio.run(main())
