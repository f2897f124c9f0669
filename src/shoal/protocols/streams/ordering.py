"""Delivery in chain order.

A message is delivered once the one before it was. What comes too early waits; when a gap is given
up, the next message is delivered with a note that something is missing before it. What comes after
its place was given up is late, and dropped: order is kept, and the gap was told.
"""

from __future__ import annotations

import msgspec

from shoal.protocols.streams.duplicates import BEGINNING, Number
from shoal.protocols.streams.messages import VerifiedMessage


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message whose turn it is."""

    message: VerifiedMessage
    hops: int
    age_us: int
    gap_before: bool = False


class ChainOrder:
    """Puts the messages of one chain in order for the local subscribers."""

    __slots__ = ("_baseline", "_gap", "_last", "_waiting", "_waiting_max")

    def __init__(self, baseline: Number, waiting_max: int) -> None:
        self._baseline = baseline  # whatever lies before our own beginning is history, and no gap
        self._last = BEGINNING  # what was delivered, also of what was under way when we joined
        self._gap = False  # something was given up before the next message
        self._waiting: dict[Number, Delivery] = {}
        self._waiting_max = waiting_max

    def arrived(self, delivery: Delivery) -> list[Delivery]:
        """A message came: what can be delivered now, in order."""
        number = _number(delivery.message)
        if number <= self._last:
            return []
        # In order; or under way when we joined, where nothing can be missed.
        floor = self._last if self._last > self._baseline else self._baseline
        if _before(delivery.message) <= floor or number <= floor:
            taken = self._take(number, delivery)
            return [taken, *self._drain()] if self._waiting else [taken]
        self._waiting[number] = delivery
        if len(self._waiting) > self._waiting_max:
            return self.given_up(_before(self._waiting[min(self._waiting)].message))
        return []

    def begin(self, after: Number) -> None:
        """Subscribers come only now: what was seen before is none of theirs."""
        self._last = max(self._last, after)

    def given_up(self, upto: Number) -> list[Delivery]:
        """Nothing up to a position will come any more."""
        if upto <= max(self._last, self._baseline):
            return []
        self._last, self._gap = upto, True
        return self._drain()

    def waiting_count(self) -> int:
        """Messages that came too early."""
        return len(self._waiting)

    def _drain(self) -> list[Delivery]:
        ready: list[Delivery] = []
        for number in sorted(self._waiting) if self._waiting else ():
            delivery = self._waiting[number]
            if _before(delivery.message) > max(self._last, self._baseline):
                break
            del self._waiting[number]
            if number > self._last:
                ready.append(self._take(number, delivery))
        return ready

    def _take(self, number: Number, delivery: Delivery) -> Delivery:
        self._last = number
        if not self._gap:
            return delivery
        self._gap = False
        return msgspec.structs.replace(delivery, gap_before=True)


def _number(message: VerifiedMessage) -> Number:
    return (message.id.timestamp_ms, message.id.sequence)


def _before(message: VerifiedMessage) -> Number:
    previous = message.previous
    return BEGINNING if previous is None else (previous.timestamp_ms, previous.sequence)
