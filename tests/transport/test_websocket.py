"""What is particular to WebSockets: servers that are none, TLS, who sits on the path, addresses."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS
from shoal.transport.port import DialFailed, TransportLimits
from shoal.transport.websocket import (
    WebSocketTransport,
    certificate_digest,
    dialling_context,
    served_certificate,
)
from tests.transport.child import CHILD
from tests.transport.proxy import Proxy
from tests.transport.recorder import Recorder, until
from tests.transport.stage import Actor, Stage, credentials, on, serving_context
from tests.transport.wires import ended

BRIEF = TransportLimits(handshake_timeout_ns=200 * MS_NS)


# Servers that are none


@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_a_dial_ends_in_time_and_leaves_nothing(stage: Stage) -> None:
    a = await stage.actor("a", limits=BRIEF)
    greeted: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.append(writer)

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = f"{stage.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(DialFailed, match="timeout"):
        await a.transport.dial(address, CHILD)
    dial = asyncio.create_task(a.transport.dial(address, CHILD))
    await until(lambda: len(greeted) == 2)
    await a.transport.close()
    with pytest.raises(DialFailed, match="closed"):
        await dial
    server.close()
    for writer in greeted:
        writer.transport.abort()


@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_a_cancelled_dial_hangs_up_at_once(stage: Stage) -> None:
    a = await stage.actor("a")
    greeted, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        greeted.set()
        await ended(reader)
        left.set()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = f"{stage.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    dial = asyncio.create_task(a.transport.dial(address, CHILD))
    await greeted.wait()
    dial.cancel()
    async with asyncio.timeout(3):  # the time for a handshake is 5 seconds
        await left.wait()
    server.close()


@on("ws", "ws-uvloop")
async def test_a_server_that_answers_otherwise_is_no_peer(stage: Stage) -> None:
    a = await stage.actor("a")
    answers = [
        b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"",
    ]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    while answers:
        with pytest.raises(DialFailed):
            await a.transport.dial(address, CHILD)
    server.close()


# On the path


@on("ws", "ws-uvloop")
async def test_whoever_sits_on_the_path_can_listen_and_nothing_else(stage: Stage) -> None:
    await change_on_the_path(stage, "dialler")
    await change_on_the_path(stage, "acceptor")


async def change_on_the_path(stage: Stage, side: str) -> None:
    a, b, proxy = await stage.actor("a"), await stage.actor("b"), Proxy()
    near, far = await a.dial(Actor(b.credentials, b.transport, b.told, await proxy.open(b.address)))
    near.send(1, b"heard")
    await until(lambda: b.told.frames)
    # Whoever dials masks its frames.
    first = proxy.from_dialler.index(b"\r\n\r\n") + 4
    assert proxy.from_dialler[first] == 0x82
    assert proxy.from_dialler[first + 1] & 0x80

    sender, receiver = (near, b) if side == "dialler" else (far, a)
    setattr(proxy, f"alter_from_{side}", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    sender.send(1, b"changed")
    await until(lambda: receiver.told.losses)
    assert receiver.told.rejections == receiver.told.reasons == ["forged"]
    await proxy.close()


@on("wss", "wss-uvloop")
async def test_whoever_ends_tls_on_the_path_is_found_out(stage: Stage) -> None:
    a, b, proxy = await stage.actor("a"), await stage.actor("b"), Proxy()
    address = await proxy.open(b.address, serving_context("mallory"), dialling_context())
    with pytest.raises(DialFailed, match="signature"):
        await a.transport.dial(address, b.id)
    await until(lambda: b.told.failures)
    assert b.told.links == []
    assert b.told.failures[0] in ("signature", "closed")
    await proxy.close()


# Settings


@on("ws")
async def test_wss_needs_a_certificate(stage: Stage) -> None:
    a = await stage.actor("a", listens=False)
    with pytest.raises(UsageError, match="certificate"):
        await a.transport.listen("wss://127.0.0.1:0")
    empty = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(UsageError, match="TLS context"):
        WebSocketTransport(credentials("a"), Recorder(), tls=empty)


def test_the_certificate_of_a_context_is_found() -> None:
    one, other = served_certificate(serving_context()), served_certificate(serving_context("other"))
    assert one == served_certificate(serving_context()) != other
    assert "shoal" in ssl.DER_cert_to_PEM_cert(one) or len(certificate_digest(one)) == 32


@on("wss", "wss-uvloop")
async def test_one_transport_serves_both_schemes(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    plain = Actor(b.credentials, b.transport, b.told)
    plain.address = (await b.transport.listen("ws://127.0.0.1:0")).address
    for actor in (plain, b):
        link, _ = await a.dial(actor)
        link.send(1, b"x")
    await until(lambda: len(b.told.frames) == 2)


@on("ws", "ws-uvloop")
async def test_hosts_have_names_and_long_numbers(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    by_name = Actor(b.credentials, b.transport, b.told, b.address.replace("127.0.0.1", "localhost"))
    await a.dial(by_name)
    try:
        door = await b.transport.listen("ws://[::1]:0")
    except UsageError:
        pytest.skip("no IPv6 here")
    assert door.address.startswith("ws://[::1]:")
    await a.dial(Actor(b.credentials, b.transport, b.told, door.address))
    for nowhere in ("ws://no-such-host.invalid:1", "ws://" + "x" * 300 + ":1"):
        with pytest.raises(DialFailed):
            await a.transport.dial(nowhere, b.id)
