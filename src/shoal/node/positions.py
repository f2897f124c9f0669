"""How far each chain has come, for whoever puts history and live messages together."""

from __future__ import annotations

from enum import Enum

from shoal.base.ids import MessageId, NodeId
from shoal.node.progress import Place
from shoal.protocols.streams.duplicates import BEGINNING, DuplicateDetector
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.protocols.streams.placed import place

CHAINS_MAX = 50_000  # about 10 MB; what lies before the end of a chain that is forgotten was seen
RANGES_MAX = 1_000  # of a chain in a log: one for each message that came late

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
        self.logged: frozenset[int] = frozenset()
        """Partitions that are read by log, in which messages may come late."""
        self._last: dict[Chain, Number] = {}
        self._told: dict[Chain, DuplicateDetector] = {}  # of logs
        self._floor: dict[int, tuple[Number, NodeId, str]] = {}  # where forgotten chains ended

    def last(self, id: MessageId) -> Number | None:
        """The last one of a message's chain, if any."""
        return self._last.get((id.publisher, id.partition, id.chain))

    def whole_to(self, id: MessageId) -> Number:
        """Up to where a message's chain has been given, or was not asked for."""
        begin = self.begin.get(id.partition, BEGINNING)
        floor = self._floor.get(id.partition)
        return self.last(id) or (begin if floor is None else max(begin, floor[0]))

    def told(self, message: VerifiedMessage) -> bool:
        """Whether this one, of a log, was given to the application; a late one was not."""
        id = message.id
        told = self._told.get((id.publisher, id.partition, id.chain))
        return told is not None and told.seen((id.timestamp_ms, id.sequence))

    def standing(self, message: VerifiedMessage) -> Standing:
        """Where a message stands."""
        id, previous = message.id, message.previous
        last, number = self.last(id), (id.timestamp_ms, id.sequence)
        floor = self._floor.get(id.partition) if last is None else None
        if last is not None and number <= last:
            return Standing.SEEN
        if floor is not None and (number, id.publisher, id.chain) <= floor:
            return Standing.SEEN  # as far as history is read by position
        if previous is None:
            return Standing.NEXT
        before = (previous.timestamp_ms, previous.sequence)
        if last is None:
            begin = self.begin.get(id.partition)
            known = begin is None or before < begin or (floor is not None and before <= floor[0])
            return Standing.NEXT if known else Standing.GAP
        return Standing.NEXT if before <= last else Standing.GAP

    def resume(self, partition: int, place: Place) -> None:
        """A reader comes back: it was given these."""
        for (publisher, chain), number in place.given.items():
            self._last[publisher, partition, chain] = number

    def took(self, message: VerifiedMessage) -> None:
        """A message was given to the application."""
        placed = place(message)
        chain, number = placed.chain, placed.number
        last = self._last.pop(chain, number)
        self._last[chain] = max(last, number)
        if message.id.partition in self.logged:
            told = self._told.setdefault(chain, DuplicateDetector(RANGES_MAX))
            told.mark(placed.before, number)
        if len(self._last) > CHAINS_MAX:
            self._forget(next(iter(self._last)))

    def _forget(self, chain: Chain) -> None:
        self._told.pop(chain, None)
        publisher, partition, name = chain
        end = (self._last.pop(chain), publisher, name)
        self._floor[partition] = max(end, self._floor.get(partition, end))
