"""How far each chain has come, for whoever puts history and live messages together."""

from __future__ import annotations

from enum import Enum

from shoal.base.ids import MessageId, NodeId
from shoal.protocols.streams.messages import VerifiedMessage

CHAINS_MAX = 50_000  # about 10 MB; a chain that is forgotten is one that is not known yet

Number = tuple[int, int]
Chain = tuple[NodeId, int, str]


class Standing(Enum):
    """What a message is to those before it."""

    SEEN = "seen"
    NEXT = "next"
    GAP = "gap"
    """One before it has not come."""


class Chains:
    """The last message of each chain."""

    def __init__(self) -> None:
        self.begin: dict[int, Number] = {}
        """From where on each partition should be whole, also in chains that are not known yet."""
        self._last: dict[Chain, Number] = {}

    def last(self, id: MessageId) -> Number | None:
        """The last one of a message's chain, if any."""
        return self._last.get((id.publisher, id.partition, id.chain))

    def standing(self, message: VerifiedMessage) -> Standing:
        """Where a message stands."""
        id, previous = message.id, message.previous
        last = self.last(id)
        if last is not None and (id.timestamp_ms, id.sequence) <= last:
            return Standing.SEEN
        if previous is None:
            return Standing.NEXT
        before = (previous.timestamp_ms, previous.sequence)
        if last is None:
            begin = self.begin.get(id.partition)
            return Standing.NEXT if begin is None or before < begin else Standing.GAP
        return Standing.NEXT if before <= last else Standing.GAP

    def took(self, message: VerifiedMessage) -> None:
        """A message was given to the application."""
        id = message.id
        chain, number = (id.publisher, id.partition, id.chain), (id.timestamp_ms, id.sequence)
        last = self._last.pop(chain, number)
        self._last[chain] = max(last, number)
        if len(self._last) > CHAINS_MAX:
            del self._last[next(iter(self._last))]
