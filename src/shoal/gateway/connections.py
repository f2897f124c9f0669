"""How many connections a gateway takes: each has a descriptor, of which a process has only so many,
and the node's own links and files need some of them."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import cast

from aiohttp import web

from shoal.gateway.answers import problem
from shoal.gateway.config import CONNECTIONS_MAX, DESCRIPTORS_LEFT


def connections_max() -> int:
    """As many as the process can bear, and no more than the bound."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(descriptors // 2, descriptors - DESCRIPTORS_LEFT))


class Entrance:
    """Makes the protocol of each new connection: the server's, while there is room."""

    def __init__(self, server: web.Server, most: int, on_refused: Callable[[], None]) -> None:
        self._server = server
        self._most = most
        self._on_refused = on_refused

    def __call__(self) -> asyncio.BaseProtocol:
        if len(self._server.connections) < self._most:
            return self._server()
        self._on_refused()
        return _Refusal(self._most)


class _Refusal(asyncio.Protocol):
    """Says why, and hangs up."""

    def __init__(self, most: int) -> None:
        self._text = problem(f"{most} connections are open here: try again, or ask another node")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        body = self._text.encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        )
        cast(asyncio.Transport, transport).write(head.encode() + body)
        transport.close()
