"""Delivery in chain order.

A message is delivered once the one before it was. What comes too early waits; when a gap is given
up, the next message is delivered with a note that something is missing before it. What comes after
its place was given up is late, and dropped: order is kept, and the gap was told. How much waits in
all chains of a stream is bounded by `chains.py`.
"""

from __future__ import annotations

import msgspec

from shoal.base.units import KIB
from shoal.protocols.streams.duplicates import BEGINNING, Number
from shoal.protocols.streams.placed import PlacedMessage

WAITING_BYTES_MIN = 1 * KIB  # what the smallest message takes while it waits, with all its parts


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
    last: Number = BEGINNING
    """What was delivered, also of what was under way when we joined."""
    gap: bool = False
    """Something was given up before the next message."""
    waiting: dict[Number, Delivery] | None = None
    waiting_bytes: int = 0

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
        self.waiting_bytes += _cost_bytes(delivery)
        return []

    def waited_for(self) -> Number | None:
        """Up to where something must come, or be given up, before any that waits has its turn."""
        waiting = self.waiting
        return None if waiting is None else waiting[min(waiting)].message.before

    def begin(self, after: Number) -> None:
        """Subscribers come only now: what was seen before is none of theirs."""
        self.last = max(self.last, after)

    def given_up(self, upto: Number) -> list[Delivery]:
        """Nothing up to a position will come any more."""
        if upto > max(self.last, self.baseline):
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
            self.waiting_bytes -= _cost_bytes(delivery)
            if number > self.last:
                ready.append(self._take(delivery))
        self.waiting = waiting or None
        return ready

    def _take(self, delivery: Delivery) -> Delivery:
        message, last = delivery.message, self.last
        self.last = message.number
        # Behind the last one, but not the next: what lies between was said to be history.
        if not self.gap and (message.before <= last or last == BEGINNING):
            return delivery
        self.gap = False
        return msgspec.structs.replace(delivery, gap_before=True)


def _cost_bytes(delivery: Delivery) -> int:
    return WAITING_BYTES_MIN + len(delivery.message.signed)
