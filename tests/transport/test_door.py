"""Strangers that hold sockets, with whichever keys, and a door without a descriptor to spare."""

from __future__ import annotations

import asyncio
import os

import pytest

from shoal.base.units import MS_NS, S_NS
from shoal.transport import socket_listener
from shoal.transport.address_limits import Origin
from shoal.transport.handshake import REFUSALS
from shoal.transport.port import DialFailed, TransportLimits
from shoal.transport.socket_listener import Door
from shoal.transport.websocket import WebSocketTransport
from tests.transport.recorder import Recorder, until
from tests.transport.stage import Stage, credentials, on
from tests.transport.wires import WebSocketWire, connection, ended, hung_up, shake_hands

TWO_EACH = TransportLimits(handshake_timeout_ns=600 * MS_NS, connections_per_address_max=2)


@pytest.fixture
def everybody_is_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of a test come from this machine, and would not be counted. So, they come from
    one address."""

    def origin_of(host: str) -> Origin:
        return host.encode()

    monkeypatch.setattr(socket_listener, "origin_of", origin_of)


@pytest.mark.usefixtures("everybody_is_far_away")
@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_one_address_holds_so_many_sockets_whatever_its_keys(stage: Stage) -> None:
    b = await stage.actor("b", limits=TWO_EACH)
    names = ("one", "two")
    wires = [await stage.stranger(b.address, name) for name in names]
    for wire, name in zip(wires, names, strict=True):
        await shake_hands(wire, credentials(name), b.id)
    await until(lambda: len(b.told.links) == 2)
    async with connection(b.address) as (third, _):
        assert await ended(third) == b""
    assert b.told.failures == ["same-address"]
    assert "same-address" in REFUSALS
    assert b.told.losses == [], "those who are in stay"
    wires[0].hang_up()
    await until(lambda: b.told.losses)
    await shake_hands(await stage.stranger(b.address, "three"), credentials("three"), b.id)


@pytest.mark.usefixtures("everybody_is_far_away")
@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_who_came_to_nothing_is_not_counted(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b", limits=TWO_EACH)
    async with connection(b.address) as (silent, _), connection(b.address) as (loud, writer):
        writer.write(b"x" * 20_000)
        await asyncio.gather(ended(silent), ended(loud))
    await until(lambda: len(b.told.failures) == 2)
    assert set(b.told.failures) <= {"closed", "timeout"}
    await a.dial(b)
    await a.dial(b)


@pytest.mark.usefixtures("everybody_is_far_away")
@on("ws", "ws-uvloop")
async def test_all_doors_of_a_transport_count_together(stage: Stage) -> None:
    b = await stage.actor("b", limits=TWO_EACH)
    second = await b.transport.listen("ws://127.0.0.1:0")
    async with connection(b.address), connection(second.address):
        await until(lambda: sum(origins_of(b.transport)) == 2)
        await second.close()
        await until(lambda: sum(origins_of(b.transport)) == 1)
    await until(lambda: not origins_of(b.transport))


def origins_of(transport: object) -> list[int]:
    """How many connections there are, from each place."""
    assert isinstance(transport, WebSocketTransport)
    return list(transport._origins._counts.values())


@on("ws", "ws-uvloop")
async def test_who_does_not_hang_up_counts_as_a_stranger(stage: Stage) -> None:
    limits = TransportLimits(handshakes_max=2, close_timeout_ns=1 * S_NS)
    a, b = await stage.actor("a"), await stage.actor("b", limits=limits)
    for name in ("one", "two"):
        wire = await stage.stranger(b.address, name)
        assert isinstance(wire, WebSocketWire)
        await shake_hands(wire, credentials(name), b.id)
        wire.transport.underlying_transport.pause_reading()  # and so never hears the goodbye
    await until(lambda: len(b.told.links) == 2)
    await a.dial(b)
    for link in b.told.links[:2]:
        link.close("closed")
    with pytest.raises(DialFailed):
        await a.transport.dial(b.address, b.id)
    assert b.told.failures == ["busy"]
    await until(lambda: not b.transport._strangers)
    await a.dial(b)


@on("ws", "ws-uvloop")
async def test_who_hangs_up_does_not(stage: Stage) -> None:
    b = await stage.actor("b", limits=TransportLimits(handshakes_max=1))
    for name in ("one", "two", "three"):
        wire = await stage.stranger(b.address, name)
        await shake_hands(wire, credentials(name), b.id)
        await until(lambda: b.told.links)
        b.told.links.pop().close("closed")
        wire.hang_up()
        await hung_up(wire)
        await until(lambda: not b.transport._strangers)
    assert b.told.failures == []


def test_a_spare_descriptor_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise OSError("no descriptors")

    async def main() -> None:
        transport = WebSocketTransport(credentials("b"), Recorder())
        listener = await transport.listen("ws://127.0.0.1:0")
        assert isinstance(listener, Door)
        assert listener._spare is not None
        lost = listener._spare
        with monkeypatch.context() as patch:
            patch.setattr(socket_listener, "_spare_descriptor", none_left)
            listener._turn_away()
        theirs = os.open(os.devnull, os.O_RDONLY)
        assert theirs == lost, "a number is given away as soon as it is free"
        try:
            await transport.close()
            os.fstat(theirs)
        finally:
            os.close(theirs)

    asyncio.run(main())


def test_a_spare_descriptor_comes_back() -> None:
    async def main() -> None:
        async with WebSocketTransport(credentials("b"), Recorder()) as transport:
            listener = await transport.listen("ws://127.0.0.1:0")
            assert isinstance(listener, Door)
            listener._give_up_spare()
            listener._turn_away()
            assert listener._spare is not None

    asyncio.run(main())
