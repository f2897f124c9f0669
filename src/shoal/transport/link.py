"""What links of every transport share: handshake, framing, queue, liveness, and a clean end.

Theory of operation. A carrier moves whole messages of one connection, in order, and knows nothing
of their meaning. The link on top goes through four phases, and never back:

    SHAKING   the messages are those of the handshake; nobody has heard of the link
    UP        payloads flow
    CLOSING   we close: what is queued still leaves, what comes in is thrown away
    OVER      nothing more is sent or told; the carrier is closed, or about to be

Sending. Payloads of one loop turn gather in the writer, and a flush at its end hands them to the
carrier as one message. When the carrier's buffer is full they wait in the writer, by reference: a
payload that goes to many slow peers is held once.

Liveness. A peer that is silent for long is asked, and answers; messages with one frame of protocol
0 carry both. A side that has paused reading hears no question, so it speaks up unasked.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Protocol

from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError, UsageError
from shoal.base.units import seconds
from shoal.transport.framing import (
    BATCH_BYTES_MAX,
    CONTROL,
    HEAD_ROOM_BYTES,
    ForgedMessage,
    FrameReader,
    FrameWriter,
)
from shoal.transport.handshake import Handshake, HandshakeFailed
from shoal.transport.port import Frame, LinkHandler, PeerInfo, TransportLimits

ASK = b"?"
ALIVE = b"!"

CLOCK_TICK_S = 0.001  # of uvloop

_REJECTION_OF: dict[type[RemoteError], str] = {
    ForgedMessage: "forged",
    MalformedMessage: "malformed",
    OversizedMessage: "oversized",
}


class Phase(enum.Enum):
    """Where a link stands."""

    SHAKING = "shaking"
    UP = "up"
    CLOSING = "closing"
    OVER = "over"


class AuthenticatedLink:
    """A Link over any carrier."""

    def __init__(
        self,
        owner: LinkOwner,
        carrier: Carrier,
        handshake: Handshake,
        address: str,
        timeout_s: float,
    ) -> None:
        """A link to whoever is at the address, which has so long to prove itself."""
        self.dialled = handshake.side == "dialler"
        self.address = address
        self._owner = owner
        self._handler = owner.handler
        self._limits = owner.limits
        self._frame_bytes_max = owner.limits.frame_bytes_max
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._handshake = handshake
        self._phase = Phase.SHAKING
        self._sending = False
        self._blocked = False
        self._gone = False
        self._paused = False
        self._high = False
        self._flush_due = False
        self._held: list[Callable[[], None]] | None = None
        self._then: list[Callable[[], None]] = []
        self._heard_s = self._watch_s = self._loop.time()
        self._timer = self._loop.call_later(timeout_s, self._refuse, "timeout", "no proof in time")

    # The port

    @property
    def peer(self) -> PeerInfo:
        """Who is there; known once the handshake is done."""
        return self._peer

    @property
    def queued_bytes(self) -> int:
        """What waits to be sent, here and in the carrier."""
        if self._phase in (Phase.SHAKING, Phase.OVER):
            return 0
        return self._writer.queued_bytes + self._carrier.backlog_bytes()

    def send(self, protocol: int, payload: bytes) -> None:
        """Queue one payload."""
        if len(payload) > self._frame_bytes_max or not 0 < protocol < 256:
            raise UsageError(
                f"{len(payload)} bytes of protocol {protocol}: a payload has at most"
                f" {self._frame_bytes_max}, protocols are 1 to 255"
            )
        if not self._sending:
            return
        queued_bytes = self._writer.add(protocol, payload)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        if queued_bytes > BATCH_BYTES_MAX:
            self._overflow()

    def unsent(self) -> list[Frame]:
        """What waits here; what the carrier was given has left."""
        return self._writer.frames()

    def pause_reading(self) -> None:
        """Let the peer's queue fill."""
        if self._phase is Phase.UP and not self._paused:
            self._paused = True
            self._carrier.pause_reading()

    def resume_reading(self) -> None:
        """Read again. The peer's silence counts from now: we could not hear it."""
        if self._phase is Phase.UP and self._paused:
            self._paused = False
            self._heard_s = self._loop.time()
            self._carrier.resume_reading()

    def close(self, reason: str, then: Callable[[], None] | None = None) -> None:
        """Flush, then close. The reason stays here: the peer hears a plain goodbye."""
        if then is not None:
            self._then.append(then)
        if self._phase is Phase.OVER:
            self._tell_end()
        if self._phase is Phase.SHAKING or self._gone:
            self._end(reason)
        if self._phase is not Phase.UP:
            return
        self._phase = Phase.CLOSING
        self._owner.link_closing(self, self._carrier)
        self._sending = False
        self._held = None
        self._timer.cancel()
        self._timer = self._loop.call_later(
            seconds(self._limits.close_timeout_ns), self._end, "too-slow"
        )
        # Bytes left unread at the end would make the kernel cut off what the peer has not read.
        self._carrier.resume_reading()
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    # What the transport does

    def start(self) -> None:
        """Say Hello."""
        self._write_handshake(self._handshake.hello)

    def hold(self) -> None:
        """Tell the handler nothing, until release_soon."""
        self._held = []

    def release_soon(self) -> None:
        """Tell the handler what happened meanwhile, in the next turn of the loop."""
        self._loop.call_soon(self._release)

    def _release(self) -> None:
        held, self._held = self._held, None
        for tell in held or ():
            tell()

    # What the carrier tells

    def received(self, message: bytes) -> None:
        """A message came in."""
        if self._held is not None:
            self._held.append(lambda: self.received(message))
            return
        if self._phase is Phase.UP:
            self._heard_s = self._loop.time()
            try:
                frames = self._reader.read(message)
            except RemoteError as error:
                self.rejected(_REJECTION_OF[type(error)])
                return
            if len(frames) == 1 and frames[0][0] == CONTROL:
                if frames[0][1] == ASK:
                    self._say(ALIVE)
                return
            try:
                if frames:
                    self._handler.frames_received(self, frames)
            except Exception as error:
                self._report(error)
        elif self._phase is Phase.SHAKING:
            self._shake(message)

    def set_blocked(self, blocked: bool) -> None:
        """The carrier's buffer is full, or has room again."""
        self._blocked = blocked
        if not blocked:
            self._flush()

    def rejected(self, reason: str) -> None:
        """The peer broke the framing, as the reader or the carrier noticed."""
        if self._phase is Phase.SHAKING:
            self._refuse(reason, "not even the framing is right")
        elif self._phase is Phase.UP:
            self.tell(self._handler.frame_rejected, self, reason)
            self._lose(reason)

    def carrier_gone(self, reason: str) -> None:
        """The connection is over."""
        self._gone = True
        if self._held is not None:
            self._held.append(lambda: self.carrier_gone(reason))
            self._sending = False
        elif self._phase is Phase.SHAKING:
            self._refuse("closed", "the peer hung up")
        elif self._phase is Phase.UP:
            self._lose(reason)
        else:
            self._end(reason)

    # Handshake

    def _shake(self, message: bytes) -> None:
        try:
            answer = self._handshake.receive(message)
        except HandshakeFailed as error:
            self._refuse(error.reason, str(error))
            return
        if answer is not None:
            self._write_handshake(answer)
        session = self._handshake.session
        if session is None:
            return
        self._timer.cancel()
        self._peer = session.peer
        self._writer = FrameWriter(session.send_key)
        self._reader = FrameReader(session.receive_key, self._frame_bytes_max)
        self._phase = Phase.UP
        self._sending = True
        self._watch_s = self._loop.time()
        self._watch()
        self._owner.link_established(self)

    def _write_handshake(self, message: bytes) -> None:
        self._carrier.write(bytearray(HEAD_ROOM_BYTES) + message)

    def _refuse(self, reason: str, detail: str) -> None:
        self._end(reason)
        self._owner.link_refused(self, reason, detail)

    # Queue

    def _flush(self) -> None:
        self._flush_due = False
        if self._phase is Phase.UP:
            self._write_out()
            # The carrier blocks well below the marks. A peer that was given up has none.
            if self._sending and (self._blocked or self._high):
                self._compare_with_marks()
        elif self._phase is Phase.CLOSING:
            self._write_out()
            if not self._writer.queued_bytes:
                self._carrier.finish()

    def _write_out(self) -> None:
        while not self._blocked:
            message = self._writer.next_message()
            if message is None:
                return
            self._carrier.write(message)

    def _overflow(self) -> None:
        """More than one message waits: write now, or give the peer up at the bound."""
        self._write_out()
        if self.queued_bytes > self._limits.queue_max_bytes:
            self._sending = False
            self._loop.call_soon(self._lose, "too-slow")

    def _compare_with_marks(self) -> None:
        queued = self.queued_bytes
        if self._high and queued < self._limits.queue_low_bytes:
            self._high = False
        elif not self._high and queued > self._limits.queue_high_bytes:
            self._high = True
        else:
            return
        high = self._high
        if self._held is not None:
            self._held.append(lambda: self._tell_queue(high))
        else:
            self._tell_queue(high)

    def _tell_queue(self, high: bool) -> None:
        self.tell(lambda: self._handler.send_queue_changed(self, high=high))

    # Liveness

    def _watch(self) -> None:
        """Look when the peer might have been silent for too long."""
        ask_s, lost_s = seconds(self._limits.idle_ping_ns), seconds(self._limits.idle_timeout_ns)
        now_s = self._loop.time()
        if now_s - self._watch_s > ask_s:
            self._heard_s = now_s  # it was we who were asleep, and what came meanwhile is unread
        silent_s = now_s - self._heard_s
        if self._paused:
            self._say(ALIVE)
            next_s = ask_s
        elif silent_s >= lost_s:
            self._lose("idle")
            return
        elif silent_s >= ask_s:
            self._say(ASK)
            # Not sooner than the loop's clock ticks, or it would be asked again and again.
            next_s = min(ask_s, max(lost_s - silent_s, CLOCK_TICK_S))
        else:
            next_s = min(ask_s, lost_s) - silent_s
        self._watch_s = now_s + next_s
        self._timer = self._loop.call_later(next_s, self._watch)

    def _say(self, word: bytes) -> None:
        """A message of its own, unless payloads wait: they say as much."""
        if self._sending and not self._blocked and not self._writer.queued_bytes:
            self._writer.add(CONTROL, word)
            self._write_out()

    # End

    def _lose(self, reason: str) -> None:
        """Not we closed it."""
        if self._phase is Phase.UP:
            held = self._held
            self._end(reason)
            if held is not None:
                self._held = [*held, lambda: self.tell(self._handler.link_lost, self, reason)]
            else:
                self.tell(self._handler.link_lost, self, reason)

    def _end(self, reason: str) -> None:
        if self._phase is Phase.OVER:
            return
        self._phase = Phase.OVER
        self._sending = False
        self._held = None
        self._timer.cancel()
        self._carrier.abort(reason)
        self._tell_end()

    def _tell_end(self) -> None:
        """Whoever closed it may want to know."""
        then, self._then = self._then, []
        for call in then:
            self._loop.call_soon(call)

    def tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call the handler, whatever it makes of it."""
        try:
            call(*arguments)
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        """A bug in the handler: a carrier must not take it for a fault of the peer."""
        self._loop.call_exception_handler(
            {"message": "a link handler failed", "exception": error, "link": self}
        )


# What a link stands on, and who it belongs to.


class Carrier(Protocol):
    """One connection. It tells its link: received, set_blocked, rejected, carrier_gone."""

    link: AuthenticatedLink | None

    def write(self, message: bytearray) -> None:
        """Send a message, which begins at HEAD_ROOM_BYTES; the buffer is the carrier's now."""
        ...

    def backlog_bytes(self) -> int:
        """What was written and has not left this process."""
        ...

    def pause_reading(self) -> None:
        """Tell the link nothing more, for now."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...

    def finish(self) -> None:
        """Say goodbye behind what was written, and wait for the peer to hang up."""
        ...

    def abort(self, reason: str) -> None:
        """Hang up at once."""
        ...


class LinkOwner(Protocol):
    """The transport, as its links see it."""

    @property
    def handler(self) -> LinkHandler: ...

    @property
    def limits(self) -> TransportLimits: ...

    def link_established(self, link: AuthenticatedLink) -> None:
        """The handshake is done."""
        ...

    def link_closing(self, link: AuthenticatedLink, carrier: Carrier) -> None:
        """We close it; its carrier is there until the peer has hung up, or had its time."""
        ...

    def link_refused(self, link: AuthenticatedLink, reason: str, detail: str) -> None:
        """The handshake failed; the carrier is hanging up."""
        ...
