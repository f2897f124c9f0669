"""Reading history from storage nodes that fail, lie, or just take their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.identity.stream_message import Position, decode_body
from shoal.protocols.streams.history.commands import (
    COMPLETE,
    EXPIRED,
    FAILED,
    NO_STORAGE,
    NO_SUCH_LOG,
    NO_TRACKER,
    HistoryEnded,
    LastMessages,
    LogRange,
    MessageRange,
    ReadHistory,
    ReadMore,
    StopReading,
    What,
)
from shoal.protocols.streams.history.config import ClientConfig
from shoal.protocols.streams.history.messages import (
    Cursor,
    Kept,
    LogRow,
    ReadLast,
    ReadRange,
    Refused,
    Rows,
)
from shoal.protocols.streams.history.reader import cursor_of
from shoal.protocols.streams.messages import StorageNodes
from tests.support.history import (
    LOG,
    ONE,
    TWO,
    Keeper,
    Library,
    Refusing,
    Silent,
    Twisted,
    history,
    replaced,
)
from tests.support.streams import (
    BOB,
    CAROL,
    MALLORY,
    NOW_MS,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    body_of,
    message_id,
    signed_by,
)

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


# Storage nodes that fail


def forged(signed: bytes) -> bytes:
    """The same body under another signature."""
    return bytes(65) + signed[65:]


OTHERS = history(1, stream=OTHER_STREAM)[0]
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


# Logs


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
