"""Strangers: bare connections that say whatever a test wants them to, below the link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from shoal.base.ids import NodeId
from shoal.transport.framing import HEAD_ROOM_BYTES
from shoal.transport.handshake import Handshake, Session
from shoal.transport.link import AuthenticatedLink
from shoal.transport.memory import MemoryCarrier, MemoryNetwork
from shoal.transport.port import Credentials
from shoal.transport.websocket import certificate_digest, dialling_context
from tests.transport.recorder import PATIENCE_S


class Wire(Protocol):
    """Whole messages, as a carrier moves them."""

    binding: bytes

    def send(self, message: bytes) -> None: ...

    async def receive(self) -> bytes | None:
        """The next message; None once the other side has hung up."""
        ...

    def hang_up(self) -> None: ...


async def shake_hands(wire: Wire, credentials: Credentials, peer: NodeId) -> Session:
    """Go through an honest handshake as the dialler."""
    handshake = Handshake(credentials, peer, wire.binding)
    wire.send(handshake.hello)
    while handshake.session is None:
        message = await wire.receive()
        assert message is not None, "the peer hung up"
        answer = handshake.receive(message)
        if answer is not None:
            wire.send(answer)
    return handshake.session


async def hung_up(wire: Wire) -> None:
    """Wait for the other side to hang up, whatever it says before."""
    while await wire.receive() is not None:
        pass


class Inbox:
    """What has come in over a wire."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, message: bytes | None) -> None:
        self._messages.put_nowait(message)

    async def receive(self) -> bytes | None:
        async with asyncio.timeout(PATIENCE_S):
            message = await self._messages.get()
        if message is None:
            self.put(None)
        return message


class MemoryWire(Inbox):
    """One end of a memory connection, with no link on it."""

    binding = b""

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        super().__init__()
        there = network.find(address.partition(":")[2])
        assert there is not None
        self._near, far = MemoryCarrier(there), MemoryCarrier(there)
        self._near.link = cast(AuthenticatedLink, self)
        self._near.join(far)
        if there.may_enter():
            there.shake_hands(far, "memory:stranger")
        else:
            there.handler.handshake_failed("memory:stranger", "busy")
            self.put(None)

    def send(self, message: bytes) -> None:
        self._near.write(bytearray(HEAD_ROOM_BYTES) + message)

    def hang_up(self) -> None:
        self._near.abort("lost")

    # What a carrier tells its link

    def received(self, message: bytes) -> None:
        self.put(message)

    def carrier_gone(self, reason: str) -> None:
        self.put(None)

    def set_blocked(self, blocked: bool) -> None: ...

    def rejected(self, reason: str) -> None:
        raise AssertionError(f"a stranger was sent something {reason}")


class WebSocketWire(WSListener):
    """A bare WebSocket client."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.binding = b""

    @classmethod
    async def open(cls, address: str) -> WebSocketWire:
        wire = cls()
        secure = address.startswith("wss")
        context = dialling_context() if secure else None
        await ws_connect(
            lambda: wire, address, ssl_context=context, max_redirects=0, logger_name="test"
        )
        return wire

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        if transport.is_secure:
            shown: Any = transport.underlying_transport.get_extra_info("ssl_object")
            self.binding = certificate_digest(shown.getpeercert(binary_form=True))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.BINARY:
            self.inbox.put(frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.inbox.put(None)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def send(self, message: bytes) -> None:
        self.transport.send(WSMsgType.BINARY, message)

    async def receive(self) -> bytes | None:
        return await self.inbox.receive()

    def hang_up(self) -> None:
        self.transport.underlying_transport.abort()


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
