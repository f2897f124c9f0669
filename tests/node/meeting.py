"""A subscription whose history is a storage that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import time_ns
from typing import Any

import pytest

from shoal.base.ids import MessageId, node_id
from shoal.base.units import MS_NS
from shoal.identity.message_body import Position
from shoal.node.streams import subscription
from shoal.node.streams.history import NodeHistory
from shoal.node.streams.message import Message
from shoal.node.streams.reader_offsets import Progress
from shoal.node.streams.subscription import Splice, Subscription
from shoal.protocols.streams.commands import (
    FAILED,
    HistoryEnded,
    HistoryPage,
    HistoryRow,
    LogRange,
    MessageArrived,
    MessageRange,
    ReadHistory,
    What,
)
from shoal.protocols.streams.history.read_plan import cursor_of
from shoal.protocols.streams.signed_message import VerifiedMessage
from tests.support.streams import STREAM

NOW_MS = 0  # of each test's beginning
PATIENCE_S = 10.0
ALICE, BOB = node_id(b"a" * 20), node_id(b"b" * 20)


def message(
    number: int,
    previous: int | None = None,
    publisher: Any = ALICE,
    chain: str = "c",
    partition: int = 0,
) -> VerifiedMessage:
    """A message of so many milliseconds from now; by default after the one before."""
    before = number - 1 if previous is None else previous
    id = MessageId(STREAM, partition, NOW_MS + number, 0, publisher, chain)
    return VerifiedMessage(id, Position(NOW_MS + before, 0), 2, b"%d" % number, b"signed")


class Storage:
    """Stands for the host and its history machine."""

    def __init__(self, *log: VerifiedMessage) -> None:
        self.log = list(log)
        self.away = False
        self.away_s = 0.0  # so long does it take to find out
        self.silent = False
        self.asked: list[What] = []
        self.page_rows = 1_000_000
        self.breaks = False  # after its first page

    async def issue(self, client: Any, command: Any, token: Any) -> None:
        if not isinstance(command, ReadHistory):
            return
        self.asked.append(command.what)
        if self.silent:
            return
        if self.away:
            await asyncio.sleep(self.away_s)
            token.heard(HistoryEnded(token, FAILED, "away"))
            return
        rows = tuple(self._rows(command))
        if rows:
            token.heard(HistoryPage(token, rows))
        ended = HistoryEnded(token, FAILED, "away") if self.breaks else HistoryEnded(token)
        self.breaks = False
        token.heard(ended)

    def _rows(self, command: ReadHistory) -> Iterator[HistoryRow]:
        what = command.what
        if isinstance(what, LogRange):
            for seq, held in enumerate(self.log, 1):
                if seq > what.after_seq:
                    yield HistoryRow(held, seq)
            return
        assert isinstance(what, MessageRange)
        for held in sorted(self.log, key=lambda m: cursor_of(m.id)):
            if held.id.partition != command.partition:
                continue
            here = Position(held.id.timestamp_ms, held.id.sequence)
            if command.publisher not in (None, held.id.publisher):
                continue
            if command.chain not in (None, held.id.chain):
                continue
            if (what.begin or here) <= here <= (what.end or here):
                yield HistoryRow(held)


class Meeting:
    """A subscription whose history is this storage."""

    def __init__(
        self,
        storage: Storage,
        what: What,
        queue_max: int = 1000,
        progress: Progress | None = None,
    ) -> None:
        self.storage = storage
        self.history = NodeHistory(storage, None)  # type: ignore[arg-type]
        self.subscription = Subscription(queue_max, progress=progress)
        self.splice = Splice(self.subscription, self.history, [ReadHistory(STREAM, 0, what)])
        self.subscription.follow(self.splice)

    def live(self, *messages: VerifiedMessage, gap: bool = False) -> None:
        for held in messages:
            self.subscription.push(MessageArrived(held, 1, 0, gap))

    async def got(self, count: int, quiet_s: float = 0.3) -> list[Message]:
        """So many messages, however long they take, and what else comes for a while."""
        got: list[Message] = []
        while True:
            patience_s = PATIENCE_S if len(got) < count else quiet_s
            try:
                async with asyncio.timeout(patience_s):
                    got.append(await anext(self.subscription))
            except TimeoutError:
                return got


def meet(
    scenario: Callable[[Meeting], Awaitable[None]],
    storage: Storage,
    what: What,
    queue_max: int = 1000,
) -> None:
    """Run a scenario, and let nothing that the splice died of pass unseen."""

    async def main() -> None:
        meeting = Meeting(storage, what, queue_max)
        async with asyncio.timeout(20):
            await meeting.splice.begin()
            try:
                await scenario(meeting)
            finally:
                task = meeting.splice._task
                if task is not None and task.done():
                    task.result()  # a splice that died has stopped to feed
                await meeting.splice.close()

    asyncio.run(main())


def numbers(messages: Sequence[Message]) -> list[int]:
    """Which messages these are."""
    return [held.id.timestamp_ms - NOW_MS for held in messages]


def gaps(messages: Sequence[Message]) -> list[int]:
    """Those of them that say that something is missing before them."""
    return numbers([held for held in messages if held.gap_before is not None])


def quicken(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let history settle soon, and time begin now; the millisecond that numbers count from."""
    # What is read and what is live meet at the present: it must not have become the past.
    now_ms = time_ns() // MS_NS
    monkeypatch.setitem(globals(), "NOW_MS", now_ms)
    monkeypatch.setattr(subscription, "SETTLE_S", 0.1)
    monkeypatch.setattr(subscription, "PAUSES_S", (0.0, 0.01, 0.02))
    return now_ms
