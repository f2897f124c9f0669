"""User connections: two applications talk over the link of their nodes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from shoal.base.errors import SearchUnavailable, ShoalError, UsageError
from shoal.base.ids import Contact, NodeId, node_id, parse_node_id, show_node_id
from shoal.base.units import MIB, S_NS
from shoal.config.sections import PeerEntry
from shoal.node.search.client import NodeSearch, Token
from shoal.protocols.search.commands import (
    CloseUser,
    ConnectUser,
    ListenUser,
    SendUser,
    UserArrived,
    UserClosed,
    UserOpened,
    UserReceived,
    UserRefused,
)
from shoal.protocols.search.config import USER_DATA_BYTES_MAX
from shoal.protocols.search.wire import write_connect

CONNECT_TIMEOUT_S = 30.0  # a dial, and an answer of an application
QUEUE_BYTES_MAX = 4 * MIB  # that wait for their reader
BACKLOG_MAX = 64  # connections that wait to be taken
PATIENCE_NS = 2 * S_NS  # a sender waits this long for stuck neighbours, once

Peer = str | bytes | Contact
_Key = tuple[NodeId, int]


class UserConnection:
    """One end of a connection: send, and iterate over what comes. Each send is one item at the
    other end, in order. Made by Node.connect and Node.accept."""

    def __init__(self, connections: UserConnections, peer: NodeId, number: int, type: str) -> None:
        self.type = type
        self.key: _Key = (peer, number)
        self._connections = connections
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._problem: ShoalError | None = None
        self._closed = False
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"UserConnection({self.peer!r}, {self.type!r})"

    @property
    def peer(self) -> str:
        """The node at the other end, which has proven who it is."""
        return show_node_id(self.key[0])

    @property
    def closed(self) -> bool:
        """Whether one of both ends has closed it, or it was lost."""
        return self._closed

    # What the application does

    async def send(self, content: bytes) -> None:
        """Something for the other end, 64 KiB at most; waits while the network cannot keep up."""
        if not isinstance(content, bytes | bytearray | memoryview):
            raise UsageError(f"content of type {type(content).__name__}: encode it, send bytes")
        if len(content) > USER_DATA_BYTES_MAX:
            raise UsageError(
                f"{len(content):,} bytes: send {USER_DATA_BYTES_MAX:,} at most, in parts"
            )
        await self._connections.send(self, bytes(content))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._queue:
            if self._problem is not None:
                raise self._problem
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        content = self._queue.popleft()
        self._queued_bytes -= len(content)
        return content

    async def close(self) -> None:
        """End it; the other end gets what was sent before."""
        await self._connections.close(self)

    # What the machine says

    def received(self, content: bytes) -> bool:
        """Something came; whether there was room for it."""
        if self._queued_bytes + len(content) > QUEUE_BYTES_MAX:
            self._problem = SearchUnavailable(
                f"more than {QUEUE_BYTES_MAX // MIB} MiB from {self.peer} waited to be read: the"
                " connection was closed; read faster, or have the other end wait for answers"
            )
            return False
        self._queue.append(content)
        self._queued_bytes += len(content)
        self._wake.set()
        return True

    def ended(self) -> None:
        """End the iteration, after what is queued."""
        self._closed = True
        self._wake.set()


class Incoming:
    """Iterates over connections that others open. Each is closed by whoever takes it, or at the
    end of the context. Made by Node.accept."""

    def __init__(self) -> None:
        self.connections: list[UserConnection] = []
        """All that came and were not closed."""
        self._queue: deque[UserConnection] = deque()
        self._closed = False
        self._wake = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[UserConnection]:
        return self

    async def __anext__(self) -> UserConnection:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()

    def arrived(self, connection: UserConnection) -> bool:
        """One more; whether there was room for it."""
        if self._closed or len(self._queue) >= BACKLOG_MAX:
            return False
        self.connections = [one for one in self.connections if not one.closed] + [connection]
        self._queue.append(connection)
        self._wake.set()
        return True

    def ended(self) -> None:
        """End the iteration, after what is queued."""
        self._closed = True
        self._wake.set()


class _Opening(Token):
    """The token of a connection that is asked for."""

    def __init__(self, connections: UserConnections, type: str) -> None:
        self.answer: asyncio.Future[UserConnection] = asyncio.get_running_loop().create_future()
        self.wanted = True
        self._connections = connections
        self._type = type

    def heard(self, event: Any) -> None:
        if isinstance(event, UserOpened):
            # At once: what the other end says first may come in the same turn.
            connection = self._connections.opened(event, self._type, self.wanted)
            if not self.answer.done():
                self.answer.set_result(connection)
        elif isinstance(event, UserRefused):
            self._fail(event.reason)

    def ended(self) -> None:
        self._fail("this node is closed")

    def _fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(SearchUnavailable(reason))


class UserConnections(Token):
    """Connections of the applications on one node."""

    def __init__(self, door: NodeSearch) -> None:
        self._door = door
        self._open: dict[_Key, UserConnection] = {}
        self._incoming: dict[str, Incoming] = {}
        door.listeners.append(self.heard)
        door.remember(self)

    # What the application does

    @asynccontextmanager
    async def connect(
        self, peer: Peer, type: str, addresses: Sequence[str]
    ) -> AsyncIterator[UserConnection]:
        """A connection to somebody who accepts this type; closed at the end."""
        write_connect(type)  # whether it can be a type
        connection = await self._connect(self._contact(peer, tuple(addresses)), type)
        try:
            yield connection
        finally:
            await self.close(connection)

    @asynccontextmanager
    async def accept(self, type: str) -> AsyncIterator[Incoming]:
        """Connections of this type, as others open them."""
        write_connect(type)
        if type in self._incoming:
            raise UsageError(f"connections of type {type!r} are accepted already: once is enough")
        incoming = self._incoming[type] = Incoming()
        try:
            await self._door.say(ListenUser(type))
            yield incoming
        finally:
            del self._incoming[type]
            incoming.ended()
            await self._door.say_last(ListenUser(type, accept=False))
            for connection in incoming.connections:
                await self.close(connection)

    async def send(self, connection: UserConnection, content: bytes) -> None:
        """For UserConnection.send."""
        await self._door.host.wait_for_room(PATIENCE_NS)
        if connection.closed:
            raise SearchUnavailable(f"the connection to {connection.peer} has ended: open another")
        await self._door.say(SendUser(*connection.key, content))

    async def close(self, connection: UserConnection) -> None:
        """For UserConnection.close."""
        connection.ended()
        if self._open.pop(connection.key, None) is not None:
            await self._door.say_last(CloseUser(*connection.key))

    # What the machine says

    def opened(self, event: UserOpened, type: str, wanted: bool) -> UserConnection:
        """The other end has accepted; perhaps nobody here waits for it any more."""
        connection = UserConnection(self, event.peer, event.number, type)
        self._open[connection.key] = connection
        if not wanted:
            self._drop(connection)
        return connection

    def heard(self, event: Any) -> None:
        if isinstance(event, UserArrived):
            self._arrived(event)
        elif isinstance(event, UserReceived):
            connection = self._open.get((event.peer, event.number))
            if connection is not None and not connection.received(event.content):
                self._drop(connection)
        elif isinstance(event, UserClosed):
            connection = self._open.pop((event.peer, event.number), None)
            if connection is not None:
                connection.ended()

    def ended(self) -> None:
        for connection in self._open.values():
            connection.ended()
        for incoming in self._incoming.values():
            incoming.ended()

    # Steps

    def _contact(self, peer: Peer, addresses: tuple[str, ...]) -> Contact:
        """How a node is reached: as the application says, or as we know it."""
        if isinstance(peer, Contact):
            return peer
        node = parse_node_id(peer) if isinstance(peer, str) else node_id(peer)
        if addresses:
            return PeerEntry(show_node_id(node), addresses).contact()
        # Without an address a link that is there will do.
        return self._door.contact_of(node) or Contact(node)

    async def _connect(self, contact: Contact, type: str) -> UserConnection:
        opening = _Opening(self, type)
        self._door.remember(opening)
        try:
            await self._door.say(ConnectUser(contact, type), opening)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await opening.answer
        except TimeoutError:
            raise self._refused(contact, f"no answer within {CONNECT_TIMEOUT_S:g} s") from None
        except SearchUnavailable as error:
            raise self._refused(contact, str(error)) from None
        finally:
            opening.wanted = False
            self._door.forget(opening)

    def _refused(self, contact: Contact, reason: str) -> SearchUnavailable:
        remedy = (
            "is it there, and does an application accept this type?"
            if contact.addresses
            else 'this node has not met it: give its addresses=["ws://HOST:PORT"]'
        )
        who, dialled = show_node_id(contact.node), self._door.host.dial_problem(contact.node)
        problem = f"{reason}: {dialled}" if dialled and contact.addresses else reason
        return SearchUnavailable(f"no connection to {who} ({problem}): {remedy}")

    def _arrived(self, event: UserArrived) -> None:
        connection = UserConnection(self, event.peer, event.number, event.type)
        self._open[connection.key] = connection
        incoming = self._incoming.get(event.type)
        if incoming is None or not incoming.arrived(connection):
            self._drop(connection)

    def _drop(self, connection: UserConnection) -> None:
        """Close a connection from within a step of the machine."""
        connection.ended()
        del self._open[connection.key]
        self._door.host.command(self._door.machine, CloseUser(*connection.key))
