"""Reading the log of a storage node: holes, boasts, replicas that are behind, and what is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.base.ids import short_node_id
from shoal.base.units import S_NS
from shoal.protocols.streams.commands import (
    EXPIRED,
    FAILED,
    INCOMPLETE,
    NO_SUCH_LOG,
    HistoryEnded,
    LogRange,
)
from shoal.protocols.streams.history.messages import LogRow, Refused, Rows
from tests.support.history import LOG, ONE, Keeper, Library, Refusing, Twisted, history, replaced
from tests.support.streams import OTHER_STREAM

MESSAGES = history(35)
OTHERS = history(1, stream=OTHER_STREAM)[0]


@pytest.mark.parametrize(
    ("twist", "blamed"),
    [
        (lambda a: replaced(a, rows=a.rows[1:]), True),
        (lambda a: replaced(a, rows=(*a.rows[:-1], LogRow(99, 0, MESSAGES[0]))), True),
        (lambda a: replaced(a, last=a.rows[-1].seq - 1), True),
        (lambda a: replaced(a, rows=(*a.rows[:-1], replaced(a.rows[-1], signed=OTHERS))), True),
        (lambda a: Rows(a.request, (), None), True),
        (lambda a: replaced(a, rows=(), last=10), True),
        (lambda a: Refused(a.request, "busy"), False),
    ],
)
def test_a_log_with_a_hole_is_read_elsewhere(twist: Callable[[Any], Any], blamed: bool) -> None:
    library = Library(Twisted(MESSAGES, 1, twist), Keeper(MESSAGES))
    assert library.read_all(LogRange(LOG, 0)) == MESSAGES
    assert library.ended == [HistoryEnded("read")]
    assert bool(library.rejected) == blamed


class Hurt(Keeper):
    """A storage node whose third row is damaged."""

    def answer(self, question: Any) -> Any:
        truth = super().answer(question)
        rows = tuple(row for row in truth.rows if row.seq != 3)
        return replaced(truth, rows=rows, damaged=(3,)) if len(rows) < len(truth.rows) else truth


def test_a_damaged_row_is_read_elsewhere_or_left_out_in_the_end() -> None:
    library = Library(Hurt(MESSAGES), Keeper(MESSAGES))
    assert library.read_all(LogRange(LOG, 0)) == MESSAGES
    assert (library.ended, library.rejected) == ([HistoryEnded("read")], [])
    alone = Library(Hurt(MESSAGES))
    alone.read(LogRange(LOG, 0))
    for _ in range(20):
        alone.more()
        alone.advance(S_NS)
    assert alone.rows == [*MESSAGES[:2], *MESSAGES[3:]]
    assert [(ended.reason, ended.problem) for ended in alone.ended] == [
        (INCOMPLETE, f"{short_node_id(ONE)}: damaged")
    ]
    assert alone.rejected == []


class Boaster(Keeper):
    """Says in its first answers that its log is longer than it is."""

    def __init__(self, boasts: int) -> None:
        super().__init__(MESSAGES)
        self.boasts = boasts

    def answer(self, question: Any) -> Any:
        truth = super().answer(question)
        return replaced(truth, last=10**9) if len(self.asked) <= self.boasts else truth


@pytest.mark.parametrize(("boasts", "blame"), [(1, "went-back"), (100, "withheld")])
def test_who_boasts_of_a_longer_log_is_counted_and_the_read_ends_where_the_log_does(
    boasts: int, blame: str
) -> None:
    library = Library(Boaster(boasts), Keeper(MESSAGES))
    assert library.read_all(LogRange(LOG, 0)) == MESSAGES
    assert library.ended == [HistoryEnded("read")]
    assert library.rejected == [(ONE, f"history-{blame}")]


def test_a_replica_that_is_behind_is_no_liar_and_not_the_end() -> None:
    whole, behind = Keeper(MESSAGES), Keeper(MESSAGES[:20])
    library = Library(whole, behind)
    library.read(LogRange(LOG, 0))
    library.keepers[ONE] = None
    library.host.link_closed(ONE, "lost")
    library.more()
    library.advance(S_NS // 2)
    assert library.ended == []
    behind.log = list(MESSAGES)
    for _ in range(4):
        library.more()
        library.advance(S_NS)
    assert library.rows == MESSAGES
    assert library.ended == [HistoryEnded("read")]
    assert library.rejected == []


@pytest.mark.parametrize(
    ("one", "two", "reason"),
    [
        (NO_SUCH_LOG, NO_SUCH_LOG, NO_SUCH_LOG),
        (NO_SUCH_LOG, EXPIRED, EXPIRED),
        (EXPIRED, NO_SUCH_LOG, EXPIRED),
        (NO_SUCH_LOG, "failed", FAILED),
    ],
)
def test_why_a_log_cannot_be_had_is_told(one: str, two: str, reason: str) -> None:
    library = Library(Refusing(one), Refusing(two))
    library.read_all(LogRange(LOG, 0))
    assert [event.reason for event in library.ended] == [reason]
