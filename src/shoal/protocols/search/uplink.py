"""Everything this node sends, if its upload is limited: by priority, at the rate that was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.congestion import Throttle, has_room, priority_of
from shoal.protocols.search.messages import BubbleCast, Match, UserData

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
