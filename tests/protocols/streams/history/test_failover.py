"""From one storage node to the next: one that lags behind, or has let go of what another has."""

from __future__ import annotations

import pytest

from shoal.protocols.streams.commands import BEYOND, EXPIRED, FAILED, HistoryEnded, LogRange
from tests.support.history import LOG, Keeper, Library, Refusing, Silent, history

MESSAGES = history(35)


def test_a_replica_that_has_not_come_to_an_offset_does_not_end_the_read() -> None:
    behind = Keeper(MESSAGES[:10])
    library = Library(behind, Keeper(MESSAGES))
    assert library.read_all(LogRange(LOG, 20)) == MESSAGES[20:]
    assert library.ended == [HistoryEnded("read")]
    assert library.rejected == [], "it has done nothing wrong"
    assert len(behind.asked) == 1


def test_an_offset_that_nobody_has_come_to_is_no_end() -> None:
    library = Library(Keeper(MESSAGES[:10]))
    assert library.read_all(LogRange(LOG, 20)) == []
    (ended,) = library.ended
    assert (ended.reason, ended.problem) == (BEYOND, "the log of this offset ends at 10")


def test_an_offset_that_one_which_is_away_may_have_come_to_is_not_beyond_the_log() -> None:
    library = Library(Keeper(MESSAGES[:10]), Silent())
    assert library.read_all(LogRange(LOG, 20)) == []
    (ended,) = library.ended
    assert ended.reason == FAILED


@pytest.mark.parametrize("other", [None, Silent(), Refusing("busy")])
def test_one_that_let_go_of_it_does_not_speak_for_one_that_is_away(other: Keeper | None) -> None:
    library = Library(Refusing(EXPIRED), other)
    assert library.read_all(LogRange(LOG, 3)) == []
    (ended,) = library.ended
    assert ended.reason == FAILED, "the other one may have it, later"
