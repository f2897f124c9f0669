"""What strangers do below the WebSocket: they dawdle, break the protocol, and are cut off."""

from __future__ import annotations

import asyncio
import resource

from picows import WSMsgType

from shoal.base.units import MIB, MS_NS
from shoal.transport.framing import FrameReader
from shoal.transport.handshake import Handshake
from shoal.transport.port import TransportLimits
from shoal.transport.websocket import dialling_context
from tests.transport.recorder import until
from tests.transport.stage import Stage, credentials, on
from tests.transport.wires import WebSocketWire, connection, ended, hung_up, shake_hands

BRIEF = TransportLimits(handshake_timeout_ns=200 * MS_NS)
FEW = TransportLimits(handshake_timeout_ns=600 * MS_NS, handshakes_max=3)

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_who_dawdles_before_the_upgrade_is_cut_off(stage: Stage) -> None:
    b = await stage.actor("b", limits=BRIEF)
    async with connection(b.address) as (silent, _), connection(b.address) as (slow, writer):

        async def drip() -> None:
            while not writer.is_closing():
                writer.write(b"G" if stage.scheme == "ws" else b"\x16")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        started_s = asyncio.get_running_loop().time()
        await asyncio.gather(ended(silent), ended(slow))
        assert asyncio.get_running_loop().time() - started_s < 5
        dripping.cancel()
    await until(lambda: len(b.told.failures) == 2)
    # Which of the two depends on who is faster, we or the drops, and on the event loop.
    assert set(b.told.failures) <= {"timeout", "closed"}


@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_the_time_for_all_that_comes_before_a_link_is_one(stage: Stage) -> None:
    b = await stage.actor("b", limits=TransportLimits(handshake_timeout_ns=1500 * MS_NS))
    async with connection(b.address) as (reader, writer):
        started_s = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        if stage.scheme == "wss":
            await writer.start_tls(dialling_context())  # and no word in it
        else:
            writer.write(UPGRADE)
        await ended(reader)
        # It would be 2.5 s if the time began again.
        assert 1.4 < asyncio.get_running_loop().time() - started_s < 2.4
    await until(lambda: b.told.failures == ["timeout"])


@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_only_so_many_may_knock(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b", limits=FEW)
    link, _ = await a.dial(b)
    async with (
        connection(b.address) as (one, _),
        connection(b.address) as (two, _),
        connection(b.address) as (three, _),
    ):
        await asyncio.sleep(0.05)
        async with connection(b.address) as (four, _):
            assert await ended(four) == b""
            assert b.told.failures == ["busy"]
        link.send(1, b"not affected")
        await until(lambda: b.told.frames)
        await asyncio.gather(ended(one), ended(two), ended(three))
    await until(lambda: b.told.failures == ["busy"] + ["timeout"] * 3)
    await a.dial(b)


@on("ws", "ws-uvloop")
async def test_who_is_no_websocket_is_refused(stage: Stage) -> None:
    b = await stage.actor("b")
    for request in (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"x" * 20_000,
    ):
        async with connection(b.address) as (reader, writer):
            writer.write(request)
            assert b"101" not in await ended(reader)
    async with connection(b.address):
        pass  # whoever left is noticed when the next one comes, or in time
    await until(lambda: len(b.told.failures) >= 4)
    assert set(b.told.failures) == {"closed"}


def masked(first: int, length: int, payload: bytes = b"") -> bytes:
    """A frame of a client, with a mask of zeros."""
    if length < 126:
        header = bytes([first, 0x80 | length])
    else:
        header = bytes([first, 0x80 | 127]) + length.to_bytes(8, "big")
    return header + bytes(4) + payload


@on("ws", "ws-uvloop")
async def test_frames_that_break_the_protocol_are_refused(stage: Stage) -> None:
    b = await stage.actor("b")
    hello = Handshake(credentials("stranger"), b.id).hello
    for frame, reason in [
        (bytes([0x82, 5]) + b"hello", "malformed"),  # not masked
        (masked(0x81, 5, b"hello"), "malformed"),  # text
        (masked(0x02, len(hello) % 126, hello[:125]), "malformed"),  # a fragment
        (masked(0x80, 5, b"hello"), "malformed"),  # a continuation of nothing
        (masked(0x83, 5, b"hello"), "malformed"),  # no such kind
        (masked(0x82, 1 << 40, bytes(1000)), "oversized"),
        (masked(0x82, 2 * MIB, bytes(1000)), "oversized"),
    ]:
        async with connection(b.address) as (reader, writer):
            writer.write(UPGRADE + frame)
            await ended(reader)
        await until(lambda: b.told.failures)
        assert b.told.failures == [reason]
        b.told.failures.clear()


@on("ws", "wss", "ws-uvloop")
async def test_a_long_message_is_refused_before_it_is_read(stage: Stage) -> None:
    b = await stage.actor("b")
    wire = await stage.stranger(b.address)
    assert isinstance(wire, WebSocketWire)
    await shake_hands(wire, credentials("peer"), b.id)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wire.transport.underlying_transport.write(masked(0x82, 1 << 40, bytes(1000)))
    await until(lambda: b.told.losses)
    await hung_up(wire)
    assert b.told.story[-2:] == ["rejected oversized", "lost oversized"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


@on("ws", "wss", "ws-uvloop")
async def test_fragments_and_text_end_a_link(stage: Stage) -> None:
    b = await stage.actor("b")
    for kind, fin in [(WSMsgType.TEXT, True), (WSMsgType.BINARY, False)]:
        wire = await stage.stranger(b.address)
        assert isinstance(wire, WebSocketWire)
        await shake_hands(wire, credentials("peer"), b.id)
        wire.transport.send(kind, b"hello", fin)
        await hung_up(wire)
        await until(lambda: b.told.losses)
        assert b.told.reasons == b.told.rejections == ["malformed"]
        b.told.losses.clear()
        b.told.rejections.clear()


@on("ws", "ws-uvloop")
async def test_pings_are_answered_and_do_no_harm(stage: Stage) -> None:
    b = await stage.actor("b")
    wire = await stage.stranger(b.address)
    assert isinstance(wire, WebSocketWire)
    session = await shake_hands(wire, credentials("peer"), b.id)
    assert len(await wire.transport.measure_roundtrip_time(3)) == 3
    await until(lambda: b.told.links)
    b.told.links[0].send(1, b"x")
    message = await wire.receive()
    assert message is not None
    assert FrameReader(session.receive_key, 100).read(message) == [(1, b"x")]


@on("ws", "ws-uvloop")
async def test_who_only_pings_and_never_reads_costs_nothing(stage: Stage) -> None:
    b = await stage.actor("b")
    async with connection(b.address) as (reader, writer):
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        ping = masked(0x89, 125, bytes(125))
        for _ in range(100):
            writer.write(ping * 1000)
            await writer.drain()
        carriers = b.transport._links
        assert all(carrier.backlog_bytes() < 1000 for carrier in carriers)
