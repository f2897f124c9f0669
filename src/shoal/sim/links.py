"""Links of the simulated network.

A link is a pair of ends, one at each host. What one end sends arrives at the other after the
path's delay, in order, unless a fault says otherwise. A closing end flushes: the other learns of
it behind everything sent before. Nothing passes a cut, not even the news that a link is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.base.errors import OversizedMessage, RemoteError
from shoal.base.ids import NodeId

if TYPE_CHECKING:
    from shoal.sim.host import SimHost
    from shoal.sim.simulation import Simulation


class Frame:
    """One message on its way out, the same for all its peers."""

    __slots__ = ("message", "size_bytes", "slot")

    def __init__(self, slot: int, message: Any, size_bytes: int) -> None:
        self.slot = slot
        self.message = message
        self.size_bytes = size_bytes


class Shaper:
    """A fault of the network: what becomes of one message."""

    keeps_order = True
    """Whether messages stay in order behind this shaper, as in a TCP stream."""

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        """When the message arrives: never (no time), once, or several times."""
        raise TypeError(f"{type(self).__name__} does not say what becomes of messages")

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        """Whether nothing at all passes between two nodes."""
        return False


class LinkEnd:
    """One host's side of a link."""

    __slots__ = (
        "delay_ns",
        "give",
        "host",
        "last_arrival_ns",
        "marks",
        "open",
        "partner",
        "peer",
        "unread",
        "waiting",
    )

    def __init__(self, host: SimHost, peer: NodeId, delay_ns: int) -> None:
        self.host = host
        self.peer = peer
        self.delay_ns = delay_ns
        self.partner: LinkEnd
        self.give: Callable[[Any], None]  # to the partner
        self.open = True
        self.unread: Unread | None = None  # while this end does not read
        self.waiting: dict[Frame, None] = {}  # given to this end, but not on the wire yet
        self.marks = 0  # reasons for which the send queue counts as high
        self.last_arrival_ns = 0  # at the partner, of what has to stay in order

    def arrive(self, message: Any) -> None:
        """A message has come as far as this end."""
        if not self.open:
            return
        if self.unread is not None:
            self.unread.keep(message)
        elif self.host.serving:
            self.host.serve(self, message)
        else:
            self.host.received(self.peer, message)

    def arrive_frame(self, frame: tuple[type, bytes]) -> None:
        """The same, in wire mode: bytes that first have to be understood."""
        if not self.open:
            return
        try:
            message = self.host.simulation.decode(*frame)
        except OversizedMessage:
            self.host.rejected(self.peer, "oversized")
        except RemoteError:
            self.host.rejected(self.peer, "malformed")
        else:
            self.arrive(message)

    def mark_queue(self, *, high: bool) -> None:
        """The send queue passed a mark; machines hear of the first reason and of the last."""
        self.marks += 1 if high else -1
        if self.open and self.marks == (1 if high else 0):
            self.host.queue_changed(self.peer, high=high)

    def closed_by_peer(self, reason: str) -> None:
        """The other side has closed; known once everything that came before it is taken."""
        if self.unread is not None:
            self.unread.closed = reason
        elif self.host.serving:
            self.host.after_service(self.broke, reason)
        else:
            self.broke(reason)

    def broke(self, reason: str) -> None:
        """There is no other side any more."""
        if self.open:
            self.leave()
            unsent = [(frame.slot, frame.message) for frame in self.waiting]
            self.host.link_closed(self.peer, reason, unsent)

    def abandon(self, reason: str) -> None:
        """Close without flushing: what waits here goes back to whoever sent it."""
        if self.open:
            scheduler = self.host.simulation.scheduler
            scheduler.after(self.delay_ns, self.partner.closed_by_peer, reason)
            self.broke(reason)

    def leave(self) -> None:
        """Take and send nothing more."""
        self.open = False
        del self.host.ends[self.peer]


def join_ends(simulation: Simulation, a: SimHost, b: SimHost) -> None:
    """Connect two hosts."""
    one_way_ns = simulation.delays.one_way_ns
    end_a = LinkEnd(a, b.node, one_way_ns(a.index, b.index))
    end_b = LinkEnd(b, a.node, one_way_ns(b.index, a.index))
    end_a.partner, end_b.partner = end_b, end_a
    end_a.give, end_b.give = end_b.arrive, end_a.arrive
    a.ends[b.node], b.ends[a.node] = end_a, end_b


def close_end(simulation: Simulation, end: LinkEnd, reason: str, detect_ns: int = 0) -> None:
    """Close one end; its partner learns of it behind what is in flight."""
    end.leave()
    if simulation.reachable(end.host.node, end.peer):
        now_ns = simulation.scheduler.now_ns
        known_ns = max(now_ns + detect_ns, now_ns + end.delay_ns, end.last_arrival_ns)
        simulation.scheduler.at(known_ns, end.partner.closed_by_peer, reason)


# A link end that does not read: what piles up, and how its peer feels it.


# In messages; really they would sit in the buffers of both hosts, a few megabytes.
UNREAD_MAX = 4096
UNREAD_HIGH = UNREAD_MAX // 2
UNREAD_LOW = UNREAD_MAX // 4


class Unread:
    """Messages that came in while reading was paused, oldest first.

    Once resumed they are read one by one, so that the machine can pause again after any of them.
    The sender learns that there is no room, or room again, one delay later.
    """

    def __init__(self, end: LinkEnd) -> None:
        self.paused = True
        self.closed: str | None = None
        """Why the peer closed, if it did: to be told behind the messages."""
        self._end = end
        self._messages: deque[Any] = deque()
        self._high = False
        self._after = end.host.simulation.scheduler.after

    def keep(self, message: Any) -> None:
        """One more that nobody reads."""
        self._messages.append(message)
        count, end = len(self._messages), self._end
        if count == UNREAD_HIGH and not self._high:
            self._mark(high=True)
        elif count == UNREAD_MAX:
            self._after(end.delay_ns, end.partner.abandon, "too-slow")

    def resume(self) -> None:
        """Read again."""
        if self.paused:
            self.paused = False
            self._after(0, self._read_one)

    def _read_one(self, _: None) -> None:
        end = self._end
        if self.paused or not end.open or end.unread is not self:
            return
        if not self._messages:
            end.unread = None
            if self.closed is not None:
                end.closed_by_peer(self.closed)
            return
        message = self._messages.popleft()
        if len(self._messages) == UNREAD_LOW and self._high:
            self._mark(high=False)
        self._after(0, self._read_one)
        if end.host.serving:
            end.host.serve(end, message)
        else:
            end.host.received(end.peer, message)

    def _mark(self, *, high: bool) -> None:
        self._high = high
        partner = self._end.partner
        self._after(self._end.delay_ns, lambda _: partner.mark_queue(high=high))
