"""A node that was away asks storage for what it may have missed without a sign of it.

A gap shows by the next message of its chain, or by a neighbour's Heads. Whoever was alone for a
while, and comes back among nodes that are all newer than a message, is shown neither if its chain
has ended. So the stream machine says since when it was alone, and all messages since then are read
from storage, partition by partition. They go back to it like those that fill a gap: what it has is
known as a copy, the rest is checked, delivered and passed on.

Whatever cut this node off may have cut off storage too. Where that does not answer, the stream
waits, and is read again from the beginning; where some of it did not, what the others have is taken
at once, and it is read again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.base.ids import INT63_MAX, KEYS_PARTITION, NodeId, StreamId
from shoal.identity.message_body import Position
from shoal.kernel.effects import CancelTimer, Effect, Send, SetTimer
from shoal.protocols.streams.commands import (
    COMPLETE,
    FAILED,
    INCOMPLETE,
    NO_STORAGE,
    NO_TRACKER,
    CatchUp,
    FilledFromStorage,
    FillFromStorage,
    HistoryRow,
    MessageRange,
    ReadHistory,
    Unheard,
)
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.history_read import Sink

PartitionsOf = Callable[[StreamId], int]
Begin = Callable[[StreamId, ReadHistory, Sink], list[Effect]]
OfStream = Callable[[StreamId], list[Effect]]


class _Absence(msgspec.Struct, frozen=True):
    """What is to be read of a stream."""

    since: Position
    tries: int = 0  # that failed
    short: bool = False
    """A storage node that may have more of it was not heard."""


class CatchUps:
    """The streams of this node that are being caught up with, one read each."""

    def __init__(
        self,
        node: NodeId,
        config: ClientConfig,
        partitions_of: PartitionsOf,
        begin: Begin,
        more: OfStream,
        stop: OfStream,
    ) -> None:
        """Begin starts a read, more has its next page told, and stop ends it."""
        self._node = node
        self._config = config
        self._partitions_of = partitions_of
        self._begin = begin
        self._more = more
        self._stop = stop
        self._waiting: dict[StreamId, _Absence] = {}
        self._running: dict[StreamId, None] = {}
        self._failed: dict[StreamId, _Absence] = {}  # until their timers run out
        self._choosing = False

    def ask(self, absence: CatchUp) -> list[Effect]:
        """Something may be missing."""
        stream, failed = absence.stream, self._failed.pop(absence.stream, None)
        # While a stream waits, the earlier absence counts: its read goes to the end.
        since = absence.since if failed is None else failed.since
        self._waiting.setdefault(stream, _Absence(since))
        cancel = [] if failed is None else [CancelTimer(("catch-up", stream))]
        return [*cancel, *self._next_stream()]

    def ask_again(self, stream: StreamId) -> list[Effect]:
        """Storage did not answer a while ago."""
        self._waiting[stream] = self._failed.pop(stream)
        return self._next_stream()

    def _next_stream(self) -> list[Effect]:
        effects: list[Effect] = []
        if self._choosing:
            return effects  # a read was over as soon as it had begun: whoever began it goes on
        self._choosing = True
        while (stream := self._turn()) is not None:
            self._running[stream] = None
            effects += self._read(stream, 0, self._waiting.pop(stream))
        self._choosing = False
        return effects

    def _turn(self) -> StreamId | None:
        if len(self._running) >= self._config.catch_ups_at_once:
            return None
        return next((stream for stream in self._waiting if stream not in self._running), None)

    def _read(self, stream: StreamId, partition: int, absence: _Absence) -> list[Effect]:
        told = 0

        def page(rows: tuple[HistoryRow, ...]) -> list[Effect]:
            nonlocal told
            told += len(rows)
            effects = [Send(filled, (self._node,)) for filled in _by_chain(rows)]
            if told < self._config.catch_up_rows_max:
                return effects + self._more(stream)
            # Of a stream that is this busy, chains that go on show what else is missing.
            return [*effects, *self._stop(stream), *after()]

        def ended(reason: str, problem: str, unheard: tuple[Unheard, ...]) -> list[Effect]:
            nonlocal absence
            if reason == INCOMPLETE:
                absence = msgspec.structs.replace(absence, short=True)
            if reason in (FAILED, NO_TRACKER):
                return self._try_later(stream, absence) + self._over(stream)
            return self._over(stream) if reason == NO_STORAGE else after()

        def after() -> list[Effect]:
            if partition + 1 < self._partitions_of(stream):
                return self._read(stream, partition + 1, absence)
            if partition < KEYS_PARTITION:
                return self._read(stream, KEYS_PARTITION, absence)
            later = self._try_later(stream, absence) if absence.short else []
            return later + self._over(stream)

        what = MessageRange(absence.since, None)
        command = ReadHistory(stream, partition, what, insist=True)
        return self._begin(stream, command, Sink(page, ended))

    def _try_later(self, stream: StreamId, absence: _Absence) -> list[Effect]:
        if stream in self._waiting:  # away again meanwhile
            self._waiting[stream] = _Absence(absence.since)
            return []
        tries = absence.tries + 1
        if tries >= self._config.catch_up_tries:
            return []
        self._failed[stream] = _Absence(absence.since, tries)
        wait_ns = self._config.catch_up_retry_ns << absence.tries
        return [SetTimer(("catch-up", stream), wait_ns)]

    def _over(self, stream: StreamId) -> list[Effect]:
        del self._running[stream]
        return self._next_stream()


def _by_chain(rows: tuple[HistoryRow, ...]) -> list[FilledFromStorage]:
    chains: dict[tuple[StreamId, NodeId, int, str], list[bytes]] = {}
    for row in rows:
        id = row.message.id
        chain = (id.stream, id.publisher, id.partition, id.chain)
        chains.setdefault(chain, []).append(row.message.signed)
    return [FilledFromStorage(*chain, tuple(found), True) for chain, found in chains.items()]


# Gaps that neighbours could not fill: the stream machine of this node asks, storage answers.
#
# Whatever is found goes back to the stream machine, which takes it like any other copy: checks it,
# passes it on, and delivers it in its place. A gap is answered once, also if nothing was found, so
# that nobody waits longer than storage nodes take to answer or to be given up.


BeginFill = Callable[[FillFromStorage, ReadHistory, Sink], list[Effect]]
Stop = Callable[[FillFromStorage], list[Effect]]


class Fills:
    """The gaps of this node that storage is being asked for, one read each."""

    def __init__(self, node: NodeId, config: ClientConfig, begin: BeginFill, stop: Stop) -> None:
        """Begin starts a read of one page, and stop ends it."""
        self._node = node
        self._config = config
        self._begin = begin
        self._stop = stop
        self._open: dict[FillFromStorage, None] = {}

    def ask(self, gap: FillFromStorage) -> list[Effect]:
        """Something is missing."""
        if gap in self._open:
            return []  # its answer is on the way
        if len(self._open) >= self._config.fills_max:
            return self._answer(gap, (), asked=False)
        self._open[gap] = None
        what = MessageRange(following(gap.after), gap.upto)
        command = ReadHistory(
            gap.stream, gap.partition, what, gap.publisher, gap.chain, insist=True
        )

        def page(rows: tuple[HistoryRow, ...]) -> list[Effect]:
            # What does not fit one page is asked for when this has been taken.
            return [*self._stop(gap), *self._close(gap, rows, asked=True)]

        def ended(reason: str, problem: str, unheard: tuple[Unheard, ...]) -> list[Effect]:
            return self._close(gap, (), asked=reason in (COMPLETE, NO_STORAGE))

        return self._begin(gap, command, Sink(page, ended))

    def _close(
        self, gap: FillFromStorage, rows: tuple[HistoryRow, ...], *, asked: bool
    ) -> list[Effect]:
        del self._open[gap]
        return self._answer(gap, rows, asked=asked)

    def _answer(
        self, gap: FillFromStorage, rows: tuple[HistoryRow, ...], *, asked: bool
    ) -> list[Effect]:
        id = rows[-1].message.id if rows else None
        filled = FilledFromStorage(
            gap.stream,
            gap.publisher,
            gap.partition,
            gap.chain,
            tuple([row.message.signed for row in rows]),
            asked,
            gap.after,
            gap.upto,
            None if id is None else Position(id.timestamp_ms, id.sequence),
        )
        return [Send(filled, (self._node,))]


def following(after: Position) -> Position:
    """The first position behind one, among those that can be asked for."""
    if after.sequence < INT63_MAX:
        return Position(after.timestamp_ms, after.sequence + 1)
    return Position(min(after.timestamp_ms + 1, INT63_MAX), 0)
