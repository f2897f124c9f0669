"""Blocks that are replaced: nothing of them is believed any longer, and deep ones never are."""

from __future__ import annotations

import asyncio

import pytest

from shoal.base.errors import NotFound
from shoal.kernel.access import Permission
from shoal.registry.contract_registry import ContractRegistry
from shoal.registry.port import Answer, Change, StreamTerms
from tests.registry.stage import ALICE, BOB, Stage, on_anvil, until


async def replace_blocks(stage: Stage, depth: int) -> None:
    """The newest blocks are replaced by as many empty ones."""
    await stage.anvil.ask("anvil_reorg", depth, [])


@on_anvil
async def test_what_a_replaced_block_said_is_forgotten(stage: Stage) -> None:
    alice, other = await stage.open(ALICE), await stage.open(None)
    stream = await alice.create("/private", StreamTerms())
    await stage.anvil.mine(3)
    await alice.grant(stream, [BOB.address], Permission.PUBLISH)
    await until(lambda: other.seen.number >= alice.seen.number)
    await other.permissions(stream, BOB.address)
    assert other.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.YES
    told: list[Change] = []
    watching = asyncio.create_task(_collect(other, told))
    await asyncio.sleep(0)
    await replace_blocks(stage, 1)
    await until(lambda: other.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.UNKNOWN)
    await other.permissions(stream, BOB.address)
    assert other.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.NO
    assert await other.stream(stream) == StreamTerms()
    await until(lambda: bool(told))
    assert [change.what for change in told] == ["unknown"]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@on_anvil
async def test_a_block_counts_when_enough_follow_it(stage: Stage) -> None:
    alice = await stage.open(ALICE, finality_blocks=3)
    careful = await stage.open(None, finality_blocks=3)
    bold = await stage.open(None)
    before = bold.seen.number
    creating = asyncio.create_task(alice.create("/private", StreamTerms()))
    await until(lambda: bold.seen.number > before)
    await until(lambda: careful.seen.number == alice.seen.number == before + 1 - 3)
    assert not creating.done()
    await stage.anvil.mine(2)
    await until(lambda: careful.seen.number == alice.seen.number == before + 3 - 3)
    assert not creating.done()
    await stage.anvil.mine(1)
    stream = await creating
    await until(lambda: careful.seen.number == before + 1)
    assert await careful.stream(stream) == StreamTerms()
    # Shallower than that: nobody who waits has seen anything of it.
    revoked = asyncio.create_task(alice.delete(stream))
    await until(lambda: bold.seen.number > before + 4)
    with pytest.raises(NotFound):
        await bold.stream(stream)
    await replace_blocks(stage, 1)
    await stage.anvil.mine(1)
    assert await careful.stream(stream) == StreamTerms()
    # The transaction fell out with its block; it is sent again, and takes place once.
    while not revoked.done():
        await stage.anvil.mine(1)
        await asyncio.sleep(0.05)
    await revoked
    await until(lambda: careful.seen.number >= alice.seen.number)
    with pytest.raises(NotFound):
        await careful.stream(stream)


async def _collect(registry: ContractRegistry, told: list[Change]) -> None:
    async for change in registry.watch():
        told.append(change)  # noqa: PERF401 - it never ends
