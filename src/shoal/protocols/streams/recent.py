"""What a node has lately passed on, so that neighbours can ask for what they missed, and so that
a publisher who contradicts itself is found out."""

from __future__ import annotations

from collections import deque
from itertools import islice
from operator import attrgetter

from shoal.base.ids import MessageId
from shoal.base.units import MS_NS
from shoal.protocols.streams.config import SIGNATURE_BYTES, NodeConfig
from shoal.protocols.streams.duplicates import Number
from shoal.protocols.streams.placed import Chain, PlacedMessage

MARK_NS = 100 * MS_NS  # how exactly it is known when something came

_number = attrgetter("number")


class RecentMessages:
    """The last messages of one stream, bounded in bytes and age, oldest dropped first.

    They are kept in the order in which they came; when that was is noted once for all that came
    within MARK_NS. What is rarely asked for, the messages of one chain, is searched for.
    """

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_config",
        "_dropped",
        "_held",
        "_marked_ns",
        "_marks",
        "_order",
        "_settled",
        "_told",
    )

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._bytes_max = config.recent_bytes_max
        self._held: dict[MessageId, PlacedMessage] = {}
        self._order: deque[PlacedMessage] = deque()
        self._dropped = 0  # so many came before the first of them
        self._marks: deque[tuple[int, int]] = deque()  # at that time, so many had come before
        self._marked_ns = -MARK_NS
        self._told = 0  # so many of all that came have been looked at for quiet chains
        self._settled: set[MessageId] = set()  # known to have two bodies
        self._bytes = 0

    def add(self, message: PlacedMessage, now_ns: int) -> None:
        """Keep a verified message."""
        if now_ns - self._marked_ns >= MARK_NS:
            self._marked_ns = now_ns
            self._marks.append((now_ns, self._dropped + len(self._order)))
            self._drop_old(now_ns)
        self._held[message.id] = message
        self._order.append(message)
        self._bytes += len(message.signed)
        while self._bytes > self._bytes_max:
            self._drop()

    def contradicted(self, message: PlacedMessage) -> bytes | None:
        """The message that we hold under an id, if this one says something else.

        None once an id is settled: the proof was found, and further bodies prove nothing more.
        """
        held = self._held.get(message.id)
        if held is None or message.id in self._settled:
            return None
        # The same body may have several good signatures: it is the same message.
        body = memoryview(held.signed)[SIGNATURE_BYTES:]
        return None if body == memoryview(message.signed)[SIGNATURE_BYTES:] else held.signed

    def settle(self, message: PlacedMessage) -> None:
        """Two signed bodies were found under an id that we hold."""
        self._settled.add(message.id)

    def between(self, chain: Chain, after: Number, upto: Number) -> list[bytes]:
        """Messages of a chain in (after, upto], in order, up to the size of one answer."""
        kept = [m for m in self._order if m.chain == chain and after < m.number <= upto]
        found: list[bytes] = []
        size_bytes = 0
        for message in sorted(kept, key=_number):
            size_bytes += len(message.signed)
            if found and size_bytes > self._config.fill_bytes_max:
                break
            found.append(message.signed)
        return found

    def since(self, before_ns: int) -> list[PlacedMessage]:
        """What came before a time, and was not given by the last call; the latest first."""
        came = self._dropped + len(self._order)
        begin, end = max(self._told, self._dropped), self._came_before(before_ns)
        self._told = max(begin, end)
        return list(islice(reversed(self._order), came - end, came - min(begin, end)))

    def _came_before(self, time_ns: int) -> int:
        """How many came before a time, those that were dropped included."""
        came = self._dropped + len(self._order)
        for when_ns, count in reversed(self._marks):
            if when_ns < time_ns:
                break
            came = count
        return came

    def _drop_old(self, now_ns: int) -> None:
        marks, oldest_ns = self._marks, now_ns - self._config.recent_ns
        while marks[0][0] < oldest_ns:
            marks.popleft()
            while self._dropped < marks[0][1]:
                self._drop()

    def _drop(self) -> None:
        message = self._order.popleft()
        self._dropped += 1
        self._bytes -= len(message.signed)
        self._held.pop(message.id, None)
        self._settled.discard(message.id)
