"""What went over each edge lately: lost, if the neighbour at its end turns out to be dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from shoal.protocols.search.messages import BubbleCast

AROUND_BYTES = 512  # of a part, beside its payload: header, record and what we keep of it


class _Sent(NamedTuple):
    at_ns: int
    id: bytes
    part: BubbleCast

    @property
    def size(self) -> int:
        return len(self.part.payload) + AROUND_BYTES


class _Log:
    __slots__ = ("bytes", "ids", "parts")

    def __init__(self) -> None:
        self.parts: deque[_Sent] = deque()
        self.ids: dict[bytes, int] = {}
        """How many parts of each bubble."""
        self.bytes = 0

    def add(self, sent: _Sent) -> None:
        self.parts.append(sent)
        self.ids[sent.id] = self.ids.get(sent.id, 0) + 1
        self.bytes += sent.size

    def drop(self) -> None:
        """Forget the oldest."""
        sent = self.parts.popleft()
        self.bytes -= sent.size
        if self.ids[sent.id] == 1:
            del self.ids[sent.id]
        else:
            self.ids[sent.id] -= 1


class Sent:
    """Parts of bubbles by the number of their edge, for as long as a neighbour may be dead without
    our knowledge, and in bounded memory: the oldest are forgotten first."""

    def __init__(self, lasts_ns: int, bytes_max: int) -> None:
        self._lasts_ns = lasts_ns
        self._bytes_max = bytes_max
        self._logs: dict[int, _Log] = {}

    def __len__(self) -> int:
        return sum(len(log.parts) for log in self._logs.values())

    def add(self, edge: int, id: bytes, part: BubbleCast, now_ns: int) -> None:
        """A part goes out."""
        log = self._logs.setdefault(edge, _Log())
        log.add(_Sent(now_ns, id, part))
        self._prune(log, now_ns)
        while log.bytes > self._bytes_max:
            log.drop()

    def has(self, edge: int, id: bytes) -> bool:
        """Whether an edge has had something of a bubble lately."""
        log = self._logs.get(edge)
        return log is not None and id in log.ids

    def take(self, edge: int, now_ns: int) -> list[tuple[bytes, BubbleCast]]:
        """Everything that went over an edge lately, oldest first; it is forgotten here."""
        log = self._logs.pop(edge, None)
        if log is None:
            return []
        self._prune(log, now_ns)
        return [(sent.id, sent.part) for sent in log.parts]

    def expire(self, edges: Iterable[int], now_ns: int) -> None:
        """Forget what is old, and what went over other edges than these: they ended in good
        order, and it has arrived."""
        logs = {edge: self._logs[edge] for edge in edges if edge in self._logs}
        for log in logs.values():
            self._prune(log, now_ns)
        self._logs = {edge: log for edge, log in logs.items() if log.parts}

    def _prune(self, log: _Log, now_ns: int) -> None:
        while log.parts and log.parts[0].at_ns < now_ns - self._lasts_ns:
            log.drop()
