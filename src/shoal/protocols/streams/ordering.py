"""Delivery in chain order.

A message is delivered once the one before it was. What comes too early waits; when a gap is given
up, the next message is delivered with a note that something is missing before it. What comes after
its place was given up is late, and dropped: order is kept, and the gap was told.
"""

from __future__ import annotations

import msgspec

from shoal.protocols.streams.duplicates import BEGINNING, Number
from shoal.protocols.streams.placed import PlacedMessage


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message whose turn it is."""

    message: PlacedMessage
    hops: int
    age_us: int
    gap_before: bool = False


class ChainOrder(msgspec.Struct, gc=False):
    """Puts the messages of one chain in order for the local subscribers."""

    baseline: Number
    """Whatever lies before our own beginning in the chain is history, and no gap."""
    waiting_max: int
    last: Number = BEGINNING
    """What was delivered, also of what was under way when we joined."""
    gap: bool = False
    """Something was given up before the next message."""
    waiting: dict[Number, Delivery] | None = None

    def arrived(self, delivery: Delivery) -> list[Delivery]:
        """A message came: what can be delivered now, in order."""
        message, last = delivery.message, self.last
        number = message.number
        if number <= last:
            return []
        # In order; or under way when we joined, where nothing can be missed.
        floor = last if last > self.baseline else self.baseline
        if message.before <= floor or number <= floor:
            taken = self._take(delivery)
            return [taken] if self.waiting is None else [taken, *self._drain()]
        if self.waiting is None:
            self.waiting = {}
        self.waiting[number] = delivery
        if len(self.waiting) > self.waiting_max:
            return self.given_up(self.waiting[min(self.waiting)].message.before)
        return []

    def begin(self, after: Number) -> None:
        """Subscribers come only now: what was seen before is none of theirs."""
        self.last = max(self.last, after)

    def given_up(self, upto: Number) -> list[Delivery]:
        """Nothing up to a position will come any more."""
        if upto <= max(self.last, self.baseline):
            return []
        self.last, self.gap = upto, True
        return self._drain()

    def _drain(self) -> list[Delivery]:
        ready: list[Delivery] = []
        waiting = self.waiting or {}
        for number in sorted(waiting):
            delivery = waiting[number]
            if delivery.message.before > max(self.last, self.baseline):
                break
            del waiting[number]
            if number > self.last:
                ready.append(self._take(delivery))
        self.waiting = waiting or None
        return ready

    def _take(self, delivery: Delivery) -> Delivery:
        self.last = delivery.message.number
        if not self.gap:
            return delivery
        self.gap = False
        return msgspec.structs.replace(delivery, gap_before=True)
