"""Upload is scarce: what goes first, and which bubbles do not go at all.

What is to be sent waits in one queue for each of four priorities (3.2.4) and leaves at the rate
that the user has given. Messages of the circle and of the measurement always go. Bubbles are given
up while they would have to wait for long (3.2.5): small remainders first, since the loss of one
costs a bubble little, while the loss of a large part costs a whole branch.
"""

from __future__ import annotations

from collections import deque
from math import log
from typing import Generic, TypeVar

from shoal.base.errors import ConfigError
from shoal.base.units import S_NS
from shoal.protocols.search.messages import (
    BreakEdge,
    Cancel,
    EdgeClosed,
    MasterHello,
    MergeEdge,
    Ping,
    Redirect,
    SlaveHello,
    SplitEdge,
)

RELAXED_NS = 2 * S_NS  # whoever waits less is no problem
CONGESTED_NS = 4 * S_NS  # whoever waits more comes too late
PRIORITIES = 4
BUBBLES = 3  # the last priority

_PRIORITY: dict[type, int] = {
    # They say which edge all that follows belongs to; and a MergeEdge that overtook a Cancel would
    # be ignored.
    MasterHello: 0,
    SlaveHello: 0,
    Cancel: 0,
    Redirect: 1,
    MergeEdge: 1,
    BreakEdge: 1,
    EdgeClosed: 1,
    SplitEdge: 2,
    Ping: 2,
}

T = TypeVar("T")


def priority_of(message: object) -> int:
    """0 goes first. Whatever is not about the circle waits with the bubbles."""
    return _PRIORITY.get(type(message), BUBBLES)


def window_ns(size: int, total: int) -> int:
    """How long a part of this size may have to wait: 2 s for a single node, 4 s for all of the
    bubble, by orders of magnitude between them."""
    if total <= 1:
        return CONGESTED_NS
    part = log(max(size, 1)) / log(total)
    return round(RELAXED_NS + min(part, 1.0) * (CONGESTED_NS - RELAXED_NS))


def has_room(wait_ns: int, size: int, total: int) -> bool:
    """Whether a part of a bubble is sent at all, if it has to wait so long."""
    if wait_ns < RELAXED_NS:
        return True
    return wait_ns <= CONGESTED_NS and wait_ns <= window_ns(size, total)


class Throttle(Generic[T]):
    """What waits for upload: first by priority, then in order. A line that was idle may send
    `burst_ns` worth of bytes at once."""

    def __init__(self, rate: float, burst_ns: int, queued_max: int) -> None:
        """Rate in bytes a second; above queued_max bytes nothing is taken that may be lost."""
        if not rate > 0 or burst_ns < 0 or queued_max < 1:
            raise ConfigError(
                f"rate {rate}, burst_ns {burst_ns}, queued_max {queued_max}: write a rate above 0"
                " in bytes a second, a burst of 0 or more, 1 byte or more"
            )
        self._rate = rate
        self._burst_ns = burst_ns
        self._queued_max = queued_max
        self._queues: tuple[deque[tuple[T, int]], ...] = tuple(deque() for _ in range(PRIORITIES))
        self._busy_ns: int | None = None
        """Until then the line is busy with what has left. None: nothing ever has."""
        self.queued_bytes = 0

    def wait_ns(self, now_ns: int) -> int:
        """How long the last of the queue will wait."""
        busy_ns = max(self._busy_until(now_ns) - now_ns, 0)
        return busy_ns + self._duration_ns(self.queued_bytes)

    def offer(self, item: T, bytes_: int, priority: int) -> bool:
        """Put something in; False if the queue is full."""
        if self.queued_bytes + bytes_ > self._queued_max:
            return False
        self.force(item, bytes_, priority)
        return True

    def force(self, item: T, bytes_: int, priority: int) -> None:
        """Put something in, however long the queue is."""
        self._queues[priority].append((item, bytes_))
        self.queued_bytes += bytes_

    def next_ready(self, now_ns: int) -> T | None:
        """What leaves now, if anything may."""
        busy_ns = self._busy_until(now_ns)
        if busy_ns > now_ns:
            return None
        for queue in self._queues:
            if queue:
                item, bytes_ = queue.popleft()
                self.queued_bytes -= bytes_
                self._busy_ns = busy_ns + self._duration_ns(bytes_)
                return item
        return None

    def ready_in_ns(self, now_ns: int) -> int | None:
        """When to ask again; None if nothing waits."""
        if not any(self._queues):
            return None
        return max(self._busy_until(now_ns) - now_ns, 0)

    def _busy_until(self, now_ns: int) -> int:
        idle_ns = now_ns - self._burst_ns
        return idle_ns if self._busy_ns is None else max(self._busy_ns, idle_ns)

    def _duration_ns(self, bytes_: int) -> int:
        return round(bytes_ * S_NS / self._rate)
