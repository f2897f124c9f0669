"""Which messages a storage node lacks, as far as the chains that it stores show.

Each message names the one before it in its chain. If that was not stored just before, it may be on
disk for long, or still come: from neighbours, other storage nodes, or the publisher's own disk. So
the disk is asked a while later, and again as long as the message is not there. What is missing then
is a gap, and counted. What retention has let go of is none.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity.stream_message import Position
from shoal.protocols.streams.history.config import StorageConfig
from shoal.protocols.streams.history.disk import FindMissing, Missing

_Chain: TypeAlias = tuple[StreamId, int, NodeId, str]


class StoredGaps:
    """The gaps of one storage node, in bounded number."""

    def __init__(self, config: StorageConfig) -> None:
        self._config = config
        self._newest: dict[_Chain, tuple[int, int]] = {}
        self._looked_for: dict[MessageId, int] = {}  # since when; those to be looked up next first
        self._missing: dict[MessageId, None] = {}  # of these

    @property
    def count(self) -> int:
        """Messages that are missing, each before at least one that is here."""
        return len(self._missing)

    def stored(self, id: MessageId, previous: Position | None, now_ns: int) -> None:
        """A message is on disk: is the one before it, too?"""
        chain = (id.stream, id.partition, id.publisher, id.chain)
        newest = self._newest.pop(chain, None)
        number = (id.timestamp_ms, id.sequence)
        self._newest[chain] = number if newest is None or number > newest else newest
        if len(self._newest) > self._config.chains_max:
            del self._newest[next(iter(self._newest))]
        if previous is None:
            return
        before = (previous.timestamp_ms, previous.sequence)
        if before == newest or number == newest:
            return  # in order; or stored twice
        lacks = MessageId(id.stream, id.partition, *before, id.publisher, id.chain)
        if len(self._looked_for) < self._config.gaps_max:
            self._looked_for.setdefault(lacks, now_ns)

    def question(self, now_ns: int) -> FindMissing | None:
        """Those that have had time to come, and were not looked up for longest."""
        due_ns = now_ns - self._config.gaps_ns
        due = [id for id, since_ns in self._looked_for.items() if since_ns <= due_ns]
        due = due[: self._config.gaps_at_once]
        for id in due:
            self._looked_for[id] = self._looked_for.pop(id)  # to the end
        return FindMissing(tuple(due)) if due else None

    def looked_up(self, question: FindMissing, answer: Any) -> None:
        """The disk says what it lacks."""
        if not isinstance(answer, Missing):
            return  # it fails: perhaps not the next time
        missing = {question.ids[at]: None for at in answer.at}
        for id in question.ids:
            if id in missing:
                self._missing[id] = None
            else:
                self._missing.pop(id, None)
                self._looked_for.pop(id, None)
