"""A node that was away asks storage for what it may have missed without a sign of it.

A gap shows by the next message of its chain, or by a neighbour's Heads. Whoever was alone for a
while, and comes back among nodes that are all newer than a message, is shown neither if its chain
has ended. So the stream machine says since when it was alone, and all messages since then are read
from storage, partition by partition. They go back to it like those that fill a gap: what it has is
known as a copy, the rest is checked, delivered and passed on.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.base.ids import KEYS_PARTITION, NodeId, StreamId
from shoal.identity.stream_message import Position
from shoal.kernel.effects import Effect, Send
from shoal.protocols.streams.history.commands import (
    NO_STORAGE,
    NO_TRACKER,
    HistoryRow,
    MessageRange,
    ReadHistory,
)
from shoal.protocols.streams.history.config import ClientConfig
from shoal.protocols.streams.history.messages import CatchUp, FilledFromStorage
from shoal.protocols.streams.history.reading import Sink

PartitionsOf = Callable[[StreamId], int]
Begin = Callable[[StreamId, ReadHistory, Sink], list[Effect]]
OfStream = Callable[[StreamId], list[Effect]]


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
        self._waiting: dict[StreamId, Position] = {}
        self._running: dict[StreamId, None] = {}

    def ask(self, absence: CatchUp) -> list[Effect]:
        """Something may be missing."""
        # While a stream waits, the earlier absence counts: its read goes to the end.
        self._waiting.setdefault(absence.stream, absence.since)
        return self._next_stream()

    def _next_stream(self) -> list[Effect]:
        effects: list[Effect] = []
        for stream in list(self._waiting):
            if len(self._running) >= self._config.catch_ups_at_once:
                break
            if stream not in self._running:
                self._running[stream] = None
                effects += self._read(stream, 0, self._waiting.pop(stream))
        return effects

    def _read(self, stream: StreamId, partition: int, since: Position) -> list[Effect]:
        told = 0

        def page(rows: tuple[HistoryRow, ...]) -> list[Effect]:
            nonlocal told
            told += len(rows)
            effects = [Send(filled, (self._node,)) for filled in _by_chain(rows)]
            if told < self._config.catch_up_rows_max:
                return effects + self._more(stream)
            # Of a stream that is this busy, chains that go on show what else is missing.
            return [*effects, *self._stop(stream), *after()]

        def ended(reason: str, problem: str) -> list[Effect]:
            return self._over(stream) if reason in (NO_STORAGE, NO_TRACKER) else after()

        def after() -> list[Effect]:
            if partition + 1 < self._partitions_of(stream):
                return self._read(stream, partition + 1, since)
            if partition < KEYS_PARTITION:
                return self._read(stream, KEYS_PARTITION, since)
            return self._over(stream)

        command = ReadHistory(stream, partition, MessageRange(since, None), insist=True)
        return self._begin(stream, command, Sink(page, ended))

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
