"""The chain stops and comes back: what goes on meanwhile, what is refused, and why."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.base.errors import NotFound, RegistryRefused, RegistryUnavailable
from shoal.base.ids import show_node_id
from shoal.base.units import S_NS
from shoal.kernel.access import Permission
from shoal.registry.port import Answer, StreamTerms
from tests.registry.stage import ALICE, BOB, CAROL, Stage, address, on_anvil, until


@on_anvil
async def test_what_is_known_counts_for_its_time_and_is_refused_then(stage: Stage) -> None:
    alice = await stage.open(ALICE, staleness_s=3.0, request_s=1.0)
    stream = await alice.create("/private", StreamTerms())
    await alice.grant(stream, [BOB.address], Permission.PUBLISH)
    await alice.permissions(stream, BOB.address)
    stage.anvil.freeze()
    await asyncio.sleep(0.5)
    # Known: goes on. Not known: cannot be asked for. To be changed: refused at once.
    assert alice.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.YES
    known = await alice.verdict(stream, BOB.address)
    assert (known.permissions, known.problem) == (Permission.PUBLISH, "")
    assert known.until_ns < time.time_ns() + 3 * S_NS
    assert (await alice.permissions(stream, BOB.address)).holds(Permission.PUBLISH, time.time())
    with pytest.raises(RegistryUnavailable, match="no answer within 1 s"):
        await alice.permissions(stream, CAROL.address)
    with pytest.raises(RegistryUnavailable, match=r'nothing was changed.*outage_writes = "refuse"'):
        await alice.revoke(stream, [BOB.address], Permission.PUBLISH)
    await until(
        lambda: alice.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.STALE, 6.0
    )
    with pytest.raises(RegistryUnavailable, match=r"out of reach for \d+ s.* counts for 3 s"):
        await alice.permissions(stream, BOB.address)
    with pytest.raises(RegistryUnavailable, match="counts for"):
        await alice.stream(stream)
    stale = await alice.verdict(stream, BOB.address)
    assert (stale.permissions, "counts for 3 s" in stale.problem) == (0, True)
    stage.anvil.thaw()
    await until(lambda: alice.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.YES)
    assert await alice.stream(stream) == StreamTerms()


@on_anvil
async def test_a_chain_that_restarts_with_its_state_is_followed_on(stage: Stage) -> None:
    alice = await stage.open(ALICE)
    stream = await alice.create("/private", StreamTerms())
    await alice.grant(stream, [BOB.address], Permission.PUBLISH)
    await alice.permissions(stream, BOB.address)
    stage.anvil.stop()
    with pytest.raises(RegistryUnavailable, match="nothing was changed"):
        await alice.delete(stream)
    assert alice.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.YES
    await stage.anvil.start()
    await alice.revoke(stream, [BOB.address], Permission.PUBLISH)
    assert not (await alice.permissions(stream, BOB.address)).holds(Permission.PUBLISH, time.time())


@on_anvil
async def test_changes_wait_for_the_chain_if_they_are_told_to(stage: Stage) -> None:
    alice = await stage.open(ALICE, outage_writes="wait", write_s=30.0, request_s=1.0)
    hasty = await stage.open(BOB, outage_writes="wait", write_s=0.5, request_s=1.0)
    stage.anvil.freeze()
    waiting = asyncio.create_task(alice.create("/patient", StreamTerms()))
    with pytest.raises(RegistryUnavailable, match=r"not done within write_s = 0\.5 s, nothing"):
        await hasty.create("/hasty", StreamTerms())
    assert not waiting.done()
    stage.anvil.thaw()
    assert await alice.stream(await waiting) == StreamTerms()


@on_anvil
async def test_a_change_that_was_sent_into_an_outage_happens_once(stage: Stage) -> None:
    """It is sent again as it is; a second one in its place would be refused: `create` shows it."""
    alice = await stage.open(ALICE, request_s=1.0)
    await stage.anvil.ask("evm_setAutomine", False)
    creating = asyncio.create_task(alice.create("/once", StreamTerms()))
    pool = {"pending": "0x0"}
    while pool["pending"] == "0x0":
        pool = await stage.anvil.ask("txpool_status")
    stage.anvil.freeze()
    await asyncio.sleep(1.5)
    stage.anvil.thaw()
    await stage.anvil.mine(1)
    stream = await creating
    assert await alice.stream(stream) == StreamTerms()
    nonce = await stage.anvil.ask("eth_getTransactionCount", show_node_id(ALICE.address), "pending")
    assert int(nonce, 16) == 1


@on_anvil
async def test_an_endpoint_that_hangs_is_out_of_reach_too(stage: Stage) -> None:
    alice = await stage.open(ALICE, head_age_s_max=600.0)
    stream = await alice.create("/a", StreamTerms())
    await alice.permissions(stream, ALICE.address)
    assert alice.permitted(stream, ALICE.address, Permission.EDIT) is Answer.YES
    with pytest.raises(RegistryUnavailable, match=r"hangs: its newest block is \d+ s old"):
        await stage.open(ALICE, head_age_s_max=1e-6)


@on_anvil
async def test_a_lagging_endpoint_makes_nobody_forget(stage: Stage) -> None:
    alice = await stage.open(ALICE, staleness_s=3.0)
    snapshot = await stage.anvil.ask("evm_snapshot")
    stream = await alice.create("/a", StreamTerms())
    await alice.permissions(stream, ALICE.address)
    await stage.anvil.ask("evm_revert", snapshot)  # one block shorter, as an endpoint behind is
    await asyncio.sleep(0.2)
    assert alice.permitted(stream, ALICE.address, Permission.EDIT) is Answer.YES
    await until(
        lambda: alice.permitted(stream, ALICE.address, Permission.EDIT) is Answer.STALE, 12.0
    )
    with pytest.raises(RegistryUnavailable, match="lags behind"):
        await alice.stream(stream)


@on_anvil
async def test_a_fee_beyond_the_bound_is_not_paid(stage: Stage) -> None:
    alice = await stage.open(ALICE, fee_gwei_max=50.0)
    await alice.create("/cheap", StreamTerms())
    await stage.anvil.ask("anvil_setNextBlockBaseFeePerGas", hex(60 * 10**9))
    await stage.anvil.mine(1)
    with pytest.raises(RegistryRefused, match="more than fee_gwei_max = 50: wait, or raise it"):
        await alice.create("/dear", StreamTerms())
    await stage.anvil.ask("anvil_setBalance", show_node_id(ALICE.address), "0x0")
    poor = await stage.open(ALICE, fee_gwei_max=1000.0)
    with pytest.raises(RegistryRefused, match="does not take a transaction: insufficient funds"):
        await poor.create("/poor", StreamTerms())


@on_anvil
async def test_bursts_of_questions_go_out_together(stage: Stage) -> None:
    alice = await stage.open(ALICE, poll_s=60.0)
    stream = await alice.create("/a", StreamTerms())
    posted: list[int] = []
    rpc = alice.chain._rpc  # type: ignore[attr-defined]
    post = rpc._post

    async def counted(questions: list[object]) -> bytes:
        posted.append(len(questions))
        raw: bytes = await post(questions)
        return raw

    rpc._post = counted
    await asyncio.gather(*(alice.permissions(stream, address(n)) for n in range(1, 101)))
    assert posted == [64, 36]
    await asyncio.gather(*(alice.permissions(stream, address(n)) for n in range(1, 101)))
    assert posted == [64, 36]


@on_anvil
async def test_an_address_without_a_registry_is_said_with_its_remedy(stage: Stage) -> None:
    with pytest.raises(NotFound, match=r"there is no registry at 0x0{36}9999.*chain 31337"):
        await stage.open(ALICE, contract=show_node_id(address(0x9999)))
