"""Where history and live meet, from an offset on: of a log, or of a message that was read."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.base.errors import HistoryUnavailable
from shoal.identity.message_body import Position
from shoal.node.streams.history import progress_of, reads_of
from shoal.node.streams.message import Message
from shoal.node.streams.reader_offsets import parse_places
from shoal.protocols.streams.commands import LogRange, MessageRange
from shoal.protocols.streams.signed_message import VerifiedMessage
from tests.node.meeting import BOB, Meeting, Storage, gaps, meet, message, numbers, quicken
from tests.support.streams import STREAM

LOG = bytes(range(16))
NOW_MS = 0  # of each test's beginning
ALL = MessageRange()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NOW_MS", quicken(monkeypatch))


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


def test_a_late_copy_from_before_the_offset_does_not_come_when_all_is_live_already() -> None:
    async def scenario(meeting: Meeting) -> None:
        assert numbers(await meeting.got(0, quiet_s=0.02)) == []
        meeting.live(message(-20, -60_000))  # the one before it is long gone
        assert numbers(await meeting.got(0)) == []

    meet(scenario, Storage(message(-20, -60_000)), LogRange(LOG, 1))


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
