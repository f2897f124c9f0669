"""How many connections a gateway takes: each has a descriptor, of which a process has only so many,
and the node's own links and files need some of them."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import cast

from aiohttp import web

from shoal.gateway.config import (
    CONNECTIONS_MAX,
    DESCRIPTORS_LEFT,
    RESERVED_BYTES_MAX,
    RESERVED_MAX,
    RESERVED_S,
)
from shoal.gateway.requests import problem


def connections_max() -> int:
    """As many as the process can bear, and no more than the bound."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(descriptors // 2, descriptors - DESCRIPTORS_LEFT))


class Entrance:
    """Makes the protocol of each new connection: the server's, while there is room. Beyond that
    there is room for probes: who asks whether the process lives hears that it does, and everybody
    else that the gateway is full."""

    def __init__(self, server: web.Server, most: int, on_refused: Callable[[], None]) -> None:
        self._server = server
        self._most = most
        self._on_refused = on_refused
        self._reserved: dict[_Reserved, None] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        if len(self._server.connections) < self._most:
            return self._server()
        while len(self._reserved) >= RESERVED_MAX:
            next(iter(self._reserved)).refuse()  # a probe asks at once
        reserved = _Reserved(self._most, self._ended)
        self._reserved[reserved] = None
        return reserved

    @property
    def problem(self) -> str | None:
        """For readiness: whether another client would be refused."""
        if len(self._server.connections) < self._most:
            return None
        return f"all {self._most} connections are taken: others are refused until some end"

    def close(self) -> None:
        """Hang up on those that have asked nothing yet."""
        for reserved in list(self._reserved):
            reserved.refuse()

    def _ended(self, reserved: _Reserved, *, refused: bool) -> None:
        self._reserved.pop(reserved, None)
        if refused:
            self._on_refused()


class _Reserved(asyncio.Protocol):
    """Answers one request, and hangs up: 200 for /health, 503 for all else."""

    def __init__(self, most: int, on_end: Callable[..., None]) -> None:
        self._most = most
        self._on_end = on_end
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._over:  # it had to make room while its TLS handshake was under way
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(RESERVED_S, self.refuse)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._head += data[:RESERVED_BYTES_MAX]
        complete = b"\r\n\r\n" in self._head
        if not complete and len(self._head) < RESERVED_BYTES_MAX:
            return
        method, _, rest = self._head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if complete and method in (b"GET", b"HEAD") and path == b"/health":
            self._answer("200 OK", b"" if method == b"HEAD" else b"{}")
        else:
            self.refuse()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(refused=False)

    def refuse(self) -> None:
        """Say that there is no room."""
        text = problem(f"{self._most} connections are open here: try again, or ask another node")
        self._answer("503 Service Unavailable", text.encode(), "Retry-After: 1\r\n")

    def _answer(self, status: str, body: bytes, more: str = "") -> None:
        if not self._over and self._transport is not None:
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
            )
            self._transport.write(head.encode() + body)
            self._transport.close()
        self._end(refused=status.startswith("503"))

    def _end(self, *, refused: bool) -> None:
        if not self._over:
            self._over = True
            if self._patience is not None:
                self._patience.cancel()
            self._on_end(self, refused=refused)
