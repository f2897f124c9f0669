"""Sockets of the WebSocket transport: the listening one, which counts who knocks, and dialled ones.

Between accepting a connection and the end of its WebSocket upgrade, the library under us owns it
and tells nobody. A stranger who says nothing in that time would hold a socket unseen, so the
listening socket keeps an eye on what it accepted.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

# Sockets are watched, not waited for: the library closes them, a turn of the loop or two later.
_LOOK_AGAIN_S = 0.001


class Knock(msgspec.Struct, eq=False):
    """A connection that was accepted, and is not a WebSocket yet."""

    sock: socket.socket
    address: str
    deadline_s: float
    told: bool = False


class Door(socket.socket):
    """A listening socket that lets only so many strangers in at a time, and each only so long."""

    def __init__(
        self,
        family: int,
        *,
        scheme: str,
        timeout_s: float,
        may_enter: Callable[[int], bool],
        failed: Callable[[str, str], None],
    ) -> None:
        """May_enter is asked with the number of those who knock already; failed is told
        (address, reason) of everyone who leaves without having become a WebSocket."""
        super().__init__(family, socket.SOCK_STREAM)
        self.scheme = scheme
        self._timeout_s = timeout_s
        self._may_enter = may_enter
        self._failed = failed
        self._knocks: dict[int, Knock] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Given up for the moment it takes to turn somebody away when no other descriptor is free;
        # a connection that cannot be accepted would wake the loop forever.
        self._spare = os.dup(self.fileno())

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; ConnectionAbortedError if it was turned away."""
        try:
            sock, peer = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._turn_away()
            raise ConnectionAbortedError("out of file descriptors") from error
        self._look()
        address = show_address(self.scheme, peer)
        if not self._may_enter(len(self._knocks)):
            sock.close()
            self._failed(address, "busy")
            raise ConnectionAbortedError("too many are knocking")
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        self._knocks[sock.fileno()] = Knock(sock, address, deadline_s)
        self._look_later()
        return sock, peer

    def entered(self, descriptor: int) -> float:
        """A connection became a WebSocket; the seconds that it has left to prove itself."""
        knock = self._knocks.pop(descriptor, None)
        if knock is None:
            return self._timeout_s
        return max(0.0, knock.deadline_s - asyncio.get_running_loop().time())

    async def shut(self) -> None:
        """Turn away those who knock; called after the socket itself was closed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        sockets = [knock.sock for knock in self._knocks.values()]
        self._knocks.clear()
        await hang_up(sockets)

    def _turn_away(self) -> None:
        os.close(self._spare)
        try:
            with suppress(OSError):
                sock, peer = super().accept()
                sock.close()
                self._failed(show_address(self.scheme, peer), "busy")
        finally:
            self._spare = os.dup(self.fileno())

    def _look_later(self) -> None:
        if self._timer is None and self._knocks:
            first_s = min(knock.deadline_s for knock in self._knocks.values())
            self._timer = asyncio.get_running_loop().call_at(first_s, self._look_now)

    def _look_now(self) -> None:
        self._timer = None
        self._look()
        self._look_later()

    def _look(self) -> None:
        """Forget who has left, and cut off who has been knocking for too long."""
        now_s = asyncio.get_running_loop().time()
        for descriptor, knock in list(self._knocks.items()):
            gone = knock.sock.fileno() < 0
            late = not gone and not knock.told and now_s >= knock.deadline_s
            if (gone or late) and not knock.told:
                knock.told = True
                self._failed(knock.address, "timeout" if late else "closed")
            if gone:
                del self._knocks[descriptor]
            elif late:
                knock.deadline_s = now_s + self._timeout_s
                cut(knock.sock)


def cut(sock: socket.socket) -> None:
    """End a connection that somebody else owns: the owner finds the line dead, and closes it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


async def hang_up(sockets: Iterable[socket.socket]) -> None:
    """Cut connections that somebody else owns, and wait until they are closed."""
    waiting = list(sockets)
    for sock in waiting:
        cut(sock)
    while waiting := [sock for sock in waiting if sock.fileno() >= 0]:
        await asyncio.sleep(_LOOK_AGAIN_S)


def limit_buffers(sock: socket.socket, size: int) -> None:
    """Bound the kernel's buffers; to be called before the connection is made."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


async def connected_socket(host: str, port: int, buffer_bytes: int) -> socket.socket:
    """A connection to the first address of a host that answers; OSError if none does."""
    problem: OSError | None = None
    for family, address in await resolve(host, port):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            limit_buffers(sock, buffer_bytes)
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem or OSError(f"{host} has no address")


async def resolve(host: str, port: int, flags: int = 0) -> list[tuple[int, Any]]:
    """Families and addresses of a host; names are looked up in a thread, numbers are not."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        return [(family, address) for family, _, _, _, address in found]
    return [(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))]


def show_address(scheme: str, peer: Any) -> str:
    """An address as people write it, from what a socket says."""
    host, port = peer[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
