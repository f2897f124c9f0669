"""How much a reader of history holds, checks and asks for at once, and how it must not be used."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.protocols.streams.commands import (
    FAILED,
    HistoryEnded,
    LastMessages,
    MessageRange,
    ReadHistory,
    ReadMore,
    StopReading,
)
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.messages import Rows
from tests.support.history import ONE, Keeper, Library, Silent, Twisted, history, replaced
from tests.support.streams import OTHER_STREAM, STREAM

ALL = MessageRange()
MESSAGES = history(35)
OTHERS = history(1, stream=OTHER_STREAM)[0]


# Back-pressure


def test_one_page_is_told_and_one_is_held_until_there_is_room() -> None:
    keeper = Keeper(MESSAGES)
    library = Library(keeper)
    library.read(ALL)
    library.advance(60 * S_NS)
    assert len(library.pages) == 1
    assert len(keeper.asked) == 2
    library.more()
    assert len(library.pages) == 2
    assert len(keeper.asked) == 3


def test_whoever_stops_hears_nothing_more() -> None:
    keeper = Keeper(MESSAGES)
    library = Library(keeper)
    library.read(ALL)
    library.stop()
    library.more()
    library.advance(60 * S_NS)
    assert len(library.pages) == 1
    assert library.ended == []
    assert library.client._jobs == {}
    library.stop()  # again does no harm
    library.read(ALL)
    assert len(library.pages) == 2, "the name is free again"


def test_signatures_are_checked_a_few_at_a_time() -> None:
    library = Library(Keeper(MESSAGES, page_rows=30), config=ClientConfig(checks_at_once=8))
    most = 0
    settle = library.settle

    def watch() -> None:
        nonlocal most
        most = max(most, len(library.host.slow_work))

    library.host.watch = lambda event, effects: watch()
    assert library.read_all(ALL) == MESSAGES
    settle()
    assert 4 < most <= 8


def test_many_reads_share_the_room_for_checks_and_all_of_them_end() -> None:
    library = Library(Keeper(MESSAGES, page_rows=30), config=ClientConfig(checks_at_once=8))
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, len(library.host.slow_work))

    library.host.watch = lambda event, effects: watch()
    names = [f"read {number}" for number in range(20)]
    for name in names:
        library.host.command(library.client, ReadHistory(STREAM, 0, ALL), name)
    library.host.command(library.client, StopReading(), names.pop(3))
    library.settle()
    for _ in range(3):
        for name in names:
            library.more(name)
    assert most == 8, "not that many for each of them"
    assert sorted(str(event.token) for event in library.ended) == sorted(names)
    assert len(library.rows) == len(names) * len(MESSAGES)


def test_a_liar_does_not_use_up_the_room_for_checks() -> None:
    liar = Twisted(MESSAGES, 0, lambda a: replaced(a, rows=(OTHERS, *a.rows[1:])))
    bad = [bytes(65) + signed[65:] for signed in MESSAGES]
    library = Library(Keeper(bad, page_rows=30), liar, config=ClientConfig(checks_at_once=8))
    for number in range(5):
        library.read(ALL, f"{number}")
    assert [event.reason for event in library.ended] == [FAILED] * 5
    library.keepers[ONE] = Keeper(MESSAGES)
    assert library.read_all(ALL, token="again") == MESSAGES


# Bounds


def test_reads_are_bounded_and_their_names_their_own() -> None:
    library = Library(Silent(), config=ClientConfig(reads_max=2))
    library.read(ALL, "a")
    with pytest.raises(UsageError, match="token 'a' is under way"):
        library.read(ALL, "a")
    library.read(ALL, "b")
    with pytest.raises(UsageError, match="2 reads at once"):
        library.read(ALL, "c")
    library.stop("a")
    library.read(ALL, "c")


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (ReadHistory(STREAM, 101, ALL), "partition 101"),
        (ReadHistory(STREAM, 0, LastMessages(0)), "the last 0 messages"),
        (ReadHistory(STREAM, 0, LastMessages(100_001)), "the last 100001 messages"),
        ("nonsense", "no command of a history machine"),
    ],
)
def test_misuse_raises(command: Any, complaint: str) -> None:
    library = Library(Keeper())
    with pytest.raises(UsageError, match=complaint):
        library.command(command)
    library.command(ReadMore(), "nobody's")
    assert library.ended == []


def test_answers_that_come_one_after_the_other_are_waited_for() -> None:
    """Large pages over a slow link: the last one is sent long after its question."""
    silent = Silent()
    library = Library(silent)
    for number in range(4):
        library.read(ALL, str(number), partition=number)
    step_ns = library.client.config.answer_ns * 2 // 3
    for question in list(silent.asked):
        library.advance(step_ns)
        library.host.received(ONE, Rows(question.request, (), None))
        library.settle()
    assert library.ended == [HistoryEnded(str(number)) for number in range(4)]
    assert library.rejected == []


def test_who_answers_others_does_not_put_a_question_off_for_ever() -> None:
    silent = Silent()
    library = Library(silent)
    library.read(ALL, "held back")
    began_ns, asked = library.host.time_ns, 1
    while len([q for q in silent.asked if q.partition == 0]) == asked:
        library.advance(S_NS)
        library.read(ALL, "other", partition=1)
        library.host.received(ONE, Rows(silent.asked[-1].request, (), None))
        library.settle()
    answer_ns = library.client.config.answer_ns
    assert 5 * answer_ns <= library.host.time_ns - began_ns <= 5 * answer_ns + 2 * S_NS


def test_few_questions_are_under_way_to_one_peer_and_the_others_wait() -> None:
    silent = Silent()
    library = Library(silent, config=ClientConfig(questions_per_peer_max=3))
    for number in range(10):
        library.read(ALL, str(number), partition=number)
    assert len(silent.asked) == 3
    library.stop("9")
    for question in list(silent.asked):
        library.host.received(ONE, Rows(question.request, (), None))
    library.settle()
    assert len(silent.asked) == 6
    assert [question.partition for question in silent.asked] == list(range(6))
