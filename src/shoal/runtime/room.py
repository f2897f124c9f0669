"""Whether a publisher has to wait: which send queues are high."""

from __future__ import annotations

import asyncio

from shoal.base.ids import NodeId
from shoal.base.units import seconds


class Room:
    """Told of each queue; one that stays high too long is not waited for."""

    def __init__(self) -> None:
        self._high: dict[NodeId, None] = {}
        self._event = asyncio.Event()
        self._event.set()

    def __contains__(self, peer: NodeId) -> bool:
        """Whether this peer's queue is high, and waited for."""
        return peer in self._high

    def note(self, peer: NodeId, *, high: bool) -> None:
        """A queue passed a mark."""
        if high:
            self._high[peer] = None
        else:
            self._high.pop(peer, None)
        (self._event.clear if self._high else self._event.set)()

    async def wait(self, patience_ns: int) -> None:
        """Until no queue is high, or patience ends: then the laggards are ignored until they have
        caught up, or are given up at the queue's bound."""
        if self._event.is_set():
            return
        try:
            async with asyncio.timeout(seconds(patience_ns)):
                await self._event.wait()
        except TimeoutError:
            self._high.clear()
            self._event.set()
