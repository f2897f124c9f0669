"""What is particular to WebSockets: what strangers do below them, TLS, and peers that crash."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from picows import WSMsgType

from shoal.base.errors import UsageError
from shoal.base.units import MIB, MS_NS
from shoal.transport.framing import FrameReader
from shoal.transport.handshake import Handshake
from shoal.transport.port import DialFailed, Link, TransportLimits
from shoal.transport.tls import (
    certificate_digest,
    dialling_context,
    served_certificate,
)
from shoal.transport.websocket import WebSocketTransport
from tests.transport.proxy import Proxy
from tests.transport.recorder import PATIENCE_S, Recorder, until
from tests.transport.stage import (
    Actor,
    Scenario,
    Stage,
    credentials,
    perform,
    serving_context,
)
from tests.transport.wires import WebSocketWire, hung_up, shake_hands

BRIEF = TransportLimits(handshake_timeout_ns=200 * MS_NS)
FEW = TransportLimits(handshake_timeout_ns=600 * MS_NS, handshakes_max=3)

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def on(*kinds: str) -> Callable[[Scenario], Callable[[str], None]]:
    """Turn a scenario into a test for some kinds of WebSocket."""

    def decorate(scenario: Scenario) -> Callable[[str], None]:
        @pytest.mark.parametrize("kind", kinds)
        def test(kind: str) -> None:
            perform(kind, scenario)

        test.__name__ = test.__qualname__ = scenario.__name__
        return test

    return decorate


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[Connection]:
    """A bare TCP connection."""
    host, port = address.rpartition("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection ends, in whichever way."""
    heard = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while data := await reader.read(65536):
                heard += data
    except ConnectionError:
        pass
    return heard


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """A node in another process, and its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.transport.child", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert process.stdout is not None
            yield process, (await asyncio.to_thread(process.stdout.readline)).strip()
        finally:
            process.kill()


CHILD = credentials("child").key.address


# Peers that crash


@on("ws", "ws-uvloop")
async def test_the_crash_of_a_peer_is_noticed(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    other, _ = await a.dial(b)
    async with child() as (process, address):
        link = await a.transport.dial(address, CHILD)
        link.send(1, b"echo")
        await until(lambda: a.told.frames)
        process.kill()
        await until(lambda: a.told.losses)
        assert a.told.losses == [(link, "lost")]
        await asyncio.to_thread(process.wait)
        with pytest.raises(DialFailed, match="nobody"):
            await a.transport.dial(address, CHILD)
    other.send(1, b"fine")
    await until(lambda: b.told.frames)


@on("ws", "ws-uvloop")
async def test_a_peer_that_hangs_is_given_up(stage: Stage) -> None:
    limits = TransportLimits(idle_ping_ns=100 * MS_NS, idle_timeout_ns=1000 * MS_NS)
    a = await stage.actor("a", limits=limits)
    async with child() as (process, address):
        await a.transport.dial(address, CHILD)
        await asyncio.sleep(1.5)
        assert a.told.losses == []
        process.send_signal(signal.SIGSTOP)
        await until(lambda: a.told.losses)
        assert a.told.reasons == ["idle"]


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_connection_that_is_reset_at_any_moment_harms_nobody_else(scheme: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.transport.resets", scheme],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


# Strangers below the WebSocket


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
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
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


# Scarcity


@on("ws")
async def test_running_out_of_descriptors_turns_strangers_away(stage: Stage) -> None:
    a = await stage.actor("a")
    async with child("24") as (process, address):
        link = await a.transport.dial(address, CHILD)
        host, port = address.rpartition("/")[2].split(":")
        flood = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
        link.send(1, b"still there")
        await until(lambda: a.told.frames)
        used_before = cpu_ticks(process.pid)
        await asyncio.sleep(0.5)
        assert cpu_ticks(process.pid) - used_before < 25  # of 50: it does not spin
        for _, writer in flood:
            writer.transport.abort()
        await dialled_at_last(a, address)
        assert a.told.losses == []


async def dialled_at_last(actor: Actor, address: str) -> None:
    """By a node that has just got its descriptors back, and may not know it yet."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await actor.transport.dial(address, CHILD)
            except DialFailed:
                await asyncio.sleep(0.01)
            else:
                return


def cpu_ticks(pid: int) -> int:
    """Hundredths of a second that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@on("ws", "wss-uvloop")
async def test_coming_and_going_leaves_nothing(stage: Stage) -> None:
    rng = Random(11)
    a, b = await stage.actor("a"), await stage.actor("b")
    a.told.keep_payloads = b.told.keep_payloads = False
    links: list[Link] = []
    for _ in range(200):
        match rng.randrange(5):
            case 0 | 1:
                links.append(await a.transport.dial(b.address, b.id))
            case 2 if links:
                links.pop(rng.randrange(len(links))).close("enough")
            case 3:
                wire = await stage.stranger(b.address)
                wire.send(rng.randbytes(rng.randrange(200)))
                wire.hang_up()
            case _:
                for link in links:
                    link.send(1, rng.randbytes(1000))
    for link in links:
        link.close("enough")
    await until(lambda: not a.transport._links and not b.transport._links)
    assert not a.transport._outcomes
    assert not b.transport._strangers
    assert len(b.told.losses) == len(b.told.links)
