"""Links within one process: the fake of the port, with the same handshake and the same bytes.

A MemoryNetwork stands for the wire; transports that share one can reach each other at addresses
such as "memory:alice". All of them live in one event loop. Buffers are bounded as those of a
socket: a writer is told when its peer's is full, and a reader that pauses fills it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.transport.endpoint import Endpoint, Outcome
from shoal.transport.framing import HEAD_ROOM_BYTES, message_bytes_max
from shoal.transport.link import AuthenticatedLink
from shoal.transport.port import Credentials, DialFailed, LinkHandler, TransportLimits

SCHEME = "memory"


class MemoryNetwork:
    """The doors that are open, by name."""

    def __init__(self) -> None:
        self._doors: dict[str, MemoryTransport] = {}
        self._names = 0

    def open(self, name: str, transport: MemoryTransport) -> str:
        """Take a name, or any free one for "0"."""
        if name == "0":
            self._names += 1
            name = f"door-{self._names}"
        if name in self._doors:
            raise UsageError(f"{SCHEME}:{name} is taken: choose another name")
        self._doors[name] = transport
        return name

    def find(self, name: str) -> MemoryTransport | None:
        """Who listens there."""
        return self._doors.get(name)

    def close(self, name: str) -> None:
        """Give a name back."""
        self._doors.pop(name, None)


class MemoryTransport(Endpoint):
    """Makes links of no distance."""

    schemes = (SCHEME,)

    def __init__(
        self,
        credentials: Credentials,
        handler: LinkHandler,
        limits: TransportLimits | None = None,
        *,
        network: MemoryNetwork,
    ) -> None:
        super().__init__(credentials, handler, limits)
        self._network = network

    async def _listen(self, address: str) -> MemoryListener:
        return MemoryListener(self._network, self._network.open(_name_of(address), self))

    async def _connect(self, address: str, peer: NodeId) -> AuthenticatedLink:
        there = self._network.find(_name_of(address))
        if there is None:
            raise DialFailed(f"nobody listens on {address}")
        near, far = MemoryCarrier(self), MemoryCarrier(there)
        near.join(far)
        if not there.may_enter():
            there.tell_failure(address, "busy")
            raise DialFailed(f"busy: too many are knocking on {address}")
        outcome: Outcome = asyncio.get_running_loop().create_future()
        there.shake_hands(far, address)
        self.shake_hands(near, address, expects=peer, outcome=outcome)
        return await self._outcome_of(near, outcome)


class MemoryListener:
    """A name in a network."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self._name = name

    @property
    def address(self) -> str:
        """Where it can be dialled."""
        return f"{SCHEME}:{self._name}"

    async def close(self) -> None:
        """Take no more connections."""
        self._network.close(self._name)


class MemoryCarrier:
    """One end of a connection; holds what is on its way to the other end."""

    _far: MemoryCarrier

    def __init__(self, owner: Endpoint) -> None:
        self.link: AuthenticatedLink | None = None
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._high_bytes = min(owner.limits.queue_low_bytes, owner.limits.socket_buffer_bytes)
        self._wire: deque[bytes | None] = deque()  # None: goodbye
        self._wire_bytes = 0
        self._message_bytes_max = message_bytes_max(owner.limits.frame_bytes_max)
        self._delivery_due = False
        self._blocked = False
        self._reading = True
        self._finished = False
        self._closed = False

    def join(self, far: MemoryCarrier) -> None:
        """Make a connection of two ends."""
        self._far, far._far = far, self

    # What the link asks for

    def write(self, message: bytearray) -> None:
        """Put a message on the wire."""
        if not self._closed and not self._finished:
            self._put(bytes(memoryview(message)[HEAD_ROOM_BYTES:]))

    def backlog_bytes(self) -> int:
        """What the other end has not taken."""
        return self._wire_bytes

    def pause_reading(self) -> None:
        """Leave the messages on the wire."""
        self._reading = False

    def resume_reading(self) -> None:
        """Take them off again."""
        self._reading = True
        self._far._deliver_soon()

    def finish(self) -> None:
        """The goodbye goes behind all messages."""
        if not self._finished:
            self._finished = True
            self._wire.append(None)
            self._deliver_soon()

    def abort(self, reason: str) -> None:
        """Cut the wire: what is on it is lost, in both directions."""
        if not self._closed:
            self._close("lost")
            self._far._close("lost")

    # The wire

    def _put(self, message: bytes) -> None:
        self._wire.append(message)
        self._wire_bytes += len(message)
        if self._wire_bytes > self._high_bytes and not self._blocked:
            self._blocked = True
            if self.link is not None:
                self.link.set_blocked(True)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivery_due:
            self._delivery_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Hand over what is on the wire now; what that brings about comes in a later turn."""
        self._delivery_due = False
        near, far = self.link, self._far.link
        assert near is not None
        assert far is not None
        for _ in range(len(self._wire)):
            if self._closed or not self._far._reading:
                break
            message = self._wire.popleft()
            if message is None:
                far.carrier_gone("closed")
                self._far.abort("closed")
                return
            self._wire_bytes -= len(message)
            if len(message) > self._far._message_bytes_max:
                far.rejected("oversized")
            else:
                far.received(message)
        if self._blocked and self._wire_bytes <= self._high_bytes // 4:
            self._blocked = False
            near.set_blocked(False)

    def _close(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._wire.clear()
        self._wire_bytes = 0
        self._loop.call_soon(self._gone, reason)

    def _gone(self, reason: str) -> None:
        self._owner.carrier_closed(self)
        if self.link is not None:
            self.link.carrier_gone(reason)


def _name_of(address: str) -> str:
    scheme, _, name = address.partition(":")
    if scheme != SCHEME or not name:
        raise UsageError(f"{address!r} is no address of this transport: write memory:NAME")
    return name
