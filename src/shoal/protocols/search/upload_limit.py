"""Everything this node sends, if its upload is limited: by priority, at the rate that was given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import floor, log
from typing import Any, Generic, TypeVar

from shoal.base.errors import ConfigError
from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.protocols.search.config import LOCATIONS_MIN, SearchConfig
from shoal.protocols.search.messages import (
    BreakEdge,
    BubbleCast,
    Cancel,
    EdgeClosed,
    MasterHello,
    Match,
    MergeEdge,
    Ping,
    Redirect,
    SlaveHello,
    SplitEdge,
    UserData,
)

UPLINK = "uplink"  # the timer for what waits
AROUND_BYTES = 300  # records, signatures and frames around the content of a message


class Uplink:
    """The one way out."""

    def __init__(self, config: SearchConfig) -> None:
        rate = config.upload_bytes_s
        self._throttle: Throttle[Send] | None = None
        if rate is not None:
            self._throttle = Throttle(rate, config.upload_burst_ns, config.upload_queue_bytes)
        self._rate = rate
        self._sent_bytes = 0
        self.dropped = 0
        self.stuck: dict[NodeId, None] = {}
        """Peers whose links take no more for now."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits for its turn."""
        return self._throttle is None or self._throttle.queued_bytes == 0

    def queue_changed(self, peer: NodeId, *, high: bool) -> None:
        """The queue of a link passed a mark, or is gone with it."""
        self.stuck.pop(peer, None)
        if high:
            self.stuck[peer] = None

    def has_room(self, size: int, total: int, now_ns: int) -> bool:
        """Whether a part of a bubble is worth queueing."""
        if self._throttle is None:
            return True
        return has_room(self._throttle.wait_ns(now_ns), size, total)

    def congested(self, now_ns: int) -> bool:
        """Whether bubbles are given up."""
        return not self.has_room(1, 2, now_ns)

    def used(self, interval_ns: int) -> float:
        """Which part of the upload was used since this was asked last."""
        sent, self._sent_bytes = self._sent_bytes, 0
        return 0.0 if self._rate is None else sent * 1e9 / (self._rate * interval_ns)

    def pass_on(self, effects: Iterable[Effect], now_ns: int) -> list[Effect]:
        """What may happen at once; messages wait for their turn."""
        if self._throttle is None:
            return list(effects)
        passed: list[Effect] = []
        for effect in effects:
            if type(effect) is Send:
                self._offer(self._throttle, effect)
            else:
                passed.append(effect)
        return passed + self.flush(now_ns)

    def flush(self, now_ns: int) -> list[Effect]:
        """What leaves now, and when to look again."""
        throttle, out = self._throttle, []
        if throttle is None:
            return []
        while (send := throttle.next_ready(now_ns)) is not None:
            out.append(send)
        wait_ns = throttle.ready_in_ns(now_ns)
        return [*out] if wait_ns is None else [*out, SetTimer(UPLINK, wait_ns)]

    def _offer(self, throttle: Throttle[Send], send: Send) -> None:
        size = _bytes_of(send.message) * len(send.peers)
        priority = priority_of(send.message)
        if not throttle.offer(send, size, priority):
            if isinstance(send.message, BubbleCast | Match):
                self.dropped += 1
                return
            # Messages of the circle are few and small, and nothing works without them; and what
            # applications say to each other has no holes.
            throttle.force(send, size, priority)
        self._sent_bytes += size


def _bytes_of(message: Any) -> int:
    match message:
        case BubbleCast(payload=payload):
            return len(payload) + AROUND_BYTES
        case Match(items=items):
            return sum(map(len, items)) + AROUND_BYTES
        case UserData(content=content):
            return len(content) + AROUND_BYTES
    return AROUND_BYTES


# Upload is scarce: what goes first, and which bubbles do not go at all.
#
# What is to be sent waits in one queue for each of four priorities (3.2.4) and leaves at the rate
# that the user has given. Messages of the circle and of the measurement always go. Bubbles are
# given up while they would have to wait for long (3.2.5): small remainders first, since the loss of
# one costs a bubble little, while the loss of a large part costs a whole branch.


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


# How many places a node can afford.
#
# Traffic is proportional to degree, so places are given by bandwidth: L = L_d * min(U, D) / S,
# where S is the bandwidth of a node with the usual L_d places. Then load decides: whoever is
# congested gives one up, whoever has been idle for long takes one more. Slowly, and between half
# and twice the number to begin with: every change moves two neighbours.


SHED_AFTER_NS = 30 * S_NS  # without a pause: no burst any more
IDLE_NS = 300 * S_NS  # without a pause
IDLE_BELOW = 0.25  # of what may be sent


def locations_for(locations: int, upload: float, download: float, standard: float) -> int:
    """Places for these bytes a second each way, if whoever has `standard` has `locations`."""
    return max(LOCATIONS_MIN, floor(locations * min(upload, download) / standard))


class Capacity:
    """Places that this node wants, by its load."""

    def __init__(self, config: SearchConfig) -> None:
        self.wanted = config.locations
        upload, download = config.upload_bytes_s, config.download_bytes_s
        if upload is not None:
            worth = locations_for(
                config.locations, upload, download or upload, config.standard_bytes_s
            )
            self.wanted = min(worth, config.locations_max)
        self._least = max(LOCATIONS_MIN, self.wanted // 2)
        self._most = min(config.locations_max, 2 * self.wanted)
        self._congested_ns = 0
        self._idle_ns = 0

    def beat(self, used: float, interval_ns: int, *, congested: bool) -> int:
        """After each interval: which part of the upload was used; the number of places from now
        on."""
        idle = used < IDLE_BELOW and not congested
        self._congested_ns = self._congested_ns + interval_ns if congested else 0
        self._idle_ns = self._idle_ns + interval_ns if idle else 0
        if self._congested_ns >= SHED_AFTER_NS:
            self._congested_ns = 0
            self.wanted = max(self._least, self.wanted - 1)
        elif self._idle_ns >= IDLE_NS:
            self._idle_ns = 0
            self.wanted = min(self._most, self.wanted + 1)
        return self.wanted
