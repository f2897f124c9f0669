"""Reading history from storage nodes that fail, lie, or just take their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import S_NS
from shoal.identity.message_body import Position, decode_body
from shoal.protocols.streams.commands import FAILED, HistoryEnded, LastMessages, MessageRange, What
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.messages import (
    Cursor,
    Kept,
    ReadLast,
    ReadRange,
    Refused,
    Rows,
)
from shoal.protocols.streams.history.read_plan import cursor_of
from shoal.protocols.streams.messages import StorageNodes
from tests.support.history import ONE, TWO, Keeper, Library, Silent, Twisted, history, replaced
from tests.support.streams import (
    CAROL,
    MALLORY,
    OTHER_STREAM,
    STREAM,
    body_of,
    message_id,
    signed_by,
)

ALL = MessageRange()
MESSAGES = history(35)
OTHERS = history(1, stream=OTHER_STREAM)[0]


# Storage nodes that fail


def forged(signed: bytes) -> bytes:
    """The same body under another signature."""
    return bytes(65) + signed[65:]


ELSEWHERE = history(1, partition=1)[0]
LIES: dict[str, Callable[[Rows], Any]] = {
    "another stream": lambda rows: replaced(rows, rows=(*rows.rows[:-1], OTHERS)),
    "another partition": lambda rows: replaced(rows, rows=(*rows.rows[:-1], ELSEWHERE)),
    "forged": lambda rows: replaced(rows, rows=(*rows.rows[:-1], forged(rows.rows[-1]))),
    "forged first": lambda rows: replaced(rows, rows=(forged(rows.rows[0]), *rows.rows[1:])),
    "out of order": lambda rows: replaced(rows, rows=rows.rows[::-1]),
    "twice": lambda rows: replaced(rows, rows=(rows.rows[0], *rows.rows)),
    "no message": lambda rows: replaced(rows, rows=(b"x" * 80,)),
    "from the beginning": lambda rows: replaced(rows, rows=tuple(MESSAGES[:5])),
    "back": lambda rows: replaced(rows, next=cursor_of(decode_body(MESSAGES[0]).id)),
    "too many": lambda rows: replaced(rows, rows=(*rows.rows, *MESSAGES)),
    "another kind": lambda rows: Kept(rows.request),
    "busy": lambda rows: Refused(rows.request, "busy"),
    "failed": lambda rows: Refused(rows.request, "failed"),
    "not kept": lambda rows: Refused(rows.request, "not-kept"),
    "nothing": lambda rows: None,
}
AGAIN = "from the beginning"  # of a first page nobody can tell
TEMPORARY = ("busy", "failed", "nothing")


@pytest.mark.parametrize(
    ("lie", "honest"),
    [(lie, honest) for lie in LIES for honest in (0, 1, 2) if (lie, honest) != (AGAIN, 0)],
)
@pytest.mark.parametrize("what", [MessageRange(Position(1, 0), None), LastMessages(30)])
def test_the_next_storage_node_goes_on_where_the_last_good_page_ended(
    what: Any, lie: str, honest: int
) -> None:
    bad = Twisted(MESSAGES, honest, LIES[lie])
    good = Keeper(MESSAGES)
    library = Library(bad, good)
    expected = MESSAGES[5:] if isinstance(what, LastMessages) else MESSAGES
    assert library.read_all(what) == expected
    assert library.ended == [HistoryEnded("read")]
    first: Any = good.asked[0]
    if honest:
        assert isinstance(first, ReadRange)
        after = decode_body(expected[honest * 10 - 1]).id
        assert first.after == cursor_of(after)
    elif isinstance(what, LastMessages):
        assert isinstance(first, ReadLast)
    assert len(bad.asked) == honest + 1, "it is not asked again while another answers"
    blamed = {peer for peer, _ in library.rejected}
    assert blamed == (set() if lie in (*TEMPORARY, "not kept") else {ONE})


@pytest.mark.parametrize("lie", LIES)
def test_if_all_of_them_are_bad_the_read_ends_and_says_what_each_said(lie: str) -> None:
    library = Library(Twisted(MESSAGES, 1, LIES[lie]), Twisted(MESSAGES, 0, LIES[lie]))
    assert library.read_all(ALL, 120) == MESSAGES[:10]
    (ended,) = library.ended
    assert ended.reason == FAILED
    assert ended.problem.count(":") == 2
    assert library.client._desk.question_count() == 0
    asked = [len(keeper.asked) for keeper in library.keepers.values() if keeper is not None]
    assert max(asked) <= library.client.config.rounds + 1
    library.advance(60 * S_NS)
    assert not library.host.timers, "nothing goes on"


def test_storage_nodes_that_are_away_are_tried_so_often() -> None:
    library = Library(None, None)
    library.read_all(ALL, 120)
    assert [event.reason for event in library.ended] == [FAILED]
    assert library.ended[0].problem == "0x00000000: refused, 0x00000000: refused"


def test_one_that_is_back_in_time_saves_the_read() -> None:
    library = Library(None, None)
    library.read(ALL)
    library.keepers[TWO] = Keeper(MESSAGES)
    library.advance(library.client.config.retry_ns)
    assert library.rows == MESSAGES[:10]


def test_a_link_that_breaks_under_a_question_costs_no_row() -> None:
    silent, good = Silent(), Keeper(MESSAGES)
    library = Library(silent, good)
    library.read(ALL)
    assert silent.asked
    library.host.link_closed(ONE, "reset")
    library.settle()
    assert library.rows == MESSAGES[:10]
    library.more()
    library.more()
    library.more()
    assert library.rows == MESSAGES


def test_late_answers_and_answers_of_others_are_counted_and_change_nothing() -> None:
    silent, good = Silent(), Keeper(MESSAGES)
    library = Library(silent, good)
    library.read(ALL)
    (question,) = silent.asked
    late = Keeper(MESSAGES).answer(question)
    library.host.link_opened(MALLORY)
    library.host.received(MALLORY, late)
    library.host.received(MALLORY, StorageNodes(STREAM, ()))
    assert library.pages == []
    library.advance(library.client.config.answer_ns)
    assert library.rows == MESSAGES[:10], "the other one has answered"
    library.host.received(ONE, late)
    library.settle()
    assert library.rows == MESSAGES[:10]
    unasked = "unasked-history"
    assert library.rejected == [(MALLORY, unasked), (MALLORY, unasked), (ONE, unasked)]


def test_an_answer_after_a_stop_is_nobody_s_fault() -> None:
    silent = Silent()
    library = Library(silent)
    library.read(ALL)
    library.stop()
    library.host.received(ONE, Keeper(MESSAGES).answer(silent.asked[0]))
    library.settle()
    assert library.pages == []
    assert library.rejected == []


def test_pages_without_rows_are_read_past_but_not_without_end() -> None:
    def nothing_yet(answer: Rows) -> Rows:
        return Rows(answer.request, (), Cursor(len(keeper.asked), 0, CAROL, "c"))

    config = ClientConfig(empty_pages_max=20)
    keeper = Twisted(MESSAGES, 0, nothing_yet)
    library = Library(keeper, Keeper(MESSAGES), config=config)
    assert library.read_all(ALL) == MESSAGES
    assert len(keeper.asked) == 21
    assert library.rejected == [(ONE, "history-no-progress")]


def test_standing_still_is_no_progress() -> None:
    def here_again(answer: Rows) -> Rows:
        return Rows(answer.request, (), cursor_of(decode_body(MESSAGES[9]).id))

    library = Library(Twisted(MESSAGES, 1, here_again), Keeper(MESSAGES))
    assert library.read_all(ALL) == MESSAGES
    assert library.rejected == [(ONE, "history-no-progress")]


# Whatever a storage node does


@given(st.data())
def test_whatever_one_storage_node_says_the_reader_gets_all_of_it_once(data: st.DataObject) -> None:
    """One of two lies whenever it likes, and may speak the truth in between."""
    chains = [history(12, chain=name, publisher=CAROL) for name in ("a", "b")]
    messages = [message for pair in zip(*chains, strict=True) for message in pair]

    def twist(truth: Any) -> Any:
        if not isinstance(truth, Rows):
            return truth
        kind = data.draw(st.sampled_from(["truth", "lie", "shuffle", "cut"]))
        rows = truth.rows
        if kind == "lie":
            return (
                LIES[data.draw(st.sampled_from(sorted(LIES.keys() - {AGAIN})))](truth)
                if rows
                else truth
            )
        if kind == "shuffle":
            return replaced(truth, rows=tuple(data.draw(st.permutations(rows))))
        if kind == "cut" and len(rows) > 1:  # less than it could, and says so
            cut = rows[: data.draw(st.integers(1, len(rows) - 1))]
            return replaced(truth, rows=cut, next=cursor_of(decode_body(cut[-1]).id))
        return truth

    liar = Twisted(messages, 0, twist, page_rows=5)
    keepers = [liar, Keeper(messages, page_rows=7)]
    first = data.draw(st.booleans())
    library = Library(*(keepers if first else keepers[::-1]))
    ordered = Keeper(messages).messages
    kinds: list[What] = [ALL, LastMessages(17)]
    what = data.draw(st.sampled_from(kinds))
    expected = ordered[-17:] if isinstance(what, LastMessages) else ordered
    assert library.read_all(what, 120) == expected
    assert library.ended == [HistoryEnded("read")]


def test_the_same_id_with_another_body_does_not_come_twice() -> None:
    """Two storage nodes may hold either body of a publisher that contradicts itself."""
    id = decode_body(MESSAGES[9]).id
    other = signed_by(CAROL, body_of(id, b"other", decode_body(MESSAGES[9]).previous))
    two = Keeper([*MESSAGES[:9], other, *MESSAGES[10:]])
    library = Library(Twisted(MESSAGES, 1, lambda answer: None), two)
    assert library.read_all(ALL) == MESSAGES
    assert message_id(timestamp_ms=id.timestamp_ms) == id
