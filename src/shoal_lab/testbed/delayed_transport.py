"""A transport whose peers are far away: what comes in is held for as long as the way takes.

It stands between a driver and a real transport, as the handler of the one and the transport of
the other. Payloads carry the time at which they were sent, and are given to the driver one way's
delay after it, in order per link: what loopback takes is part of the way, not something on top. The
news that a link is gone comes behind them. A dial waits for the round trips of a handshake and is
then done at once, so that both ends hear of a link at the same moment, as they do in the simulator.

Both ends must be of this kind, and on one machine, which has one monotonic clock. Not delayed are
the signs of life of a link itself, and the mark of a full send queue: a peer that stops reading is
noticed as soon as the kernel's buffers are full.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from shoal.base.ids import NodeId
from shoal.base.units import seconds
from shoal.sim.simulation import HANDSHAKE_ROUND_TRIPS
from shoal.transport.port import DialFailed, Frame, Link, LinkHandler, Listener, PeerInfo, Transport

_SENT = struct.Struct("<d")  # seconds of the monotonic clock, in front of each payload

OneWay = Callable[[NodeId, NodeId], int]
"""Nanoseconds from one node to another."""


class Lateness:
    """How much later than after their delay things were given, since the machine was busy."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, late_s: float) -> None:
        """One more was given."""
        self.count += 1
        self.sum_s += late_s
        self.max_s = max(self.max_s, late_s)


class DelayedLink:
    """A link, and what is on its way to us."""

    def __init__(
        self, link: Link, delay_s: float, late: Lateness, gone: Callable[[Link], None]
    ) -> None:
        self._link = link
        self._delay_s = delay_s
        self._late = late
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._line: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # The port

    @property
    def peer(self) -> PeerInfo:
        """Who is there."""
        return self._link.peer

    @property
    def dialled(self) -> bool:
        """Whether this side opened it."""
        return self._link.dialled

    @property
    def address(self) -> str:
        return self._link.address

    @property
    def queued_bytes(self) -> int:
        """What waits to be sent."""
        return self._link.queued_bytes

    def send(self, protocol: int, payload: bytes) -> None:
        """Send at once: the other end holds it."""
        self._link.send(protocol, _SENT.pack(self._loop.time()) + payload)

    def unsent(self) -> list[Frame]:
        """What never left."""
        return [(number, payload[_SENT.size :]) for number, payload in self._link.unsent()]

    def pause_reading(self) -> None:
        """Take nothing more off the wire; what is on its way still comes."""
        self._link.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._link.resume_reading()

    def close(self, reason: str, then: Callable[[], None] | None = None) -> None:
        """Close it, and tell nothing of what is still on its way to us."""
        self.drop()
        self._gone(self._link)
        self._link.close(reason, then)

    # The way

    def hold(self, tell: Callable[[], None], sent_s: float | None = None) -> None:
        """Something was sent, now if nothing else is known: tell of it when it would be here."""
        due_s = (self._loop.time() if sent_s is None else sent_s) + self._delay_s
        if self._line:
            due_s = max(due_s, self._line[-1][0])
        self._line.append((due_s, tell))
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._give)

    def drop(self) -> None:
        """Forget what is on its way."""
        self._line.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        try:
            # The first is due even if the timer came a tick early; what it does may end the line.
            first = True
            while self._line and (first or self._line[0][0] <= now_s):
                first = False
                due_s, tell = self._line.popleft()
                self._late.add(now_s - due_s)
                tell()
        finally:  # a handler that fails must not keep the rest
            if self._line and self._timer is None:
                self._timer = self._loop.call_at(self._line[0][0], self._give)


class DelayedTransport:
    """Transport of a driver, and handler of the transport underneath."""

    def __init__(
        self,
        own: NodeId,
        make: Callable[[LinkHandler], Transport],
        handler: LinkHandler,
        one_way_ns: OneWay,
        late: Lateness | None = None,
    ) -> None:
        """`make` gives the transport underneath, which tells us."""
        self._own = own
        self._handler = handler
        self._one_way_ns = one_way_ns
        self._late = late or Lateness()
        self._links: dict[Link, DelayedLink] = {}
        self._closed = asyncio.Event()
        self._inner = make(self)

    # Transport

    @property
    def schemes(self) -> tuple[str, ...]:
        """Those of the transport underneath."""
        return self._inner.schemes

    async def listen(self, address: str) -> Listener:
        """Open a door."""
        return await self._inner.listen(address)

    async def dial(self, address: str, peer: NodeId) -> Link:
        """Connect, after as many round trips as that takes."""
        there_ns, back_ns = self._one_way_ns(self._own, peer), self._one_way_ns(peer, self._own)
        try:
            async with asyncio.timeout(seconds(HANDSHAKE_ROUND_TRIPS * (there_ns + back_ns))):
                await self._closed.wait()
        except TimeoutError:
            return self._far(await self._inner.dial(address, peer))
        raise DialFailed("closed: this transport is closed")

    async def close(self) -> None:
        """Close everything; what was on its way to us is told to nobody."""
        self._closed.set()
        for link in self._links.values():
            link.drop()
        self._links.clear()
        await self._inner.close()

    # LinkHandler of the transport underneath

    def link_ready(self, link: Link) -> None:
        """An inbound link: its dialler has waited for both of us."""
        self._handler.link_ready(self._far(link))

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        """Frames have left the peer."""
        far = self._links.get(link)
        if far is not None:  # it is while we do not close
            # What came together was sent together.
            (sent_s,) = _SENT.unpack_from(frames[-1][1])
            bare = [(number, payload[_SENT.size :]) for number, payload in frames]
            far.hold(partial(self._handler.frames_received, far, bare), sent_s)

    def frame_rejected(self, link: Link, reason: str) -> None:
        """In its place among the frames."""
        far = self._links.get(link)
        if far is not None:
            far.hold(partial(self._handler.frame_rejected, far, reason))

    def link_lost(self, link: Link, reason: str) -> None:
        """Known here behind all that came before it."""
        far = self._links.get(link)
        if far is not None:
            far.hold(partial(self._lost, link, far, reason))

    def send_queue_changed(self, link: Link, *, high: bool) -> None:
        """A matter of this side."""
        far = self._links.get(link)
        if far is not None:
            self._handler.send_queue_changed(far, high=high)

    def handshake_failed(self, address: str, reason: str) -> None:
        """A stranger, from wherever."""
        self._handler.handshake_failed(address, reason)

    # Steps

    def _far(self, link: Link) -> DelayedLink:
        delay_s = seconds(self._one_way_ns(link.peer.node, self._own))
        far = DelayedLink(link, delay_s, self._late, self._forget)
        self._links[link] = far
        return far

    def _lost(self, link: Link, far: DelayedLink, reason: str) -> None:
        self._forget(link)
        self._handler.link_lost(far, reason)

    def _forget(self, link: Link) -> None:
        self._links.pop(link, None)
