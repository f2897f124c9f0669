"""The embedded chain on disk: durable, shared by processes, whole or refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import (
    ConfigError,
    NotFound,
    RegistryDamaged,
    RegistryRefused,
    ShoalError,
    UsageError,
)
from shoal.base.ids import Contact, StreamId, show_node_id
from shoal.identity import SeededEntropy
from shoal.kernel.access import Permission
from shoal.registry.block_file import MAGIC, BlockFile
from shoal.registry.chain import NonceTaken
from shoal.registry.config import RegistrySection
from shoal.registry.opening import deploy_registry, open_registry
from shoal.registry.port import FOREVER, Directory, StreamTerms
from tests.registry.stage import ADMIN, ALICE, BOB

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")
from shoal.registry.embedded import EmbeddedChain

SECTION = RegistrySection(folder="registry", poll_s=0.02)
# What a process of its own does until it is killed: makes streams, and says so of each.
WRITER = """
import asyncio, sys
from pathlib import Path
from shoal.identity import PrivateKey, SeededEntropy
from shoal.registry.config import RegistrySection
from shoal.registry.opening import open_registry
from shoal.registry.port import StreamTerms

async def main(folder, name):
    key = PrivateKey.generate(SeededEntropy(name))
    registry = await open_registry(RegistrySection(folder="registry"), Path(folder), key)
    for n in range(100_000):
        print(await registry.create(f"/{n}", StreamTerms(metadata="m" * 500)), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """The file of a registry with three streams."""

    async def fill() -> None:
        await deploy_registry(SECTION, tmp_path, ADMIN, SeededEntropy("chain"))
        registry = await open_registry(SECTION, tmp_path, ALICE)
        for name in "abc":
            await registry.create(f"/{name}", StreamTerms(metadata=name * 100))
        await registry.close()

    asyncio.run(fill())
    return tmp_path / "registry" / "blocks"


def streams(folder: Path, *names: str) -> list[str]:
    """Which of these streams of Alice's there are, after the file was opened again."""

    async def read() -> list[str]:
        registry = await open_registry(SECTION, folder, None)
        found = []
        for name in names:
            try:
                await registry.stream(StreamId(f"{show_node_id(ALICE.address)}/{name}"))
            except NotFound:
                continue
            found.append(name)
        await registry.close()
        return found

    return asyncio.run(read())


def write(folder: Path, path: str) -> None:
    async def create() -> None:
        registry = await open_registry(SECTION, folder, ALICE)
        await registry.create(path, StreamTerms())
        await registry.close()

    asyncio.run(create())


def test_a_registry_is_made_once_and_found_again(blocks: Path, tmp_path: Path) -> None:
    assert streams(tmp_path, "a", "b", "c", "d") == ["a", "b", "c"]
    before = blocks.read_bytes()
    with pytest.raises(UsageError, match=r"there is a registry .* already"):
        asyncio.run(deploy_registry(SECTION, tmp_path, ADMIN, SeededEntropy("other")))
    assert blocks.read_bytes() == before
    assert [file.name for file in blocks.parent.iterdir()] == ["blocks"]
    assert blocks.stat().st_mode & 0o077 == 0


def test_a_registry_of_the_first_format_is_read_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    golden = Path(__file__).parents[1] / "golden" / "registry-v1.blocks"
    shutil.copy(golden, tmp_path / "registry" / "blocks")

    async def main() -> None:
        registry = await open_registry(SECTION, tmp_path, ALICE)
        stream = StreamId(f"{show_node_id(ALICE.address)}/golden")
        terms = StreamTerms('{"v": 1}', 4, 6, (BOB.address,))
        assert await registry.stream(stream) == terms
        permissions = await registry.permissions(stream, BOB.address)
        assert permissions.expiries_s == (0, 0, FOREVER, 0, 0)
        contacts = (Contact(BOB.address, ("ws://127.0.0.1:7700",)),)
        assert await registry.nodes(Directory.TRACKERS) == contacts
        await registry.edit(stream, StreamTerms())
        await registry.close()

    asyncio.run(main())


def test_no_registry_is_said_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="make one with `shoal registry deploy`"):
        streams(tmp_path)


def test_a_torn_end_is_cut_off_wherever_it_was_torn(blocks: Path, tmp_path: Path) -> None:
    whole = blocks.read_bytes()
    write(tmp_path, "/d")
    longer = blocks.read_bytes()
    assert longer.startswith(whole)
    for end in range(len(whole) + 1, len(longer), 17):
        blocks.write_bytes(longer[:end])
        assert streams(tmp_path, "c", "d") == ["c"]
        assert blocks.stat().st_size == end, "reading changes nothing"
    write(tmp_path, "/e")
    assert streams(tmp_path, "c", "d", "e") == ["c", "e"]
    # A file system may have given room for the record, and none of its content.
    blocks.write_bytes(whole + bytes(100))
    write(tmp_path, "/f")
    assert streams(tmp_path, "c", "e", "f") == ["c", "f"]


def changed_bytes(whole: bytes) -> Iterator[bytes]:
    for place in range(0, len(whole) - 600, 397):
        changed = bytearray(whole)
        changed[place] ^= 0x40
        yield bytes(changed)


def test_a_changed_byte_is_found_and_nothing_is_cut(blocks: Path, tmp_path: Path) -> None:
    for changed in changed_bytes(blocks.read_bytes()):
        blocks.write_bytes(changed)
        with pytest.raises(RegistryDamaged, match="restore a copy"):
            streams(tmp_path)
        assert blocks.read_bytes() == changed


def forge_transaction(payloads: list[bytes]) -> None:
    payloads[-1] = payloads[-1].replace(b"c" * 100, b"x" * 100)


def forge_log(payloads: list[bytes]) -> None:
    record = msgspec.msgpack.decode(payloads[-1])
    record[-1][0][2] = record[-1][0][2].replace(b"c", b"x")
    payloads[-1] = msgspec.msgpack.encode(record)


def leave_out(payloads: list[bytes]) -> None:
    del payloads[-2]


def put_in(payloads: list[bytes]) -> None:
    payloads.append(payloads[-1])


@pytest.mark.parametrize("forge", [forge_transaction, forge_log, leave_out, put_in])
def test_a_forged_block_is_found_though_its_checksum_is_right(
    blocks: Path, tmp_path: Path, forge: Callable[[list[bytes]], None]
) -> None:
    """Whoever can write the file cannot say what others did not sign."""
    file = BlockFile(blocks)
    payloads = list(file.read_new())
    file.close()
    before = list(payloads)
    forge(payloads)
    assert payloads != before
    blocks.write_bytes(MAGIC)
    forged = BlockFile(blocks)
    with forged.writing():
        for payload in payloads:
            forged.append(payload)
    forged.close()
    with pytest.raises(RegistryDamaged, match=r"is damaged in block \d"):
        streams(tmp_path)


def test_a_python_without_an_evm_is_told_what_to_do(
    blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "shoal.registry.embedded")
    monkeypatch.setitem(sys.modules, "pyrevm", None)
    with pytest.raises(ConfigError, match=r"needs the package pyrevm.*on a chain"):
        streams(tmp_path)


def test_something_else_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "blocks").write_bytes(b"shoal registry 2\nmore")
    with pytest.raises(RegistryDamaged, match="upgrade Shoal"):
        streams(tmp_path)


def test_a_transaction_takes_place_once_on_one_chain(blocks: Path, tmp_path: Path) -> None:
    async def main() -> None:
        registry = await open_registry(SECTION, tmp_path, ALICE)
        chain = registry.chain
        data = b"\x99\x69\x59\x26"  # delete_stream, without arguments
        with pytest.raises(RegistryRefused):
            await chain.sign(ALICE, registry.contract, data)
        one = await chain.sign(ALICE, None, b"")
        two = await chain.sign(ALICE, None, b"\x00")
        await chain.send(one)
        await chain.send(one)
        with pytest.raises(NonceTaken):
            await chain.send(two)
        other = EmbeddedChain.create(tmp_path / "other", SeededEntropy("other"))
        with pytest.raises(RegistryRefused, match="signed for chain"):
            await other.send(one)
        await other.close()
        await registry.close()

    asyncio.run(main())


def test_a_full_disk_changes_nothing(
    blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        registry = await open_registry(SECTION, tmp_path, ALICE)

        def fail(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fail)
            with pytest.raises(ShoalError, match="nothing was changed: free some room"):
                await registry.create("/d", StreamTerms())
        with pytest.raises(NotFound):
            await registry.stream(StreamId(f"{show_node_id(ALICE.address)}/d"))
        stream = await registry.create("/d", StreamTerms())
        await registry.grant(stream, [BOB.address], Permission.PUBLISH)
        await registry.close()

    asyncio.run(main())
    assert streams(tmp_path, "c", "d") == ["c", "d"]


def test_processes_that_are_killed_lose_nothing_they_were_told(
    blocks: Path, tmp_path: Path
) -> None:
    """Two write at once, with keys of their own, and are killed in the middle of it."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, name], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    told: list[str] = []
    for writer in writers:
        assert writer.stdout is not None
        told += [writer.stdout.readline() for _ in range(3)]  # it is in the middle of it
    for writer in writers:
        time.sleep(0.2)
        writer.send_signal(signal.SIGKILL)
        told += writer.communicate()[0].splitlines(keepends=True)
    whole = [line.strip() for line in told if line.endswith("\n")]
    assert len(whole) >= 2 * 3

    async def check() -> None:
        registry = await open_registry(SECTION, tmp_path, ALICE)
        for stream in whole:
            assert (await registry.stream(StreamId(stream))).metadata == "m" * 500
        await registry.create("/after", StreamTerms())
        await registry.close()

    asyncio.run(check())
