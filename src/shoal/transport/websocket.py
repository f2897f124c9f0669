"""Links over WebSocket, plain or under TLS, with picows.

Each message of the link is one binary WebSocket message in one frame. Whoever dials masks its
frames, as RFC 6455 asks; picows does so in place. No library setting is left to chance:

- messages above the limit are refused when their header is there, before their bytes are;
- no redirects, proxies or fragments; text and fragments are malformed;
- liveness is the link's own affair: on a plain channel a WebSocket ping could be anybody's.

Of picows we use the protocol itself, and leave its ws_connect and ws_create_server alone, for
three reasons. A server of theirs accepts as many connections as there are, and tells nobody before
they are WebSockets. A cancelled ws_connect forgets its socket. And both prefer the transports of
aiofastnet, which under uvloop let a peer that resets its connection at the right moment end our
process: the socket is closed while it is still polled, and libuv aborts. Those of asyncio and
uvloop themselves are as fast.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any
from urllib.parse import SplitResult, urlsplit

from picows import (
    WSAutoPingStrategy,
    WSError,
    WSInvalidStatusError,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in its .pyi

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.base.page_guard import PageGuard
from shoal.base.units import KIB, seconds
from shoal.transport.door import Door, Visitor, listening_socket, transport_of
from shoal.transport.endpoint import Endpoint, Outcome
from shoal.transport.framing import message_bytes_max
from shoal.transport.link import AuthenticatedLink
from shoal.transport.origins import Origins
from shoal.transport.port import Credentials, DialFailed, LinkHandler, TransportLimits
from shoal.transport.tls import certificate_digest, dialling_context, served_certificate
from shoal.transport.websocket_carrier import AcceptedCarrier, DialledCarrier

REFUSED = 403
REFUSAL_CHARS_MAX = 500  # of what a peer says when it does not let us in
READ_BUFFER_BYTES = 16 * KIB  # to begin with; it grows to twice the longest message

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
        pages: PageGuard | None = None,
    ) -> None:
        """A server context, with its certificate, is needed to listen on wss://. The one for
        dialling is made as needed, and takes any certificate. No web page is let in, unless a
        guard lists its origin."""
        super().__init__(credentials, handler, limits)
        self._tls = tls
        self._tls_binding = b"" if tls is None else certificate_digest(served_certificate(tls))
        self._tls_dialling = tls_dialling or dialling_context()
        self._pages = pages or PageGuard("node")
        self._origins = Origins(self.limits.connections_per_address_max)

    # Listening

    async def _listen(self, address: str) -> Door:
        url = _url_of(address)
        secure = url.scheme == "wss"
        if secure and self._tls is None:
            raise UsageError(f"cannot listen on {address}: give a TLS context with a certificate")
        try:
            sock = await listening_socket(
                url.hostname or "", url.port or 0, self.limits.socket_buffer_bytes
            )
        except (OSError, UnicodeError) as error:
            raise UsageError(f"cannot listen on {address}: {error}") from error
        binding = self._tls_binding if secure else b""

        def upgrade(visitor: Visitor) -> WSProtocol:
            def answer(request: WSUpgradeRequest) -> Any:
                refusal = self._pages.refusal(request.headers, loopback=visitor.loopback)
                if refusal is None:
                    return AcceptedCarrier(self, visitor, binding)
                visitor.refused = refusal.reason
                response = WSUpgradeResponse.create_error_response(REFUSED, refusal.text.encode())
                return WSUpgradeResponseWithListener(response, None)

            return self._protocol(answer)

        return Door(
            self,
            sock,
            scheme=url.scheme,
            timeout_s=self._handshake_timeout_s,
            upgrade=upgrade,
            tls=self._tls_settings(self._tls) if secure else {},
            origins=self._origins,
        )

    # Dialling

    async def _connect(self, address: str, peer: NodeId) -> AuthenticatedLink:
        url = _url_of(address)
        outcome: Outcome = asyncio.get_running_loop().create_future()
        carrier = DialledCarrier(self, address, peer, outcome)
        tls = self._tls_settings(self._tls_dialling) if url.scheme == "wss" else {}
        await self._upgrade(carrier, url, tls)
        return await self._outcome_of(carrier, outcome)

    async def _upgrade(
        self, carrier: DialledCarrier, url: SplitResult, tls: dict[str, Any]
    ) -> None:
        """Connect, and make a WebSocket of it. (By name or number, not over a socket of ours:
        uvloop forgets to let go of one that is reset at once, and closes the descriptor twice.)"""
        loop, address = asyncio.get_running_loop(), url.geturl()
        protocol = self._protocol(lambda _request, _response: carrier, url)
        try:
            transport = await transport_of(
                protocol,
                loop.create_connection(lambda: protocol, url.hostname or "", url.port or 0, **tls),
            )
        except (OSError, UnicodeError) as error:
            raise DialFailed(f"nobody answers at {address}: {error}") from error
        upgraded = False
        try:
            await protocol.wait_until_handshake_complete()
            upgraded = carrier.link is not None
        except WSInvalidStatusError as error:
            raise DialFailed(_refusal(address, error)) from error
        except (WSError, OSError) as error:
            raise DialFailed(f"{address} is no WebSocket: {error}") from error
        finally:
            if not upgraded:  # cancelled perhaps, though there is a link: it ends with this
                transport.abort()
        if not upgraded:
            raise DialFailed(f"closed: {address} hung up during the upgrade")

    # Settings

    def _protocol(self, listener_factory: Any, url: SplitResult | None = None) -> WSProtocol:
        """A WebSocket to be; a client's if there is an address."""
        return WSProtocol(
            None if url is None else url.netloc,
            None if url is None else url.path or "/",
            url is not None,
            listener_factory,
            _SILENT,
            True,  # end the connection when a callback fails
            None,  # no timeout: the door has one, and so has a dial
            False,  # no pings
            1.0,
            1.0,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # no pongs: the carrier answers
            message_bytes_max(self.limits.frame_bytes_max),
            None,  # no headers
            READ_BUFFER_BYTES,
        )

    def _tls_settings(self, context: ssl.SSLContext | None) -> dict[str, Any]:
        return {
            "ssl": context,
            "ssl_handshake_timeout": self._handshake_timeout_s,
            "ssl_shutdown_timeout": seconds(self.limits.close_timeout_ns),
        }


def _url_of(address: str) -> SplitResult:
    url = urlsplit(address)
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme not in WebSocketTransport.schemes or not url.hostname or port is None:
        raise UsageError(f"{address!r} is no address of this transport: write ws://HOST:PORT")
    return url


def _refusal(address: str, error: WSInvalidStatusError) -> str:
    """What a peer says instead of taking us in, as far as it does."""
    if error.response is None or error.response.status != REFUSED:
        return f"busy: {address} lets nobody in ({error})"
    said = (error.raw_body or b"").decode(errors="replace")[:REFUSAL_CHARS_MAX]
    return f"refused: {address}: {said!r}"
