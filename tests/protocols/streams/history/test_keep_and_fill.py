"""Messages that must be kept, and gaps that storage fills."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX, NodeId, short_node_id
from shoal.base.units import S_NS
from shoal.identity.message_body import Position, decode_body
from shoal.protocols.streams.commands import (
    FAILED,
    LATE,
    NO_STORAGE,
    FilledFromStorage,
    FillFromStorage,
    KeepDurably,
    KeepFailed,
    KeptDurably,
)
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.messages import Refused, Rows
from shoal.protocols.streams.history.read_plan import cursor_of
from tests.support.history import (
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
from tests.support.machines import Scripted
from tests.support.streams import CAROL, MALLORY, ME, NOW_MS, STREAM

MESSAGES = history(35)


# Keeping


def keep(library: Library, copies: int = 1, number: int = 0) -> None:
    library.command(KeepDurably(STREAM, MESSAGES[number], copies), f"keep {number}")


def told(library: Library) -> list[Any]:
    events = (KeptDurably, KeepFailed)
    return [event for event in library.host.notified if isinstance(event, events)]


@pytest.mark.parametrize("copies", [1, 2])
def test_a_message_is_kept_when_so_many_said_so(copies: int) -> None:
    one, two = Keeper(), Keeper()
    library = Library(one, two)
    keep(library, copies)
    assert told(library) == [KeptDurably("keep 0", copies)]
    assert one.kept == two.kept == [MESSAGES[0]], "all of them are told"
    assert library.rejected == [], "whoever is slower has done nothing wrong"
    assert library.client._jobs == {}


# A late message


def unaware(keeper: Keeper, *nodes: NodeId) -> Keeper:
    keeper.unaware = nodes
    return keeper


@pytest.mark.parametrize("two", [None, Silent(), Refusing("busy"), Refusing("not-served")])
def test_a_late_message_is_not_kept_while_one_may_claim_to_be_complete_without_it(
    two: Keeper | None,
) -> None:
    library = Library(unaware(Keeper(), TWO), two)
    keep(library)
    assert told(library) == []
    library.advance(60 * S_NS)
    (failed,) = told(library)
    assert (failed.reason, failed.refused) == (LATE, False)
    assert failed.problem.startswith(f"{short_node_id(TWO)}: ")
    assert failed.problem.count(":") == 1, "only that one is named"
    assert library.client._jobs == {}


@pytest.mark.parametrize(
    "two", [Keeper(), unaware(Keeper(), ONE), Refusing("not-kept"), unaware(Keeper(), CAROL)]
)
def test_it_is_kept_once_that_one_has_it_or_keeps_nothing(two: Keeper) -> None:
    library = Library(unaware(Keeper(), TWO), two)
    keep(library)
    assert [type(event) for event in told(library)] == [KeptDurably]
    assert library.client._jobs == {}


def test_one_that_does_not_speak_for_all_who_have_it_claims_nothing() -> None:
    library = Library(unaware(Keeper(), TWO, CAROL), unaware(Keeper(), ONE))
    keep(library)
    assert told(library) == [KeptDurably("keep 0", 2)]


def test_one_that_this_node_has_never_heard_of_is_named() -> None:
    library = Library(unaware(Keeper(), CAROL), unaware(Keeper(), CAROL))
    keep(library)
    (failed,) = told(library)
    assert failed.reason == LATE
    assert failed.problem == f"{short_node_id(CAROL)}: not-named"
    assert library.client._jobs == {}


def test_a_late_message_is_kept_when_the_other_one_is_back() -> None:
    library = Library(unaware(Keeper(), TWO), Refusing("busy"))
    keep(library)
    assert told(library) == []
    library.keepers[TWO] = Keeper()
    library.advance(5 * S_NS)
    assert told(library) == [KeptDurably("keep 0", 2)]


def test_one_that_is_away_does_not_hold_it_up() -> None:
    library = Library(None, Keeper())
    keep(library)
    assert told(library) == [KeptDurably("keep 0", 1)]


def test_a_second_copy_is_waited_for_and_said_to_be_missing() -> None:
    library = Library(Keeper(), Refusing("busy"))
    keep(library, 2)
    assert told(library) == []
    library.advance(60 * S_NS)
    (failed,) = told(library)
    assert (failed.token, failed.reason) == ("keep 0", FAILED)
    assert failed.problem == "1 of 2 copies (0x00000000: busy)"
    two = library.keepers[TWO]
    assert two is not None
    assert len(two.asked) == library.client.config.rounds


def test_it_is_said_again_to_one_that_was_busy() -> None:
    busy = Twisted([], 1, lambda answer: answer)
    busy.honest = 0
    busy.twist = lambda answer: answer if len(busy.asked) > 1 else Refused(answer.request, "busy")
    library = Library(busy)
    keep(library)
    assert told(library) == []
    library.advance(library.client.config.retry_ns)
    assert told(library) == [KeptDurably("keep 0", 1)]


def test_without_storage_or_with_too_little_of_it_nothing_is_kept() -> None:
    library = Library()
    keep(library)
    assert [event.reason for event in told(library)] == [NO_STORAGE]
    small = Library(Keeper())
    keep(small, 2)
    assert told(small)[0].problem == "2 copies, but 1 storage nodes"


def test_what_waits_to_be_kept_is_bounded() -> None:
    library = Library(Silent(), config=ClientConfig(keeps_max=2))
    keep(library, number=0)
    keep(library, number=1)
    with pytest.raises(UsageError, match="2 messages wait to be kept"):
        keep(library, number=2)
    library.advance(60 * S_NS)
    assert len(told(library)) == 2
    with pytest.raises(UsageError, match="0 copies"):
        library.command(KeepDurably(STREAM, MESSAGES[0], 0))
    keep(library, number=2)


# Filling


def gap(after: int, upto: int) -> FillFromStorage:
    ends = [Position(NOW_MS - 10_000 + number, 0) for number in (after, upto)]
    return FillFromStorage(STREAM, CAROL, 0, "c", *ends)


class Asker(Library):
    """A reader beside a stream machine that only listens."""

    def __init__(self, *keepers: Keeper | None, config: ClientConfig | None = None) -> None:
        self.streams = Scripted(accepts=(FilledFromStorage,))
        self.asked: list[tuple[Position, Position]] = []
        super().__init__(*keepers, config=config, beside=[self.streams])

    def ask(self, question: FillFromStorage, peer: Any = ME) -> None:
        self.asked.append((question.after, question.upto))
        self.host.received(peer, question)
        self.settle()

    @property
    def filled(self) -> list[FilledFromStorage]:
        events: list[Any] = self.streams.inputs
        heard = [getattr(event, "message", None) for event in events]
        filled = [message for message in heard if isinstance(message, FilledFromStorage)]
        assert all((message.after, message.upto) in self.asked for message in filled)
        assert all(message.last == _last(message.found) for message in filled)
        return [replaced(message, after=None, upto=None, last=None) for message in filled]


def _last(found: tuple[bytes, ...]) -> Position | None:
    if not found:
        return None
    id = decode_body(found[-1]).id
    return Position(id.timestamp_ms, id.sequence)


def found(*messages: bytes, asked: bool = True) -> FilledFromStorage:
    return FilledFromStorage(STREAM, CAROL, 0, "c", messages, asked)


def test_a_gap_is_filled_and_its_ends_are_not_part_of_it_and_part_of_it() -> None:
    asker = Asker(Keeper(MESSAGES))
    asker.ask(gap(5, 8))
    assert asker.filled == [found(*MESSAGES[6:9])]
    assert asker.client._jobs == {}
    assert asker.rows == [], "the application hears nothing of it"


def test_only_the_chain_that_lacks_something_is_asked_for() -> None:
    other = history(35, chain="other")
    asker = Asker(Keeper([*MESSAGES, *other]))
    asker.ask(gap(5, 8))
    assert asker.filled == [found(*MESSAGES[6:9])]


def test_more_than_a_page_is_answered_with_a_page() -> None:
    asker = Asker(Keeper(MESSAGES), config=ClientConfig(page_rows=4))
    asker.ask(gap(0, 30))
    assert asker.filled == [found(*MESSAGES[1:5])]
    asker.advance(60 * S_NS)
    assert len(asker.filled) == 1
    assert not asker.host.timers


@pytest.mark.parametrize(
    "one",
    [
        Keeper(),
        Silent(),
        Refusing("failed"),
        Refusing("not-kept"),
        Twisted(MESSAGES, 0, lambda rows: Rows(rows.request, (MESSAGES[20],), None)),
        None,
    ],
)
def test_one_that_has_nothing_or_fails_or_lies_lets_the_next_be_asked(one: Keeper | None) -> None:
    asker = Asker(one, Keeper(MESSAGES))
    asker.ask(gap(5, 8))
    asker.advance(asker.client.config.answer_ns)
    assert asker.filled == [found(*MESSAGES[6:9])]


def test_nothing_anywhere_is_an_answer() -> None:
    asker = Asker(Keeper(), Keeper(MESSAGES[:6]))
    asker.ask(gap(5, 8))
    assert asker.filled == [found()]


def test_if_nobody_answers_that_is_said_in_time() -> None:
    for keepers in ((Silent(), Silent()), (None, None)):
        asker = Asker(*keepers)
        asker.ask(gap(5, 8))
        asker.advance(15 * S_NS)
        assert asker.filled == [found(asked=False)]


def test_a_stream_that_nobody_keeps_has_nothing() -> None:
    asker = Asker()
    asker.ask(gap(5, 8))
    assert asker.filled == [found()]


def test_the_same_gap_is_asked_for_once_at_a_time() -> None:
    silent = Silent()
    asker = Asker(silent)
    asker.ask(gap(5, 8))
    asker.ask(gap(5, 8))
    assert len(silent.asked) == 1
    asker.advance(60 * S_NS)
    assert len(asker.filled) == 1


def test_gaps_are_bounded() -> None:
    asker = Asker(Silent(), config=ClientConfig(fills_max=2))
    for number in range(3):
        asker.ask(gap(number, 20))
    assert asker.filled == [found(asked=False)]


def test_nobody_else_may_have_us_ask() -> None:
    keeper = Keeper(MESSAGES)
    asker = Asker(keeper)
    asker.host.link_opened(MALLORY)
    asker.ask(gap(5, 8), MALLORY)
    assert asker.rejected == [(MALLORY, "not-mine")]
    assert keeper.asked == []
    assert ONE not in asker.host.links


class Scanning(Keeper):
    """Has a lot, and none of it is what is asked for: an empty page, and then no more."""

    def answer(self, question: Any) -> Any:
        if question.after is not None:
            return super().answer(question)
        self.asked.append(question)
        return Rows(question.request, (), cursor_of(decode_body(MESSAGES[-1]).id))


def test_the_second_node_is_asked_from_the_beginning_of_a_gap() -> None:
    asker = Asker(Scanning(), Keeper(MESSAGES))
    asker.ask(gap(5, 8))
    assert asker.filled == [found(*MESSAGES[6:9])]


def test_a_gap_after_the_highest_sequence_of_a_millisecond_can_be_asked_for() -> None:
    """Whoever publishes chooses its numbers: they must not make us send what nobody can read."""
    asker = Asker(Keeper(MESSAGES))
    after = Position(NOW_MS - 10_000 + 5, INT63_MAX)
    asker.ask(replaced(gap(5, 8), after=after))
    assert asker.filled == [found(*MESSAGES[6:9])]


def test_what_one_has_kept_does_not_pile_up_for_one_that_is_slow() -> None:
    library = Library(Silent(), Keeper())
    for number in range(500):
        library.command(KeepDurably(STREAM, MESSAGES[0]), number)
    assert len(told(library)) == 500
    questions_max = library.client.config.questions_per_peer_max
    assert library.client._desk.question_count() <= questions_max
    library.advance(60 * S_NS)
    assert library.client._desk.question_count() == 0
    assert not library.host.timers
