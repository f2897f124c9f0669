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
import hashlib
import logging
import ssl
from abc import abstractmethod
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSError,
    WSFrame,
    WSInvalidStatusError,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in its .pyi

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.base.page_guard import PageGuard
from shoal.base.units import KIB, seconds
from shoal.transport.address_limits import Origins
from shoal.transport.endpoint import Endpoint, Outcome
from shoal.transport.framing import HEAD_ROOM_BYTES, message_bytes_max
from shoal.transport.link import AuthenticatedLink
from shoal.transport.port import Credentials, DialFailed, LinkHandler, TransportLimits
from shoal.transport.socket_listener import (
    Door,
    Visitor,
    limit_buffers,
    listening_socket,
    transport_of,
)

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


# TLS under a link. Certificates need no authority: the handshake proves the id, and is bound to
# the certificate that the server showed (handshake.py).


def dialling_context() -> ssl.SSLContext:
    """For dialling: takes any certificate, since the handshake checks who holds it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def certificate_digest(certificate: bytes) -> bytes:
    """The channel binding of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


def served_certificate(context: ssl.SSLContext) -> bytes:
    """The certificate that a server's context shows, in DER. Python has no call that tells, so
    the context is asked in the only way that there is: by a client, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server = context.wrap_bio(to_server, to_client, server_side=True)
        client = dialling_context().wrap_bio(to_client, to_server)
        for side in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        certificate = client.getpeercert(binary_form=True)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"this TLS context cannot serve: {error}") from error
    if certificate is None:
        raise UsageError("this TLS context shows no certificate: load one into it")
    return certificate


# One WebSocket as the carrier of a link: what picows calls, and how the link's wishes are met.
#
# A goodbye is a close frame. Who says it goes on reading, and throws away, until the other side has
# hung up: closing a socket with unread bytes would make the kernel cut off what the peer has still
# to read.


WRITE_BUFFER_BYTES = 64 * KIB  # what waits beyond that stays with the link, where it is counted

_BINARY = WSMsgType.BINARY

_CODE_OF = {
    "forged": WSCloseCode.POLICY_VIOLATION,
    "malformed": WSCloseCode.PROTOCOL_ERROR,
    "oversized": WSCloseCode.MESSAGE_TOO_BIG,
}
_REJECTING_CODES = set(_CODE_OF.values())


class WebSocketCarrier(WSListener):
    """A WebSocket that carries a link."""

    def __init__(self, owner: Endpoint) -> None:
        self.link: AuthenticatedLink | None = None
        self._owner = owner
        self._farewell = False

    # What the link asks for

    def write(self, message: bytearray) -> None:
        """Send a message; the library writes its header into the room in front."""
        self._send(_BINARY, message, HEAD_ROOM_BYTES)

    def backlog_bytes(self) -> int:
        """What the kernel has not taken."""
        return self._socket.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Leave what comes to the kernel."""
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._socket.resume_reading()

    def finish(self) -> None:
        """Say goodbye; the peer hangs up when it has read that far."""
        if not self._farewell:
            self._farewell = True
            self._ws.send_close(WSCloseCode.OK)

    def abort(self, reason: str) -> None:
        """Hang up; the peer may see why."""
        if not self._ws.is_disconnected:
            if not self._farewell:
                self._farewell = True
                self._ws.send_close(_CODE_OF.get(reason, WSCloseCode.GOING_AWAY))
            self._socket.abort()

    # What picows tells

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The upgrade is done: shake hands."""
        self._ws = transport
        self._socket = transport.underlying_transport
        self._send = transport.send_reuse_external_bytearray
        high = min(WRITE_BUFFER_BYTES, self._owner.limits.queue_low_bytes)
        self._socket.set_write_buffer_limits(high=high, low=high // 4)
        try:
            self._shake_hands()
        except Exception as error:
            self._fail(error)

    @abstractmethod
    def _shake_hands(self) -> None:
        """Begin the handshake of the link, as the side that this is."""

    def _fail(self, error: Exception) -> None:
        """A bug of ours, which picows would take for a fault of the peer, and keep to itself."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a WebSocket link failed", "exception": error}
        )
        self.abort("lost")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame is there; it is valid during this call only."""
        link = self.link
        if link is None or (transport.is_close_frame_sent and not self._farewell):
            return  # the parser gave up on this peer, and goes on all the same for a moment
        try:
            kind = frame.msg_type
            if kind is _BINARY and frame.fin:
                link.received(frame.get_payload_as_bytes())
            elif kind is WSMsgType.CLOSE:
                rejecting = frame.get_close_code() in _REJECTING_CODES
                link.carrier_gone("rejected" if rejecting else "closed")
            elif kind is WSMsgType.PING:
                # Not in the link's queue, hence not counted there: only while there is none.
                if not self.backlog_bytes():
                    transport.send_pong(frame.get_payload_as_bytes())
            elif kind is not WSMsgType.PONG:
                link.rejected("malformed")
        except Exception as error:
            self._fail(error)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The socket is closed."""
        self._owner.carrier_closed(self)
        link, closing = self.link, transport.close_handshake
        if link is None:
            return
        if closing is not None and closing.sent is not None and not self._farewell:
            # Not we said that: picows found a fault.
            too_big = closing.sent.code == WSCloseCode.MESSAGE_TOO_BIG
            link.rejected("oversized" if too_big else "malformed")
        link.carrier_gone("lost")

    def pause_writing(self) -> None:
        """The buffer is full."""
        if self.link is not None:
            self.link.set_blocked(True)

    def resume_writing(self) -> None:
        """The buffer has room."""
        if self.link is not None:
            self.link.set_blocked(False)


class AcceptedCarrier(WebSocketCarrier):
    """The side that was dialled."""

    def __init__(self, owner: Endpoint, visitor: Visitor, binding: bytes) -> None:
        super().__init__(owner)
        self._visitor = visitor
        self._binding = binding

    def _shake_hands(self) -> None:
        visitor = self._visitor
        visitor.entered = True
        timeout_s = max(0.0, visitor.deadline_s - asyncio.get_running_loop().time())
        self._owner.shake_hands(self, visitor.address, binding=self._binding, timeout_s=timeout_s)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The socket is closed."""
        self._visitor.leave()
        super().on_ws_disconnected(transport)


class DialledCarrier(WebSocketCarrier):
    """The side that dialled."""

    def __init__(self, owner: Endpoint, address: str, peer: NodeId, outcome: Outcome) -> None:
        super().__init__(owner)
        self._address = address
        self._peer = peer
        self._outcome = outcome

    def _shake_hands(self) -> None:
        limit_buffers(self._socket.get_extra_info("socket"), self._owner.limits.socket_buffer_bytes)
        binding = b""
        if self._ws.is_secure:
            shown = self._socket.get_extra_info("ssl_object").getpeercert(binary_form=True)
            binding = certificate_digest(shown)
        self._owner.shake_hands(
            self, self._address, expects=self._peer, outcome=self._outcome, binding=binding
        )
