"""The contract of the transport port, for every transport: back-pressure and its bounds."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from shoal.base.units import KIB, MIB, MS_NS
from shoal.transport.port import TransportLimits
from tests.transport.recorder import until
from tests.transport.stage import Stage, on_every_transport

LIMITS = TransportLimits(
    queue_high_bytes=512 * KIB,
    queue_low_bytes=64 * KIB,
    queue_max_bytes=2 * MIB,
    socket_buffer_bytes=64 * KIB,
)
PAYLOAD = bytes(10 * KIB)


@on_every_transport
async def test_a_reader_that_pauses_fills_the_queue_of_its_writer_alone(stage: Stage) -> None:
    a = await stage.actor("a", limits=LIMITS)
    slow, quick = await stage.actor("slow", limits=LIMITS), await stage.actor("quick")
    to_slow, at_slow = await a.dial(slow)
    to_quick, at_quick = await a.dial(quick)
    at_slow.pause_reading()
    sent = 0
    while to_slow.queued_bytes < 1 * MIB:
        for _ in range(10):
            to_slow.send(1, sent.to_bytes(10 * KIB, "big"))
            to_quick.send(1, sent.to_bytes(10 * KIB, "big"))
            sent += 1
        await asyncio.sleep(0.001)
        await until(lambda: not to_quick.queued_bytes)
    assert a.told.queues == [True]
    await until(lambda: len(quick.told.payloads_of(at_quick)) == sent)
    assert to_quick.queued_bytes == 0
    assert len(slow.told.frames) * len(PAYLOAD) < 1 * MIB

    at_slow.resume_reading()
    await until(lambda: len(slow.told.frames) == sent)
    await until(lambda: a.told.queues == [True, False])
    expected = [index.to_bytes(10 * KIB, "big") for index in range(sent)]
    assert slow.told.payloads_of(at_slow) == quick.told.payloads_of(at_quick) == expected
    assert to_slow.queued_bytes == 0
    assert a.told.losses == []


@on_every_transport
async def test_a_peer_that_does_not_read_is_given_up_at_the_bound(stage: Stage) -> None:
    a = await stage.actor("a", limits=LIMITS)
    slow, quick = await stage.actor("slow", limits=LIMITS), await stage.actor("quick")
    quick.told.keep_payloads = False
    to_slow, at_slow = await a.dial(slow)
    to_quick, _ = await a.dial(quick)
    at_slow.pause_reading()
    sent, highest = 0, 0
    while not a.told.losses:
        for _ in range(5):
            to_slow.send(1, PAYLOAD)
            to_quick.send(1, PAYLOAD)
            sent += 1
            highest = max(highest, to_slow.queued_bytes)
        await asyncio.sleep(0)
        await until(lambda: not to_quick.queued_bytes)
    assert a.told.losses == [(to_slow, "too-slow")]
    assert a.told.queues == [True]
    assert LIMITS.queue_high_bytes < highest <= LIMITS.queue_max_bytes + len(PAYLOAD)
    assert to_slow.queued_bytes == 0
    await until(lambda: quick.told.bytes_received == sent * len(PAYLOAD))
    at_slow.resume_reading()
    await until(lambda: slow.told.losses)
    assert len(slow.told.losses) == 1


@on_every_transport
async def test_a_link_that_is_given_up_says_what_never_left(stage: Stage) -> None:
    a, b = await stage.actor("a", limits=LIMITS), await stage.actor("b", limits=LIMITS)
    near, far = await a.dial(b)
    assert near.unsent() == []
    far.pause_reading()
    sent = 0
    while not a.told.losses:
        near.send(1, sent.to_bytes(10 * KIB, "big"))
        sent += 1
        await asyncio.sleep(0)
    numbers = [int.from_bytes(payload, "big") for _, payload in near.unsent()]
    assert len(numbers) > 100
    assert numbers == list(range(sent - len(numbers), sent))
    far.resume_reading()
    await until(lambda: b.told.losses)
    read = [int.from_bytes(payload, "big") for payload in b.told.payloads_of(far)]
    assert read == list(range(len(read)))
    assert len(read) <= sent - len(numbers)


@on_every_transport
async def test_the_bound_holds_within_one_turn_of_the_loop(stage: Stage) -> None:
    a, b = await stage.actor("a", limits=LIMITS), await stage.actor("b", limits=LIMITS)
    near, _ = await a.dial(b)
    highest = 0
    for _ in range(1000):
        near.send(1, PAYLOAD)
        highest = max(highest, near.queued_bytes)
    assert highest <= LIMITS.queue_max_bytes + len(PAYLOAD)
    assert a.told.story == []  # nothing is told from within send
    await until(lambda: a.told.losses)
    assert a.told.reasons == ["too-slow"]
    async with asyncio.timeout(4):  # uvloop must not miss that the connection was reset
        await b.transport.close()


@on_every_transport
async def test_marks_are_told_again_after_each_round(stage: Stage) -> None:
    a, b = await stage.actor("a", limits=LIMITS), await stage.actor("b", limits=LIMITS)
    near, far = await a.dial(b)
    for _ in range(3):
        far.pause_reading()
        while len(a.told.queues) % 2 == 0:
            near.send(1, PAYLOAD)
            await asyncio.sleep(0)
        far.resume_reading()
        await until(lambda: len(a.told.queues) % 2 == 0)
    assert a.told.queues == [True, False] * 3


@on_every_transport
async def test_signs_of_life_do_not_mix_with_payloads(stage: Stage) -> None:
    limits = msgspec.structs.replace(LIMITS, idle_ping_ns=10 * MS_NS)
    a, b = await stage.actor("a", limits=limits), await stage.actor("b", limits=limits)
    near, far = await a.dial(b)
    near.pause_reading()
    far.pause_reading()
    sent = 0
    while near.queued_bytes < LIMITS.queue_high_bytes:
        near.send(1, PAYLOAD)
        sent += 1
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)
    far.resume_reading()
    near.resume_reading()
    await until(lambda: len(b.told.frames) == sent)
    await asyncio.sleep(0.05)
    assert b.told.frames == [(1, PAYLOAD)] * sent


@on_every_transport
async def test_a_peer_that_does_not_read_cannot_hold_up_a_close(stage: Stage) -> None:
    limits = TransportLimits(close_timeout_ns=200 * MS_NS, socket_buffer_bytes=64 * KIB)
    a, b = await stage.actor("a", limits=limits), await stage.actor("b", limits=limits)
    near, far = await a.dial(b)
    far.pause_reading()
    for _ in range(200):
        near.send(1, PAYLOAD)
    async with asyncio.timeout(5):
        await a.transport.close()
    assert a.told.losses == []


@on_every_transport
async def test_one_payload_for_many_slow_peers_is_held_once(stage: Stage) -> None:
    a = await stage.actor("a")
    links = []
    for index in range(4):
        slow = await stage.actor(f"slow-{index}", limits=LIMITS)
        near, far = await a.dial(slow)
        far.pause_reading()
        links.append(near)
    while not all(link.queued_bytes > 4 * MIB for link in links):
        payload = bytes(64 * KIB)
        for link in links:
            link.send(1, payload)
        await asyncio.sleep(0)
    assert sys.getrefcount(payload) >= 2 + len(links)
