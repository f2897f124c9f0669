"""Reading history: what is read, page by page, and from whom."""

from __future__ import annotations

import pytest

from shoal.identity.message_body import Position
from shoal.protocols.streams.commands import (
    COMPLETE,
    NO_STORAGE,
    NO_TRACKER,
    HistoryEnded,
    LastMessages,
    LogRange,
    MessageRange,
)
from tests.support.history import LOG, ONE, Keeper, Library, history
from tests.support.streams import BOB, CAROL, NOW_MS, TRACKER

ALL = MessageRange()
MESSAGES = history(35)


# What is read


def test_a_range_comes_page_by_page_and_whole() -> None:
    library = Library(Keeper(MESSAGES))
    assert library.read_all(ALL) == MESSAGES
    assert [len(page.rows) for page in library.pages] == [10, 10, 10, 5]
    assert library.ended == [HistoryEnded("read")]
    assert library.ended[0].complete
    assert library.rejected == []


def test_both_ends_of_a_range_are_included() -> None:
    library = Library(Keeper(MESSAGES))
    begin, end = (Position(NOW_MS - 10_000 + number, 0) for number in (5, 20))
    assert library.read_all(MessageRange(begin, end)) == MESSAGES[5:21]


@pytest.mark.parametrize("count", [1, 10, 11, 34, 35, 1000])
def test_the_last_ones_are_exactly_so_many_also_over_pages(count: int) -> None:
    library = Library(Keeper(MESSAGES))
    assert library.read_all(LastMessages(count)) == MESSAGES[-count:]
    assert library.ended == [HistoryEnded("read")]


def test_the_last_ones_stay_so_many_if_more_come_meanwhile() -> None:
    keeper = Keeper(MESSAGES[:30])
    library = Library(keeper)
    library.read(LastMessages(25))
    keeper.messages = MESSAGES
    library.more()
    library.more()
    assert library.rows == MESSAGES[5:30]
    assert library.ended


def test_a_publisher_may_be_asked_for_alone() -> None:
    other = history(20, publisher=BOB)
    library = Library(Keeper([*MESSAGES, *other]))
    assert library.read_all(ALL, publisher=BOB) == other
    again = Library(Keeper([*MESSAGES, *other]))
    assert again.read_all(LastMessages(5), publisher=CAROL) == MESSAGES[-5:]


def test_a_log_is_read_in_its_order_up_to_where_it_ended_at_first() -> None:
    shuffled = [*MESSAGES[20:], *MESSAGES[:20]]
    keeper = Keeper(shuffled)
    library = Library(keeper)
    library.read(LogRange(LOG, 3))
    keeper.log = [*shuffled, *history(3, chain="late")]
    for _ in range(5):
        library.more()
    assert library.rows == shuffled[3:]
    assert [row.seq for page in library.pages for row in page.rows] == list(range(4, 36))
    assert library.ended == [HistoryEnded("read")]


def test_nothing_is_an_answer() -> None:
    for what in (ALL, LastMessages(3), LogRange(LOG, 0)):
        library = Library(Keeper())
        assert library.read_all(what) == []
        assert library.ended == [HistoryEnded("read")]


# Finding storage nodes


def test_a_stream_that_nobody_keeps_is_told_at_once() -> None:
    library = Library()
    library.read(ALL)
    assert [event.reason for event in library.ended] == [NO_STORAGE]


def test_a_tracker_that_does_not_answer_is_told() -> None:
    library = Library(Keeper(MESSAGES))
    library.tracker_is_up = False
    library.read(ALL)
    assert [event.reason for event in library.ended] == [NO_TRACKER]
    library.tracker_is_up = True
    assert library.read_all(ALL, 1)
    assert library.ended[-1].complete


def test_who_keeps_a_stream_is_remembered_for_a_while() -> None:
    library = Library(Keeper(MESSAGES))
    library.read_all(ALL)
    library.tracker_is_up = False
    library.read_all(ALL)
    assert [event.reason for event in library.ended] == [COMPLETE, COMPLETE]
    library.host.notified.clear()
    library.advance(library.client.config.found_ns)
    library.read(ALL)
    assert [event.reason for event in library.ended] == [NO_TRACKER]


def test_links_are_given_back_when_nothing_is_asked() -> None:
    library = Library(Keeper(MESSAGES))
    library.read_all(ALL)
    assert library.host.links.is_claimed(ONE)
    library.advance(library.client.config.idle_ns)
    assert not library.host.links.is_claimed(ONE)
    assert not library.host.links.is_claimed(TRACKER)
    assert library.read_all(ALL) == MESSAGES * 2, "and claimed again"
