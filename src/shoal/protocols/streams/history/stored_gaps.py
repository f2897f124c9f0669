"""Which messages a storage node lacks, as far as the chains that it stores show.

Each message names the one before it in its chain. If that was not stored just before, it may be on
disk for long, or still come: from neighbours, other storage nodes, or the publisher's own disk. So
the disk is asked a while later, and again as long as the message is not there. What is missing then
is a gap, and counted. What retention has let go of is none.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import StorageConfig
from shoal.protocols.streams.history.disk_requests import FindMissing, Missing

_Chain: TypeAlias = tuple[StreamId, int, NodeId, str]
_Number: TypeAlias = tuple[int, int]  # the timestamp and the sequence of a message


class StoredGaps:
    """The gaps of one storage node, in bounded number."""

    def __init__(self, config: StorageConfig) -> None:
        self.unchecked = 0
        """Predecessors that were not looked for, since there were too many."""
        self._config = config
        # The newest messages of each chain that came one after the other: from the first of them to
        # the last.
        self._runs: dict[_Chain, tuple[_Number, _Number]] = {}
        self._recent: dict[MessageId, None] = {}  # what came out of order
        self._older: dict[MessageId, None] = {}  # as many before these
        self._looked_for: dict[MessageId, int] = {}  # since when; those to be looked up next first
        self._missing: dict[MessageId, None] = {}  # of these
        self._left = 0  # to be looked up in this pass

    @property
    def count(self) -> int:
        """Messages that are missing, each before at least one that is here."""
        return len(self._missing)

    def stored(self, id: MessageId, previous: Position | None, now_ns: int) -> None:
        """A message is on disk: is the one before it, too?"""
        chain = (id.stream, id.partition, id.publisher, id.chain)
        number, run = (id.timestamp_ms, id.sequence), self._runs.get(chain)
        if run is not None and run[0] <= number <= run[1]:
            return  # it came twice, as many
        if self._looked_for:
            self._found(id)
        is_newest = run is None or number > run[1]
        if previous is None:
            if is_newest:
                self._begin_run(chain, number)
            return
        before = (previous.timestamp_ms, previous.sequence)
        if is_newest and run is not None and before == run[1]:  # in order, as most
            self._runs[chain] = (run[0], number)
            return
        if id in self._recent or id in self._older:
            return
        self._remember(id)
        if is_newest:
            if run is not None:
                self._remember(MessageId(id.stream, id.partition, *run[1], id.publisher, id.chain))
            self._begin_run(chain, number)
        lacks = MessageId(id.stream, id.partition, *before, id.publisher, id.chain)
        if lacks in self._recent or lacks in self._older or lacks in self._looked_for:
            return
        if len(self._looked_for) < self._config.gaps_max:
            self._looked_for[lacks] = now_ns
        else:
            self.unchecked += 1

    def _found(self, id: MessageId) -> None:
        self._looked_for.pop(id, None)
        self._missing.pop(id, None)

    def _begin_run(self, chain: _Chain, number: _Number) -> None:
        self._runs[chain] = (number, number)
        if len(self._runs) > self._config.chains_max:
            del self._runs[next(iter(self._runs))]

    def _remember(self, id: MessageId) -> None:
        self._recent[id] = None
        if 2 * len(self._recent) >= self._config.stored_ids_max:
            self._recent, self._older = {}, self._recent

    def begin(self, now_ns: int) -> None:
        """Look up all that have had time to come, and those that are missing."""
        due_ns = now_ns - self._config.gaps_ns
        self._left = sum(since_ns <= due_ns for since_ns in self._looked_for.values())

    def question(self, now_ns: int) -> FindMissing | None:
        """The next of them, those that were not looked up for longest; None at the end."""
        due_ns = now_ns - self._config.gaps_ns
        most = min(self._left, self._config.gaps_at_once)
        due = [id for id, since_ns in self._looked_for.items() if since_ns <= due_ns][:most]
        self._left -= len(due)
        for id in due:
            self._looked_for[id] = self._looked_for.pop(id)  # to the end
        return FindMissing(tuple(due)) if due else None

    def looked_up(self, question: FindMissing, answer: Any) -> None:
        """The disk says what it lacks."""
        if not isinstance(answer, Missing):
            self._left = 0  # it fails: perhaps not the next time
            return
        missing = {question.ids[at]: None for at in answer.at}
        for id in question.ids:
            if id in missing:
                self._missing[id] = None
            else:
                self._missing.pop(id, None)
                self._looked_for.pop(id, None)
