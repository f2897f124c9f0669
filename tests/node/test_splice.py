"""Where history and live meet, step by step: a storage that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import time_ns
from typing import Any

import msgspec
import pytest

from shoal.base.errors import HistoryUnavailable, InvariantViolated, UsageError
from shoal.base.ids import MessageId, node_id
from shoal.base.units import MS_NS
from shoal.identity.stream_message import Position
from shoal.node import positions, splice
from shoal.node.history import NodeHistory, progress_of, reads_of
from shoal.node.messages import Message
from shoal.node.progress import Progress, parse_places
from shoal.node.splice import Splice
from shoal.node.subscription import QUEUE_BYTES_MIN, Subscription
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.history.commands import (
    FAILED,
    HistoryEnded,
    HistoryPage,
    HistoryRow,
    LogRange,
    MessageRange,
    ReadHistory,
    What,
)
from shoal.protocols.streams.history.reader import cursor_of
from shoal.protocols.streams.messages import VerifiedMessage
from tests.support.streams import STREAM

LOG = bytes(range(16))
NOW_MS = 0  # of each test's beginning
PATIENCE_S = 10.0
ALICE, BOB = node_id(b"a" * 20), node_id(b"b" * 20)
ALL = MessageRange()


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


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is read and what is live meet at the present: it must not have become the past.
    monkeypatch.setitem(globals(), "NOW_MS", time_ns() // MS_NS)
    monkeypatch.setattr(splice, "SETTLE_S", 0.1)
    monkeypatch.setattr(splice, "PAUSES_S", (0.0, 0.01, 0.02))


def meet(
    scenario: Callable[[Meeting], Awaitable[None]],
    storage: Storage,
    what: What,
    queue_max: int = 1000,
) -> None:
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
    return [held.id.timestamp_ms - NOW_MS for held in messages]


def gaps(messages: Sequence[Message]) -> list[int]:
    return numbers([held for held in messages if held.gap_before is not None])


# Logs


def test_a_log_that_breaks_off_is_said_and_live_goes_on() -> None:
    async def scenario(meeting: Meeting) -> None:
        assert (await anext(meeting.subscription)).id.timestamp_ms == NOW_MS - 10
        with pytest.raises(HistoryUnavailable):
            await anext(meeting.subscription)
        await asyncio.sleep(0.3)  # by then the newest part is read again
        meeting.live(message(1), message(3, 2), message(4))
        assert numbers(await meeting.got(3)) == [1, 3, 4]

    storage = Storage(message(-10))
    storage.breaks = True
    meet(scenario, storage, LogRange(LOG, 0))


def test_a_row_that_came_late_to_the_log_is_not_lost() -> None:
    async def scenario(meeting: Meeting) -> None:
        meeting.storage.log.append(message(-19))  # before -18, which was told
        meeting.live(message(-19))
        assert numbers(await meeting.got(3)) == [-20, -18, -19]
        meeting.live(message(-17), message(-16))
        meeting.storage.log += [message(-17), message(-16)]
        assert numbers(await meeting.got(2)) == [-17, -16]

    meet(scenario, Storage(message(-20), message(-18)), LogRange(LOG, 0))


def test_a_late_row_comes_also_after_history_has_settled() -> None:
    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(2)) == [-20, -18]
        meeting.storage.log.append(message(-19))
        meeting.live(message(-19))
        assert numbers(await meeting.got(1)) == [-19]

    meet(scenario, Storage(message(-20), message(-18)), LogRange(LOG, 0))


def test_the_first_message_after_an_offset_has_no_gap_before_it() -> None:
    async def scenario(meeting: Meeting) -> None:
        following = message(50_000, -20)
        meeting.storage.log.append(following)
        meeting.live(following)
        got = await meeting.got(1)
        assert numbers(got) == [50_000]
        assert gaps(got) == []

    meet(scenario, Storage(message(-20)), LogRange(LOG, 1))


def test_what_lies_before_the_offset_does_not_come_again_because_a_copy_is_late() -> None:
    async def scenario(meeting: Meeting) -> None:
        meeting.live(message(-20))  # we had it, and a slow path brings it now
        assert numbers(await meeting.got(0)) == []
        following = message(50_000, -20)
        meeting.live(following)
        meeting.storage.log.append(following)
        got = await meeting.got(1)
        assert numbers(got) == [50_000]
        assert gaps(got) == []

    meet(scenario, Storage(message(-20)), LogRange(LOG, 1))


# Offsets of messages


def resumed(storage: Storage, offset: str | None) -> Meeting:
    """The same reader, when it comes back."""
    assert offset is not None
    places = parse_places(offset)
    (command,) = reads_of(STREAM, [0], places)
    return Meeting(storage, command.what, progress=progress_of(places, [0]))


async def rest(meeting: Meeting, count: int, *live: VerifiedMessage) -> list[Message]:
    """What a reader that comes back gets, and nothing more."""
    await meeting.splice.begin()
    try:
        meeting.live(*live)
        return await meeting.got(count)
    finally:
        await meeting.splice.close()


def test_after_every_message_of_history_and_live_comes_what_follows() -> None:
    stored = [message(n, chain=f"c{n % 3}", previous=n - 3) for n in range(-30, -10)]
    live = [message(n, chain=f"c{n % 3}", previous=n - 3) for n in range(-10, 0)]

    async def scenario(meeting: Meeting) -> None:
        meeting.live(*live)
        got = await meeting.got(30)
        assert numbers(got) == list(range(-30, 0))
        meeting.storage.log += live
        for at in (0, 11, 19, 20, 27, 29):
            left = numbers(got[at + 1 :])
            later = await rest(resumed(meeting.storage, got[at].offset), len(left))
            assert numbers(later) == left
            assert gaps(later) == []
        places = parse_places(str(got[24].offset))
        read = meeting.history.messages(reads_of(STREAM, [0], places), progress_of(places, [0]))
        assert numbers([held async for held in read]) == list(range(-5, 0))

    meet(scenario, Storage(*stored), MessageRange(Position(NOW_MS - 1000, 0)))


def test_what_was_under_way_at_an_offset_comes_after_it() -> None:
    async def scenario(meeting: Meeting) -> None:
        meeting.live(message(5))
        (_, last) = await meeting.got(2)
        slow = msgspec.structs.replace(message(-5_000, publisher=BOB), previous=None)
        meeting.storage.log += [slow, message(5, -20)]
        later = resumed(meeting.storage, last.offset)
        assert numbers(await rest(later, 2, message(5), message(6))) == [-5_000, 6]

    meet(scenario, Storage(message(-20)), ALL)


# Storage that does not answer


def test_live_messages_of_many_chains_do_not_wait_for_a_storage_that_is_away() -> None:
    async def scenario(meeting: Meeting) -> None:
        for _ in range(20):
            await anext(meeting.subscription)
        with pytest.raises(HistoryUnavailable):
            await anext(meeting.subscription)
        meeting.storage.away, meeting.storage.away_s = True, 1.0
        meeting.live(*(message(10, 9, chain=f"c{n}") for n in range(20)))
        async with asyncio.timeout(3):
            got = [await anext(meeting.subscription) for _ in range(20)]
        assert len(gaps(got)) == 20

    storage = Storage(*(message(-10, chain=f"c{n}") for n in range(20)))
    storage.breaks = True
    meet(scenario, storage, ALL)


def test_a_gap_does_not_hold_up_live_messages_while_storage_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(splice, "FILL_S", 0.2)

    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(2)) == [-11, -10]
        await asyncio.sleep(0.2)  # all is settled
        meeting.storage.silent = True
        meeting.live(message(2, 1), message(3), message(-9, chain="other"), message(6, 5))
        async with asyncio.timeout(1):
            got = [await anext(meeting.subscription) for _ in range(4)]
        assert numbers(got) == [2, 3, -9, 6]
        assert gaps(got) == [2, 6]

    meet(scenario, Storage(message(-11), message(-10, chain="other")), ALL)


# Partitions that were not there when the subscription began


def test_a_new_partition_is_whole_and_holds_up_no_other() -> None:
    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(1)) == [-20]
        meeting.storage.log.append(message(8, 5, partition=1))  # which the overlay lost
        meeting.live(message(5, -100, partition=1), message(9, 8, partition=1), message(30, -20))
        meeting.live(message(33, 32, partition=2))
        got = await meeting.got(5)
        assert numbers(got) == [5, 8, 9, 30, 33]
        assert gaps(got) == [33]

    meet(scenario, Storage(message(-20)), ALL)


# Faults of ours


def test_a_splice_that_breaks_says_so_and_lets_live_messages_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(1)) == [-20]

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(meeting.splice, "_gap_before", broken)
        meeting.live(message(3, 2), message(1, chain="other"))
        with pytest.raises(InvariantViolated, match=r"could not be put together.*a bug"):
            await anext(meeting.subscription)
        meeting.live(message(4))
        got = await meeting.got(3)
        assert (numbers(got), gaps(got)) == ([3, 1, 4], [3, 1])

    meet(scenario, Storage(message(-20)), ALL)


# Too much at once


def test_the_last_message_of_a_quiet_chain_is_not_let_go_for_good() -> None:
    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(1)) == [-10]
        await asyncio.sleep(0.2)  # all is settled
        quiet = msgspec.structs.replace(message(1, publisher=BOB), previous=None)
        busy = [message(number) for number in range(3, 40)]  # 2 is missing: it is looked for
        meeting.storage.log += [quiet, message(2, -10), *busy]
        meeting.live(busy[0], quiet, *busy[1:])
        got = await meeting.got(39)
        assert sorted(numbers(got)) == list(range(1, 40))
        assert [n for n in numbers(got) if n != 1] == list(range(2, 40))
        assert gaps(got) == []

    meet(scenario, Storage(message(-10)), ALL, queue_max=5)


def test_what_waits_for_history_is_bounded_in_bytes() -> None:
    async def main() -> None:
        meeting = Meeting(Storage(), ALL)
        third = bytes(QUEUE_BYTES_MIN // 3)
        large = [msgspec.structs.replace(message(number), signed=third) for number in range(1, 6)]
        meeting.live(*large)
        waiting = meeting.splice._waiting
        assert waiting.size_bytes <= QUEUE_BYTES_MIN
        assert [waiting.take().message for _ in range(len(waiting))] == large[3:]

    asyncio.run(main())


def test_what_was_let_go_and_cannot_be_had_is_a_gap() -> None:
    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(1)) == [-10]
        meeting.storage.away = True
        quiet = msgspec.structs.replace(message(1, publisher=BOB), previous=None)
        busy = [message(number) for number in range(3, 40)]
        meeting.live(busy[0], quiet, *busy[1:])
        await meeting.got(0, 0.5)
        meeting.live(message(50, 39))
        assert gaps(await meeting.got(1)) == [50]

    meet(scenario, Storage(message(-10)), ALL, queue_max=5)


def test_copies_of_what_was_read_late_are_known_for_as_long_as_they_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow consumer: the newest part of history is read long after history has ended."""
    monkeypatch.setattr(splice, "OVER_S", 1.5)

    async def scenario(meeting: Meeting) -> None:
        meeting.live(message(-9), message(-8), message(-7))
        got = [await anext(meeting.subscription) for _ in range(2)]
        await asyncio.sleep(1.7)
        meeting.storage.log += [message(number) for number in range(-9, -5)]
        assert numbers(got + await meeting.got(7)) == list(range(-14, -5))
        meeting.live(message(-6))  # over a slow path
        assert numbers(await meeting.got(0, 0.4)) == []

    meet(scenario, Storage(*(message(number) for number in range(-14, -9))), ALL, queue_max=3)


def test_what_storage_had_is_no_gap_whatever_the_overlay_lost() -> None:
    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(2)) == [-10, -9]
        meeting.live(message(-8), gap=True)  # the overlay gave up -9, which came from storage
        got = await meeting.got(1)
        assert (numbers(got), gaps(got)) == ([-8], [])

    meet(scenario, Storage(message(-10), message(-9)), ALL)


# More chains than are remembered


def test_a_chain_that_was_forgotten_does_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "CHAINS_MAX", 3)

    async def scenario(meeting: Meeting) -> None:
        assert len(await meeting.got(7)) == 2 + 5
        meeting.live(message(1, -99))  # the next of the chain that came first
        got = await meeting.got(1)
        assert (numbers(got), gaps(got)) == ([1], [])

    old = [message(-100), message(-99)]
    others = [message(-50 + number, chain=f"c{number}") for number in range(5)]
    meet(scenario, Storage(*old, *others), ALL)


# The end


def test_a_read_that_begins_after_the_node_was_closed_does_not_hang() -> None:
    async def main() -> None:
        meeting = Meeting(Storage(message(-10)), ALL)
        reading = meeting.history.messages([ReadHistory(STREAM, 0, ALL)], None)
        meeting.history.close()
        with pytest.raises(UsageError, match="this node is closed"):
            async with asyncio.timeout(1):
                await anext(reading)

    asyncio.run(main())
