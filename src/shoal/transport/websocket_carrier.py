"""One WebSocket as the carrier of a link: what picows calls, and how the link's wishes are met.

A goodbye is a close frame. Who says it goes on reading, and throws away, until the other side has
hung up: closing a socket with unread bytes would make the kernel cut off what the peer has still
to read.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from shoal.base.ids import NodeId
from shoal.base.units import KIB
from shoal.transport.door import Visitor, limit_buffers
from shoal.transport.endpoint import Endpoint, Outcome
from shoal.transport.framing import HEAD_ROOM_BYTES
from shoal.transport.link import AuthenticatedLink
from shoal.transport.tls import certificate_digest

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
