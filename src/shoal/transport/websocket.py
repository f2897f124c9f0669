"""Links over WebSocket, plain or under TLS, with picows.

Each message of the link is one binary WebSocket message in one frame. Whoever dials masks its
frames, as RFC 6455 asks; picows does so in place. No library setting is left to chance:

- messages above the limit are refused when their header is there, before their bytes are;
- no redirects, proxies or fragments; text and fragments are malformed;
- liveness is the link's own affair: on a plain channel a WebSocket ping could be anybody's.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

from picows import (
    WSError,
    WSInvalidStatusError,
    WSListener,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_connect,
    ws_create_server,
)

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.base.units import seconds
from shoal.transport.door import (
    Door,
    connected_socket,
    cut,
    hang_up,
    limit_buffers,
    resolve,
    show_address,
)
from shoal.transport.endpoint import Endpoint, Outcome
from shoal.transport.framing import message_bytes_max
from shoal.transport.link import AuthenticatedLink
from shoal.transport.port import Credentials, DialFailed, LinkHandler, TransportLimits
from shoal.transport.tls import certificate_digest, dialling_context, served_certificate
from shoal.transport.websocket_carrier import AcceptedCarrier, DialledCarrier

# picows logs every fault of a peer as an error. Ours are counted, by whom they concern.
_SILENT = logging.Logger("shoal.transport.picows", level=logging.CRITICAL + 1)


class WebSocketTransport(Endpoint):
    """Makes links over "ws://host:port" and, with TLS, "wss://host:port"."""

    schemes = ("ws", "wss")

    def __init__(
        self,
        credentials: Credentials,
        handler: LinkHandler,
        limits: TransportLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        tls_dialling: ssl.SSLContext | None = None,
    ) -> None:
        """A server context, with its certificate, is needed to listen on wss://. The one for
        dialling is made as needed, and takes any certificate."""
        super().__init__(credentials, handler, limits)
        self._tls = tls
        self._tls_binding = b"" if tls is None else certificate_digest(served_certificate(tls))
        self._tls_dialling = tls_dialling or dialling_context()
        self._upgrades: set[asyncio.Task[Any]] = set()
        self._sockets: set[socket.socket] = set()
        self._settings: dict[str, Any] = {
            "enable_auto_pong": False,
            "logger_name": _SILENT,
            "max_frame_size": message_bytes_max(self.limits.frame_bytes_max),
            "websocket_handshake_timeout": self._handshake_timeout_s,
        }
        self._tls_settings: dict[str, Any] = {
            "ssl_handshake_timeout": self._handshake_timeout_s,
            "ssl_shutdown_timeout": seconds(self.limits.close_timeout_ns),
        }

    async def close(self) -> None:
        """Close everything, and see to it that no socket is left."""
        await super().close()
        await hang_up(self._sockets)
        await asyncio.gather(*self._upgrades, return_exceptions=True)

    # Listening

    async def _listen(self, address: str) -> WebSocketListener:
        url = _url_of(address)
        secure = url.scheme == "wss"
        if secure and self._tls is None:
            raise UsageError(f"cannot listen on {address}: give a TLS context with a certificate")
        host, port = url.hostname or "", url.port or 0
        settings = {**self._settings, **self._tls_settings} if secure else self._settings
        binding = self._tls_binding if secure else b""
        try:
            (family, here), *_ = await resolve(host, port, socket.AI_PASSIVE)
            door = Door(
                family,
                scheme=url.scheme,
                timeout_s=self._handshake_timeout_s,
                may_enter=self.may_enter,
                failed=self.tell_failure,
            )
            try:
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                limit_buffers(door, self.limits.socket_buffer_bytes)
                door.bind(here)
                server = await ws_create_server(
                    lambda request: self._welcome(request, door, binding),
                    sock=door,
                    ssl=self._tls if secure else None,
                    **settings,
                )
            except BaseException:
                door.close()
                await door.shut()
                raise
        except (OSError, UnicodeError) as error:
            raise UsageError(f"cannot listen on {address}: {error}") from error
        return WebSocketListener(server, door, show_address(url.scheme, door.getsockname()))

    def _welcome(
        self, request: WSUpgradeRequest, door: Door, binding: bytes
    ) -> WSListener | WSUpgradeResponseWithListener:
        if self.may_enter():
            return AcceptedCarrier(self, door, binding)
        response = WSUpgradeResponse.create_error_response(HTTPStatus.SERVICE_UNAVAILABLE)
        return WSUpgradeResponseWithListener(response, None)

    # Dialling

    async def _connect(self, address: str, peer: NodeId) -> AuthenticatedLink:
        url = _url_of(address)
        try:
            sock = await connected_socket(
                url.hostname or "", url.port or 0, self.limits.socket_buffer_bytes
            )
        except (OSError, UnicodeError) as error:
            raise DialFailed(f"nobody answers at {address}: {error}") from error
        self._sockets = {sock, *(old for old in self._sockets if old.fileno() >= 0)}
        outcome: Outcome = asyncio.get_running_loop().create_future()
        carrier = DialledCarrier(self, address, peer, outcome)
        await self._upgrade(carrier, sock, address, secure=url.scheme == "wss")
        if carrier.link is None:
            raise DialFailed(f"closed: {address} hung up during the upgrade")
        return await self._outcome_of(carrier, outcome)

    async def _upgrade(
        self, carrier: DialledCarrier, sock: socket.socket, address: str, *, secure: bool
    ) -> None:
        """Make a WebSocket of a connection."""
        upgrade = asyncio.get_running_loop().create_task(
            ws_connect(
                lambda _request, _response: carrier,
                address,
                ssl_context=self._tls_dialling if secure else None,
                socket_factory=lambda _url: sock,
                max_redirects=0,
                **self._settings,
                **(self._tls_settings if secure else {}),
            )
        )
        self._upgrades.add(upgrade)
        upgrade.add_done_callback(self._upgraded)
        try:
            # picows forgets its socket when it is cancelled here. A dead line ends it properly.
            await asyncio.shield(upgrade)
        except asyncio.CancelledError:
            cut(sock)
            raise
        except WSInvalidStatusError as error:
            raise DialFailed(f"busy: {address} lets nobody in ({error})") from error
        except (WSError, OSError) as error:
            raise DialFailed(f"{address} is no WebSocket: {error}") from error

    def _upgraded(self, upgrade: asyncio.Task[Any]) -> None:
        self._upgrades.discard(upgrade)
        if not upgrade.cancelled():
            upgrade.exception()  # seen by whoever waits for it, if anybody still does


class WebSocketListener:
    """An open port."""

    def __init__(self, server: asyncio.Server, door: Door, address: str) -> None:
        self._server = server
        self._door = door
        self._address = address

    @property
    def address(self) -> str:
        """Where it can be dialled, with the real port."""
        return self._address

    async def close(self) -> None:
        """Take no more connections; turn away those who are knocking."""
        self._server.close()
        await self._door.shut()


def _url_of(address: str) -> SplitResult:
    url = urlsplit(address)
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme not in WebSocketTransport.schemes or not url.hostname or port is None:
        raise UsageError(f"{address!r} is no address of this transport: write ws://HOST:PORT")
    return url
