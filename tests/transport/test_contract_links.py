"""The contract of the transport port, for every transport: links, their order, and their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

import pytest

from shoal.base.errors import ConfigError, UsageError
from shoal.base.units import KIB, MIB, MS_NS
from shoal.transport.link import AuthenticatedLink
from shoal.transport.port import LOSSES, DialFailed, Frame, Link, TransportLimits
from tests.transport.recorder import Recorder, until
from tests.transport.stage import Stage, gathered, on_every_transport, where_addresses_lead


@pytest.mark.parametrize(
    "limits",
    [
        {"queue_low_bytes": 1 * MIB},
        {"queue_max_bytes": 1 * KIB},
        {"queue_low_bytes": 0},
        {"frame_bytes_max": 0},
        {"frame_bytes_max": 1 << 32},
    ],
)
def test_impossible_limits_are_a_mistake(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        TransportLimits(**limits)


@on_every_transport
async def test_both_sides_learn_who_the_other_is(stage: Stage) -> None:
    a = await stage.actor("a", roles=("node", "tracker"), features=("x", "gzip", "a"))
    b = await stage.actor("b", roles=("storage",), features=("gzip", "x", "b"))
    near, far = await a.dial(b)
    assert (near.dialled, far.dialled) == (True, False)
    assert (near.peer.node, far.peer.node) == (b.id, a.id)
    assert (near.peer.roles, far.peer.roles) == (("storage",), ("node", "tracker"))
    assert near.peer.features == far.peer.features == ("gzip", "x")
    assert near.peer.version == far.peer.version == 1
    assert a.told.links == []


@on_every_transport
async def test_nobody_there_is_a_failed_dial(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    await b.transport.close()
    with pytest.raises(DialFailed, match="nobody"):
        await a.transport.dial(b.address, b.id)


@where_addresses_lead
async def test_another_peer_than_expected_is_refused(stage: Stage) -> None:
    a, b, c = await stage.actor("a"), await stage.actor("b"), await stage.actor("c")
    with pytest.raises(DialFailed, match="wrong-peer"):
        await a.transport.dial(b.address, c.id)
    await until(lambda: b.told.failures)
    assert b.told.links == []


@where_addresses_lead
async def test_nobody_dials_itself(stage: Stage) -> None:
    a = await stage.actor("a")
    with pytest.raises(DialFailed, match="self"):
        await a.transport.dial(a.address, a.id)
    await until(lambda: a.told.failures)


@on_every_transport
async def test_an_address_of_another_kind_is_a_mistake(stage: Stage) -> None:
    a = await stage.actor("a", listens=False)
    for address in ("", "http://127.0.0.1:80", "ws://127.0.0.1", "ws://:80", "ws://h:x", "memory:"):
        with pytest.raises(UsageError, match="write"):
            await a.transport.dial(address, a.id)
        with pytest.raises(UsageError, match="write"):
            await a.transport.listen(address)


@where_addresses_lead
async def test_a_door_cannot_be_opened_twice(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b", listens=False)
    with pytest.raises(UsageError):
        await b.transport.listen(a.address)


@on_every_transport
async def test_payloads_keep_their_order_in_both_directions(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    rng = Random(7)
    payloads = [rng.randbytes(rng.choice([0, 1, 300, 3000])) for _ in range(1000)]
    for start in range(0, 1000, 50):
        for payload in payloads[start : start + 50]:
            near.send(1, payload)
            far.send(255, payload)
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await until(lambda: len(a.told.frames) == len(b.told.frames) == 1000)
    assert b.told.frames == [(1, payload) for payload in payloads]
    assert a.told.frames == [(255, payload) for payload in payloads]
    assert all(type(payload) is bytes for _, payload in a.told.frames)


@on_every_transport
async def test_payloads_of_one_loop_turn_travel_together(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, _ = await a.dial(b)
    sent: list[bytes] = []
    for turn in range(3):
        for number in range(10):
            sent.append(bytes([turn, number]))
            near.send(1, sent[-1])
        await until(lambda: len(b.told.frames) == len(sent))
    assert [len(frames) for _, frames in b.told.batches] == [10, 10, 10]


@on_every_transport
async def test_a_payload_as_long_as_the_limit_passes(stage: Stage) -> None:
    limits = TransportLimits()
    a, b = await stage.actor("a"), await stage.actor("b")
    near, far = await a.dial(b)
    payload = Random(1).randbytes(limits.frame_bytes_max)
    for link in (near, far):
        link.send(1, b"before")
        link.send(1, payload)
        link.send(1, b"")
    await until(lambda: len(a.told.frames) == len(b.told.frames) == 3)
    assert a.told.frames == b.told.frames == [(1, b"before"), (1, payload), (1, b"")]


@on_every_transport
async def test_what_no_peer_would_accept_is_not_sent(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    near, _ = await a.dial(b)
    too_long = bytes(TransportLimits().frame_bytes_max + 1)
    for protocol, payload in [(1, too_long), (0, b""), (256, b"")]:
        with pytest.raises(UsageError):
            near.send(protocol, payload)
    near.send(1, b"fine")
    await until(lambda: b.told.frames)
    assert b.told.frames == [(1, b"fine")]


@on_every_transport
async def test_a_payload_above_the_receivers_limit_ends_the_link(stage: Stage) -> None:
    # 2 KiB fit into a batch, 200 KiB do not: the first is found in it, the second ahead of it.
    await send_too_much(stage, 2 * KIB)
    await send_too_much(stage, 200 * KIB)


async def send_too_much(stage: Stage, size: int) -> None:
    a = await stage.actor("a")
    b = await stage.actor("b", limits=TransportLimits(frame_bytes_max=1 * KIB))
    near, _ = await a.dial(b)
    near.send(1, b"good")
    await until(lambda: b.told.frames)
    near.send(1, bytes(size))
    await until(lambda: a.told.losses and b.told.losses)
    assert b.told.story == ["ready", "frames", "rejected oversized", "lost oversized"]
    assert a.told.reasons[0] in ("rejected", "lost")
    near.send(1, b"no-op")
    assert near.queued_bytes == 0


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


@where_addresses_lead
async def test_dials_that_cross_give_two_links(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    (from_a, at_b), (from_b, at_a) = await gathered(a.dial(b), b.dial(a))
    for link in (from_a, from_b, at_a, at_b):
        link.send(1, b"x")
    await until(lambda: len(a.told.frames) == len(b.told.frames) == 2)
    from_a.close("duplicate")
    await until(lambda: b.told.losses)
    assert b.told.losses == [(at_b, "closed")]
    from_b.send(1, b"still there")
    await until(lambda: len(a.told.frames) == 3)


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


class Hasty(Recorder):
    """Answers at once, and is gone."""

    def link_ready(self, link: Link) -> None:
        link.send(1, b"at once")
        link.close("and gone")


class Attentive(Recorder):
    """Knows its links before it hears of them."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Link] = []

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        assert link in self.known
        super().frames_received(link, frames)

    def link_lost(self, link: Link, reason: str) -> None:
        assert link in self.known
        super().link_lost(link, reason)


@on_every_transport
async def test_a_dialled_link_is_known_before_anything_is_heard_of_it(stage: Stage) -> None:
    told = Attentive()
    a, b = await stage.actor("a", told=told), await stage.actor("b", told=Hasty())
    for index in range(5):
        link = await a.transport.dial(b.address, b.id)
        assert len(told.story) == 2 * index
        told.known.append(link)
        await until(lambda: len(told.losses) == len(told.known))
    assert told.story == ["frames", "lost closed"] * 5


class Failing(Recorder):
    """Has a bug."""

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        super().frames_received(link, frames)
        raise ZeroDivisionError


@on_every_transport
async def test_a_handler_that_fails_does_not_harm_its_links(stage: Stage) -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(context["message"])
    )
    a, b = await stage.actor("a"), await stage.actor("b", told=Failing())
    near, far = await a.dial(b)
    near.send(1, b"x")
    await until(lambda: len(complaints) == 1)
    near.send(1, b"x")
    await until(lambda: len(complaints) == 2)
    assert b.told.payloads_of(far) == [b"x", b"x"]
    assert set(complaints) == {"a link handler failed"}


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
