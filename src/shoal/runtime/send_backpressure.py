"""Whether a publisher has to wait: which send queues are high.

A queue that is high for a moment is back-pressure. A peer whose queue stands still again and again,
while most others drain theirs, is a laggard: it may hold publishers up for so long, and then it is
not waited for during a while. It is given up at the queue's bound, as any peer that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS, seconds

STALL_NS = 250 * MS_NS
"""A queue that is high for so long stands still: a link of 12 Mbit/s drains it from the high to the
low mark in that time."""

STALLS_NS = 1 * S_NS
"""So long, all its stalls together, may one peer hold publishers up,"""

LAGGARD_NS = 30 * S_NS
"""within this time; and then it is not waited for during the same."""


class _Stalls(msgspec.Struct):
    """Of one peer."""

    since_s: float
    spent_s: float = 0.0


class Room:
    """Told of each queue; one that stays high too long is not waited for."""

    def __init__(self, links: Callable[[], int], now_s: Callable[[], float]) -> None:
        """Links says how many peers there are."""
        self._links = links
        self._now_s = now_s
        self._high: dict[NodeId, float] = {}  # since when it holds up a publisher
        self._stalls: dict[NodeId, _Stalls] = {}
        self._laggards: dict[NodeId, float] = {}  # until when
        self._waiters = 0
        self._event = asyncio.Event()
        self._event.set()

    def __contains__(self, peer: NodeId) -> bool:
        """Whether this peer's queue is high, and waited for."""
        return peer in self._high

    def note(self, peer: NodeId, *, high: bool) -> None:
        """A queue passed a mark."""
        now_s = self._now_s()
        if high:
            if not self._is_laggard(peer, now_s):
                self._high[peer] = now_s
        elif peer in self._high:
            self._charge(peer, now_s)
            del self._high[peer]
        (self._event.clear if self._high else self._event.set)()

    async def wait(self, patience_ns: int) -> None:
        """Until no queue is high, or patience ends: then the laggards are ignored until they have
        caught up, or are given up at the queue's bound."""
        if self._event.is_set():
            return
        end_s = self._now_s() + seconds(patience_ns)
        if not self._waiters:  # what was before held nobody up
            self._high = dict.fromkeys(self._high, self._now_s())
        self._waiters += 1
        try:
            while not self._event.is_set():
                now_s = self._now_s()
                left_s = min([end_s - now_s, *self._patience_left(now_s)])
                if now_s >= end_s:
                    for peer in list(self._high):
                        self._charge(peer, now_s)
                    self._high.clear()
                    self._event.set()
                elif left_s <= 0:
                    self._pass_over(now_s)
                else:
                    try:
                        async with asyncio.timeout(left_s):
                            await self._event.wait()
                    except TimeoutError:
                        pass
        finally:
            self._waiters -= 1

    def _patience_left(self, now_s: float) -> list[float]:
        """For each peer that holds us up and may be passed over: when."""
        if not self._may_pass_over(now_s):
            return []
        stalls_s = seconds(STALLS_NS)
        return [stalls_s - self._spent_s(peer, now_s) for peer in self._high]

    def _pass_over(self, now_s: float) -> None:
        """Go on without those who have used up what they may."""
        for peer in list(self._high):
            if self._spent_s(peer, now_s) >= seconds(STALLS_NS):
                self._charge(peer, now_s)
                del self._high[peer]
        if not self._high:
            self._event.set()

    def _may_pass_over(self, now_s: float) -> bool:
        """Whether most peers keep up: otherwise our own link, or this machine, is slow."""
        since_s = now_s - seconds(LAGGARD_NS)
        self._laggards = {p: until for p, until in self._laggards.items() if until > now_s}
        self._stalls = {p: one for p, one in self._stalls.items() if one.since_s > since_s}
        slow = {**self._high, **self._laggards}
        return 2 * len(slow) < self._links()

    def _is_laggard(self, peer: NodeId, now_s: float) -> bool:
        return self._laggards.get(peer, 0.0) > now_s

    def _spent_s(self, peer: NodeId, now_s: float) -> float:
        stalls = self._stalls.get(peer)
        return (0.0 if stalls is None else stalls.spent_s) + now_s - self._high[peer]

    def _charge(self, peer: NodeId, now_s: float) -> None:
        """What a peer has cost, if that was a stall and somebody waited."""
        stalled_s = now_s - self._high[peer]
        if not self._waiters or stalled_s < seconds(STALL_NS):
            return
        stalls = self._stalls.setdefault(peer, _Stalls(now_s))
        stalls.spent_s += stalled_s
        if stalls.spent_s >= seconds(STALLS_NS) and self._may_pass_over(now_s):
            del self._stalls[peer]
            self._laggards[peer] = now_s + seconds(LAGGARD_NS)
