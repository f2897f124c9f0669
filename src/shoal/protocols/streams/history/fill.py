"""Gaps that neighbours could not fill: the stream machine of this node asks, storage answers.

Whatever is found goes back to the stream machine, which takes it like any other copy: checks it,
passes it on, and delivers it in its place. A gap is answered once, also if nothing was found, so
that nobody waits longer than storage nodes take to answer or to be given up.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.base.ids import INT63_MAX, NodeId
from shoal.identity.stream_message import Position
from shoal.kernel.effects import Effect, Send
from shoal.protocols.streams.history.commands import (
    COMPLETE,
    NO_STORAGE,
    HistoryRow,
    MessageRange,
    ReadHistory,
    Unheard,
)
from shoal.protocols.streams.history.config import ClientConfig
from shoal.protocols.streams.history.messages import FilledFromStorage, FillFromStorage
from shoal.protocols.streams.history.reading import Sink

Begin = Callable[[FillFromStorage, ReadHistory, Sink], list[Effect]]
Stop = Callable[[FillFromStorage], list[Effect]]


class Fills:
    """The gaps of this node that storage is being asked for, one read each."""

    def __init__(self, node: NodeId, config: ClientConfig, begin: Begin, stop: Stop) -> None:
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
