"""Who may read a stream, and their public keys, in both kinds of registries."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from shoal.base.errors import RegistryRefused
from shoal.base.ids import StreamId, show_node_id
from shoal.kernel.access import Permission
from shoal.registry.config import RegistrySection
from shoal.registry.contract_registry import (
    StreamReader,
    audience,
    members,
    public_keys,
    put_public_key,
)
from shoal.registry.opening import open_registry
from shoal.registry.port import EVERYBODY, FOREVER, StreamTerms
from tests.registry.stage import ALICE, BOB, CAROL, Stage, address, on_every_registry, until


@on_every_registry
async def test_readers_are_those_who_may_read_now(stage: Stage) -> None:
    alice, other = await stage.open(ALICE), await stage.open(BOB)
    stream = await alice.create("/private", StreamTerms())
    soon_s = int(time.time()) + 1000
    await alice.grant(stream, [BOB.address], Permission.SUBSCRIBE, soon_s)
    await alice.grant(stream, [CAROL.address], Permission.PUBLISH)
    await alice.grant(stream, [address(7), address(8)], Permission.SUBSCRIBE)
    await alice.revoke(stream, [address(7)], Permission.SUBSCRIBE)
    await alice.grant(stream, [address(7)], Permission.EDIT)
    assert await members(alice, stream) == [BOB.address, CAROL.address, address(7), address(8)]
    await put_public_key(alice, BOB.public)  # anybody may, not only its owner
    found = await audience(alice, stream)
    assert not found.is_public
    assert found.readers == (
        StreamReader(ALICE.address, FOREVER),
        StreamReader(BOB.address, soon_s, BOB.public),
        StreamReader(address(8), FOREVER),
    )
    await alice.grant(stream, [EVERYBODY], Permission.SUBSCRIBE, soon_s)
    found = await audience(alice, stream)
    assert (found.is_public, found.until_s, found.readers) == (True, soon_s, ())
    await alice.delete(stream)
    await alice.create("/private", StreamTerms())
    assert await members(alice, stream) == []
    await until(lambda: other.seen.number >= alice.seen.number)
    assert await public_keys(other, [CAROL.address, BOB.address]) == {BOB.address: BOB.public}


@on_every_registry
async def test_the_list_goes_on_over_pages(stage: Stage) -> None:
    alice = await stage.open(ALICE)
    stream = await alice.create("/many", StreamTerms())
    everyone = [address(number) for number in range(1000, 1100)]
    for begin in (0, 64):
        await alice.grant(stream, everyone[begin : begin + 64], Permission.SUBSCRIBE)
    assert await members(alice, stream) == everyone


@on_every_registry
async def test_a_key_belongs_to_one_address_only(stage: Stage) -> None:
    alice = await stage.open(ALICE)
    x, y = CAROL.public.coordinates()
    await alice.do("put_public_key", x, y + 1)  # no point of the curve: the key of nobody
    assert await public_keys(alice, [CAROL.address]) == {}
    await put_public_key(alice, CAROL.public)
    before = alice.seen.number
    await put_public_key(alice, CAROL.public)
    assert alice.seen.number == before  # known: nothing is paid for
    assert await public_keys(alice, [CAROL.address]) == {CAROL.address: CAROL.public}
    with pytest.raises(RegistryRefused):
        await alice.ask("members", ALICE.address, "x" * 214, 0)  # longer than any path


def test_a_registry_of_before_lists_nobody_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyrevm", reason="no EVM is made for this Python")
    (tmp_path / "registry").mkdir()
    golden = Path(__file__).parents[1] / "golden" / "registry-v1.blocks"
    shutil.copy(golden, tmp_path / "registry" / "blocks")

    async def main() -> None:
        registry = await open_registry(RegistrySection(folder="registry"), tmp_path, ALICE)
        stream = StreamId(f"{show_node_id(ALICE.address)}/golden")
        found = await audience(registry, stream)
        assert found.readers == (StreamReader(ALICE.address, FOREVER),)
        with pytest.raises(RegistryRefused, match="has no room for it"):
            await put_public_key(registry, BOB.public)
        await registry.close()

    asyncio.run(main())


def test_an_endpoint_that_gives_another_key_is_not_believed() -> None:
    class Liar:
        async def ask(self, function: str, *arguments: object) -> object:
            return [CAROL.public.coordinates(), (1, 1)]

    whom = [BOB.address, CAROL.address]
    assert asyncio.run(public_keys(Liar(), whom)) == {}  # type: ignore[arg-type]
