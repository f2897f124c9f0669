"""Where history and live meet, step by step: storage that is away, and too much at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from shoal.base.errors import HistoryUnavailable, InvariantViolated, UsageError
from shoal.node.streams import reader_offsets, subscription
from shoal.node.streams.subscription import QUEUE_BYTES_MIN
from shoal.protocols.streams.commands import HistoryRow, MessageRange, ReadHistory
from shoal.protocols.streams.signed_message import VerifiedMessage
from tests.node.meeting import BOB, Meeting, Storage, gaps, meet, message, numbers, quicken
from tests.support.streams import STREAM

ALL = MessageRange()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


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
    monkeypatch.setattr(subscription, "FILL_S", 0.2)

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


class Two(Storage):
    """Two storage nodes: who asks the first one, and insists, is sent on if it has nothing."""

    def __init__(self, *log: VerifiedMessage, second: Storage) -> None:
        super().__init__(*log)
        self.second = second

    def _rows(self, command: ReadHistory) -> Iterator[HistoryRow]:
        rows = list(super()._rows(command))
        yield from rows if rows or not command.insist else self.second._rows(command)


@pytest.mark.parametrize("held", [1, 2, 3])
def test_what_one_storage_node_lacks_another_one_gives(held: int) -> None:
    """Also if the first one has the message before it, which was told, or some of it."""
    chain = [message(-30_000), message(1, -30_000), message(2), message(3), message(4)]

    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(1)) == [-30_000]
        meeting.storage.log = chain[:held]
        meeting.live(chain[-1])
        got = await meeting.got(4)
        assert numbers(got) == [1, 2, 3, 4]
        assert gaps(got) == []

    meet(scenario, Two(chain[0], second=Storage(*chain[:4])), ALL)


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
    monkeypatch.setattr(subscription, "OVER_S", 1.5)

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
    monkeypatch.setattr(reader_offsets, "CHAINS_MAX", 3)

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
