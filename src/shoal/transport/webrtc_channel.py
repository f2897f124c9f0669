"""One WebRTC data channel as the carrier of a link.

    message on the channel = kind (1) | bytes
    PART, LAST    a piece of a link's message, and its last one
    CREDIT        how many bytes of messages the sender has read so far
    GOODBYE       nothing follows; 1: since you broke the framing

The engine says that it hangs up in one packet, which may be lost. So a goodbye is said in return,
and who said it first hangs up.

A data channel takes whatever comes and hands it over at once: a peer that does not want to read
could not say so. Hence the credit: nobody writes more than WINDOW_BYTES (and the message with which
it passes that) beyond what the other side has read. A side that pauses reading holds that much, and
gives no credit; a peer that goes on all the same is cut off.

Pieces are short, since long ones are not taken by all implementations, and keep others waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import webrtc

from shoal.base.units import KIB
from shoal.transport.endpoint import Endpoint
from shoal.transport.framing import FRAME_HEADER_BYTES, HEAD_ROOM_BYTES, message_bytes_max
from shoal.transport.link import AuthenticatedLink

PIECE_BYTES = 16 * KIB  # RFC 8831, 6.6: what every implementation takes
WINDOW_BYTES = 256 * KIB  # as much as a socket's buffer: a link around the world moves 1 MB/s
CREDIT_EVERY_BYTES = 32 * KIB
BUFFER_BYTES = 64 * KIB  # what waits beyond that stays with the link, where it is counted
LINGER_S = 1.0  # for the peer to hang up, after two goodbyes

PART, LAST, CREDIT, GOODBYE = range(4)
_TOTAL_BYTES = 8
_REJECTING = ("forged", "malformed", "oversized")


class WebRTCCarrier:
    """A data channel that carries a link. Owns its connection from the start."""

    def __init__(
        self,
        owner: Endpoint,
        connection: webrtc.RTCPeerConnection,
        channel: webrtc.RTCDataChannel,
    ) -> None:
        self.link: AuthenticatedLink | None = None
        self._owner = owner
        self._connection = connection
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._buffer_bytes = min(BUFFER_BYTES, owner.limits.queue_low_bytes)
        channel.buffered_amount_low_threshold = self._buffer_bytes // 4
        self._message_bytes_max = message_bytes_max(owner.limits.frame_bytes_max)
        self._blocked = False
        self._sent = self._credit = 0  # bytes of messages: written, and read by the peer
        self._read = self._credited = 0  # and the other way
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._reading = True
        self._unread: deque[bytes | str] = deque()  # messages; last, why there are no more
        self._unread_bytes = 0
        self._farewell = False
        self._heard_goodbye = False
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        channel.on("message", self._on_message)
        channel.on("bufferedamountlow", self._on_room)
        channel.on("close", self._on_close)

    # What the link asks for

    def write(self, message: bytearray) -> None:
        """Send a message in pieces. Each has its kind in front of it: in the head room, or where
        the piece before it ended, which has left."""
        view, end = memoryview(message), len(message)
        start = HEAD_ROOM_BYTES
        while True:
            stop = min(start + PIECE_BYTES, end)
            view[start - 1] = LAST if stop == end else PART
            self._send(bytes(view[start - 1 : stop]))
            if stop == end:
                break
            start = stop
        self._sent += end - HEAD_ROOM_BYTES
        if not self._blocked and not self._has_room(WINDOW_BYTES, self._buffer_bytes):
            self._blocked = True
            if self.link is not None:
                self.link.set_blocked(True)

    def backlog_bytes(self) -> int:
        """What the engine has not sent."""
        return 0 if self._over else self._channel.buffered_amount

    def pause_reading(self) -> None:
        """Keep what comes, and give no credit for it."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand over what was kept, soon: the link must not be told from within its own call."""
        if not self._reading:
            self._reading = True
            if self._unread:
                self._loop.call_soon(self._catch_up)

    def finish(self) -> None:
        """Say goodbye; the peer hangs up when it has read that far."""
        if not self._farewell:
            self._farewell = True
            self._send(bytes((GOODBYE, 0)))

    def abort(self, reason: str) -> None:
        """Hang up; the peer may see why."""
        if self._over:
            return
        if not self._farewell:
            self._send(bytes((GOODBYE, reason in _REJECTING)))
        self._over = True
        self._unread.clear()
        self._pieces.clear()
        if self._heard_goodbye and not self._farewell:
            self._timer = self._loop.call_later(LINGER_S, self._hang_up)
        else:
            self._hang_up()

    # What the engine tells

    def _on_message(self, event: webrtc.MessageEvent) -> None:
        link, data = self.link, event.data
        if link is None or self._over:
            return
        if not isinstance(data, bytes) or not data:
            link.rejected("malformed")
            return
        kind = data[0]
        if kind <= LAST:
            self._take_piece(link, data, last=kind == LAST)
        elif kind == CREDIT and len(data) == 1 + _TOTAL_BYTES:
            self._take_credit(link, int.from_bytes(data[1:], "big"))
        elif kind == GOODBYE and len(data) == 2:
            self._heard_goodbye = True
            self._end("rejected" if data[1] else "closed")
        else:
            link.rejected("malformed")

    def _on_room(self, _event: webrtc.Event) -> None:
        self._unblock()

    def _on_close(self, _event: webrtc.Event) -> None:
        if self._timer is not None:
            self._hang_up()
        self._end("lost")

    def connection_failed(self) -> None:
        """ICE has given up: the peer is gone, or the way to it."""
        self._end("lost")

    # Steps

    def _take_piece(self, link: AuthenticatedLink, data: bytes, *, last: bool) -> None:
        self._pieces_bytes += len(data) - 1
        if self._pieces_bytes > self._message_bytes_max:
            link.rejected("oversized")
            return
        self._pieces.append(data[1:])
        if not last:
            if len(data) <= PIECE_BYTES:
                link.rejected("malformed")  # or a megabyte could come in a million pieces
            return
        message = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._pieces_bytes = 0
        if len(message) < FRAME_HEADER_BYTES:
            link.rejected("malformed")  # or any number of nothings could wait to be read
            return
        if self._reading and not self._unread:
            self._hand_over(link, message)
            return
        self._unread.append(message)
        self._unread_bytes += len(message)
        if self._unread_bytes > WINDOW_BYTES + self._message_bytes_max:
            link.rejected("oversized")  # it ignores that we gave no credit

    def _take_credit(self, link: AuthenticatedLink, total: int) -> None:
        if not self._credit <= total <= self._sent:
            link.rejected("malformed")
            return
        self._credit = total
        self._unblock()

    def _hand_over(self, link: AuthenticatedLink, message: bytes) -> None:
        self._read += len(message)
        link.received(message)
        if self._read - self._credited >= CREDIT_EVERY_BYTES and not self._over:
            self._credited = self._read
            self._send(bytes((CREDIT,)) + self._read.to_bytes(_TOTAL_BYTES, "big"))

    def _catch_up(self) -> None:
        while self._unread and self._reading and not self._over:
            item = self._unread.popleft()
            assert self.link is not None  # nothing is kept before there is one
            if isinstance(item, str):
                self._unread.clear()
                self._end(item)
                return
            self._unread_bytes -= len(item)
            self._hand_over(self.link, item)

    def _has_room(self, window_bytes: int, buffer_bytes: int) -> bool:
        in_window = self._sent - self._credit <= window_bytes
        return in_window and self._channel.buffered_amount <= buffer_bytes

    def _unblock(self) -> None:
        if self._blocked and self._has_room(WINDOW_BYTES // 2, self._buffer_bytes // 4):
            self._blocked = False
            if self.link is not None:
                self.link.set_blocked(False)

    def _end(self, reason: str) -> None:
        """The peer is gone; what it said before is heard first."""
        if self._over:
            return
        if self._unread or not self._reading:
            if not self._unread or not isinstance(self._unread[-1], str):
                self._unread.append(reason)
            return
        if self.link is not None:
            self.link.carrier_gone(reason)
        self.abort(reason)

    def _send(self, data: bytes) -> None:
        if self._over:
            return
        with suppress(webrtc.RTCException):  # it is closing, as we are about to be told
            self._channel.send(data)

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._connection.close()
        self._loop.call_soon(self._gone)

    def _gone(self) -> None:
        self._owner.carrier_closed(self)
        if self.link is not None:
            self.link.carrier_gone("lost")
