"""The contract of the transport port, for every transport: how links end, and what is left then."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import KIB, MS_NS
from shoal.transport.link import AuthenticatedLink
from shoal.transport.port import LOSSES, DialFailed, TransportLimits
from tests.transport.recorder import until
from tests.transport.stage import Stage, gathered, on_every_transport


@on_every_transport
async def test_close_flushes_although_the_peer_is_talking(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    payloads = [index.to_bytes(4, "big") * 500 for index in range(1000)]
    for payload in payloads:
        near.send(1, payload)
        far.send(1, payload)
    near.close("done")
    near.send(1, b"too late")
    for payload in payloads:
        far.send(1, payload)
    await until(lambda: b.told.losses)
    assert b.told.payloads_of(far) == payloads
    assert b.told.reasons == ["closed"]
    await asyncio.sleep(0.01)
    assert a.told.story == []


@on_every_transport
async def test_close_flushes_to_a_peer_that_reads_late_and_talks_on(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    far.pause_reading()
    payloads = [index.to_bytes(4, "big") * 2500 for index in range(100)]
    for payload in payloads:
        near.send(1, payload)
    near.close("done")
    for _ in range(20):
        await asyncio.sleep(0.005)
        far.send(1, bytes(1000))  # to a socket that is closed already it would mean a reset
    assert b.told.losses == []
    far.resume_reading()
    await until(lambda: b.told.losses)
    assert b.told.payloads_of(far) == payloads
    assert b.told.reasons == ["closed"]


@on_every_transport
async def test_who_closes_is_told_when_the_peer_has_read_everything(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    far.pause_reading()
    read_by_then: list[int] = []
    near.send(1, bytes(100 * KIB))
    near.close("done", lambda: read_by_then.append(b.told.bytes_received))
    await asyncio.sleep(0.05)
    assert read_by_then == []
    far.resume_reading()
    await until(lambda: read_by_then)
    near.close("again", lambda: read_by_then.append(-1))
    await until(lambda: len(read_by_then) == 2)
    assert read_by_then == [100 * KIB, -1]


@on_every_transport
async def test_a_paused_link_closes_as_any_other(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    near.pause_reading()
    for _ in range(100):
        far.send(1, bytes(30 * KIB))
    near.send(1, b"bye")
    near.close("enough")
    async with asyncio.timeout(4):  # less than the timeout of a close
        await a.transport.close()
    await until(lambda: b.told.losses)
    assert b.told.frames == [(1, b"bye")]
    assert b.told.reasons == ["closed"]
    assert a.told.story == []


@on_every_transport
async def test_both_may_close_at_once(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    near.send(1, b"x")
    near.close("a")
    far.close("b")
    far.close("again")
    await gathered(a.transport.close(), b.transport.close())
    assert (a.told.losses, b.told.losses) == ([], [])


@on_every_transport
async def test_a_loss_is_told_once_and_to_the_other_side_only(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    far.send(1, b"unread")
    far.close("reason of b")
    near.send(1, b"crossing")
    await until(lambda: a.told.losses)
    near.close("after the loss")
    near.pause_reading()
    near.resume_reading()
    near.send(1, b"after the loss")
    await asyncio.sleep(0.02)
    assert a.told.story == ["frames", "lost closed"]
    assert b.told.losses == []
    assert set(a.told.reasons) <= set(LOSSES)


@on_every_transport
async def test_a_closed_door_lets_nobody_in_and_keeps_its_links(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b", listens=False)
    door = await b.transport.listen(stage.any_address)
    b.address = door.address
    near, far = await a.dial(b)
    await door.close()
    with pytest.raises(DialFailed):
        await a.transport.dial(b.address, b.id)
    near.send(1, b"x")
    await until(lambda: b.told.frames)
    far.send(1, b"y")
    await until(lambda: a.told.frames)


@on_every_transport
async def test_close_leaves_nothing_of_anything_under_way(stage: Stage) -> None:
    # What is left is counted at the end of every scenario; this one has the most to clean up.
    a, b, c = await stage.actor("a"), await stage.actor("b"), await stage.actor("c")
    for actor in (a, c):
        near, _ = await actor.dial(b)
        near.send(1, bytes(100_000))
    for number in range(3):
        await stage.stranger(b.address, f"stranger-{number}")
    dials = [asyncio.create_task(a.transport.dial(b.address, b.id)) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
        dials.append(asyncio.create_task(c.transport.dial(b.address, b.id)))
    await gathered(a.transport.close(), b.transport.close())
    await c.transport.close()
    for outcome in await asyncio.gather(*dials, return_exceptions=True):
        assert isinstance(outcome, DialFailed | AuthenticatedLink)
    with pytest.raises(DialFailed, match="closed"):
        await a.transport.dial(b.address, b.id)
    with pytest.raises(UsageError, match="closed"):
        await a.transport.listen(b.address)
    assert b.told.bytes_received == 200_000


@on_every_transport
async def test_a_cancelled_dial_leaves_nothing(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    made = 0
    for turns in range(25):
        dial = asyncio.create_task(a.transport.dial(b.address, b.id))
        for _ in range(turns):
            await asyncio.sleep(0)
        dial.cancel()
        (result,) = await asyncio.gather(dial, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError) or turns > 3
        made += isinstance(result, AuthenticatedLink)
    for actor in (a, b):
        await until(lambda one=actor: len(one.transport._links) == made)  # type: ignore[misc]
    near, _ = await a.dial(b)
    near.send(1, b"x")
    await until(lambda: b.told.frames)


@on_every_transport
async def test_a_silent_link_lives_on_and_a_paused_one_too(stage: Stage) -> None:
    limits = TransportLimits(idle_ping_ns=20 * MS_NS, idle_timeout_ns=100 * MS_NS)
    a, b = await stage.actor("a", limits=limits), await stage.actor("b", limits=limits)
    near, far = await a.dial(b)
    await asyncio.sleep(0.25)
    far.pause_reading()
    await asyncio.sleep(0.25)
    near.send(1, b"x")
    far.resume_reading()
    await until(lambda: b.told.frames)
    assert (a.told.story, b.told.story) == ([], ["ready", "frames"])


@on_every_transport
async def test_a_node_that_was_asleep_does_not_blame_its_peers(stage: Stage) -> None:
    limits = TransportLimits(idle_ping_ns=50 * MS_NS, idle_timeout_ns=200 * MS_NS)
    a, b = await stage.actor("a", limits=limits), await stage.actor("b", limits=limits)
    near, _ = await a.dial(b)
    time.sleep(0.3)
    await asyncio.sleep(0.1)
    near.send(1, b"x")
    await until(lambda: b.told.frames)
    assert (a.told.losses, b.told.losses) == ([], [])
