"""The contract of the transport port, for every transport: links, who is there, and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from shoal.base.errors import ConfigError, UsageError
from shoal.base.units import KIB, MIB
from shoal.transport.port import DialFailed, Frame, Link, TransportLimits
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
