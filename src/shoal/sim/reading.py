"""A link end that does not read: what piles up, and how its peer feels it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.sim.network import LinkEnd

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
