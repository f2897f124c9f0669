"""A listening socket that knows who knocks: strangers are counted from their first packet on.

A connection goes through TLS, if any, and the WebSocket upgrade before the handshake of the link
can begin. All of that together has one time limit, and all connections on their way through it
one number: otherwise a stranger who says nothing would hold a socket that nobody sees. Connections
from one address are counted to their end: otherwise a stranger with many keys would hold them all.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from shoal.base.page_guard import is_loopback_address
from shoal.transport.address_limits import Origin, Origins, origin_of

BACKLOG = 128  # connections that the kernel has accepted and we have not
ACCEPTS_PER_TURN_MAX = 32  # so that a crowd at the door does not stall the links inside


class Visitor:
    """A connection that was accepted."""

    def __init__(
        self, address: str, deadline_s: float, origins: Origins, origin: Origin | None
    ) -> None:
        """It has entered its origins, and leaves them when it is over."""
        self.address = address
        self.deadline_s = deadline_s
        self.greeted = False
        """Its socket belongs to a transport, which closes it."""
        self.entered = False
        """Set by whoever takes it over, once it is a WebSocket, and says when it has left."""
        self.refused: str | None = None
        """Why it may not come in, if it said so much that this is known."""
        self.loopback = False
        """Whether it came in at an address of loopback."""
        self._origins = origins
        self._origin = origin
        self._left = False

    def leave(self) -> None:
        """Its connection is over. Said again, it changes nothing."""
        if not self._left:
            self._left = True
            self._origins.leave(self._origin)


class DoorOwner(Protocol):
    """What a door asks of its transport."""

    def may_enter(self, waiting: int = 0) -> bool:
        """Whether one more stranger may come, beside so many who are at the door."""
        ...

    def tell_failure(self, address: str, reason: str) -> None:
        """A stranger got no further."""
        ...


class Door:
    """Accepts connections, and sees them through to the upgrade or out."""

    def __init__(
        self,
        owner: DoorOwner,
        sock: socket.socket,
        *,
        scheme: str,
        timeout_s: float,
        upgrade: Callable[[Visitor], Any],
        tls: dict[str, Any],
        origins: Origins,
    ) -> None:
        """The upgrade makes the protocol for a visitor, a WSProtocol of picows; tls holds what
        the event loop is to know about it, if there is any. Origins are those of all doors."""
        self._owner = owner
        self._sock = sock
        self._origins = origins
        self._scheme = scheme
        self._timeout_s = timeout_s
        self._upgrade = upgrade
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._visits: dict[asyncio.Task[None], tuple[Visitor, socket.socket]] = {}
        # Given up for the moment it takes to turn somebody away when no other descriptor is free;
        # a connection that cannot be accepted would wake the loop forever.
        self._spare: int | None = _spare_descriptor()
        self._address = show_address(scheme, sock.getsockname())
        self._loop.add_reader(sock.fileno(), self._accept)

    @property
    def address(self) -> str:
        """Where it can be dialled, with the real port."""
        return self._address

    async def close(self) -> None:
        """Take no more connections; turn away those who are knocking."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._give_up_spare()
        visits = dict(self._visits)
        for visit, (visitor, sock) in visits.items():
            visit.cancel()
            if not visitor.greeted:  # and never will be: its task was cancelled before it began
                sock.close()
        await asyncio.gather(*visits, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return  # it was gone before we came to it
                self._turn_away()
                if self._spare is None:
                    return  # nobody can be turned away, before somebody lets go of a file
                continue
            self._greet(sock, peer)

    def _greet(self, sock: socket.socket, peer: Any) -> None:
        address, origin = show_address(self._scheme, peer), origin_of(peer[0])
        # Who has entered is counted by the owner, though its visit ends a turn later.
        if not self._owner.may_enter(sum(not one.entered for one, _ in self._visits.values())):
            sock.close()
            self._owner.tell_failure(address, "busy")
            return
        if not self._origins.enter(origin):
            sock.close()
            self._owner.tell_failure(address, "same-address")
            return
        sock.setblocking(False)
        visitor = Visitor(address, self._loop.time() + self._timeout_s, self._origins, origin)
        with suppress(OSError):  # it is gone again
            visitor.loopback = is_loopback_address(sock.getsockname()[0])
        visit = self._loop.create_task(self._visit(visitor, sock))
        self._visits[visit] = visitor, sock
        visit.add_done_callback(self._visited)

    def _visited(self, visit: asyncio.Task[None]) -> None:
        visitor, _ = self._visits.pop(visit)
        if not visitor.entered:
            visitor.leave()

    async def _visit(self, visitor: Visitor, sock: socket.socket) -> None:
        visitor.greeted = True
        reason, upgrade = "closed", self._upgrade(visitor)
        try:
            async with asyncio.timeout_at(visitor.deadline_s):
                transport = await transport_of(
                    upgrade, self._loop.connect_accepted_socket(lambda: upgrade, sock, **self._tls)
                )
                try:
                    # Returns when it is a WebSocket, and also when it will never be one.
                    await upgrade.wait_until_handshake_complete()
                finally:
                    if not visitor.entered:
                        transport.abort()
        except TimeoutError:
            reason = "timeout"
        except OSError:
            pass  # TLS came to nothing, or the connection did
        if not visitor.entered:
            self._owner.tell_failure(visitor.address, visitor.refused or reason)

    def _turn_away(self) -> None:
        self._give_up_spare()
        with suppress(OSError):
            sock, peer = self._sock.accept()
            sock.close()
            self._owner.tell_failure(show_address(self._scheme, peer), "busy")
        with suppress(OSError):  # another thread was faster
            self._spare = _spare_descriptor()

    def _give_up_spare(self) -> None:
        """Once: its number may be somebody else's file by then."""
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)


async def listening_socket(host: str, port: int, buffer_bytes: int) -> socket.socket:
    """A socket that listens on the first address of a host; OSError if it cannot."""
    family, here = await _resolve(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        limit_buffers(sock, buffer_bytes)
        sock.bind(here)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def limit_buffers(sock: socket.socket, size: int) -> None:
    """Bound the kernel's buffers, which would grow to several megabytes each."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def show_address(scheme: str, peer: Any) -> str:
    """An address as people write it, from what a socket says."""
    host, port = peer[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def transport_of(upgrade: Any, connecting: Awaitable[tuple[Any, Any]]) -> asyncio.Transport:
    """What the event loop makes of a connection; when cancelled, the connection is over.

    A cancelled uvloop closes the descriptor and leaves it at that, even if the protocol has read
    by then, and begun a link: the link would live on, and write to whichever connection gets the
    same descriptor next. So the protocol hears of its end from us. That it may hear it again from
    asyncio does no harm.
    """
    transport: asyncio.Transport
    try:
        transport, _ = await connecting
    except BaseException:
        if upgrade.transport is not None:
            upgrade.transport.underlying_transport.abort()
        if upgrade.listener is not None and not upgrade.transport.is_disconnected:
            upgrade.connection_lost(None)
        raise
    return transport


async def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Names are looked up in a thread, numbers are not."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        (family, _, _, _, address), *_ = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return family, address
    return (socket.AF_INET if version == 4 else socket.AF_INET6), (host, port)


def _spare_descriptor() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
