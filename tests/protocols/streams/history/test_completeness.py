"""When an answer is the answer of all storage nodes: what they say of each other, and readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.identity.message_body import Position
from shoal.protocols.streams.commands import (
    COMPLETE,
    FAILED,
    INCOMPLETE,
    CompareStream,
    HistoryEnded,
    LastMessages,
    LogRange,
    MessageRange,
    Unheard,
)
from shoal.protocols.streams.config import LATE_MS, StorageConfig, SyncConfig
from shoal.protocols.streams.history.anti_entropy import FollowStream
from shoal.protocols.streams.history.messages import (
    BEHIND,
    EVERYTHING,
    AskHeads,
    Heard,
    ReadLast,
    ReadLog,
    Refused,
    TellHeads,
    TellRows,
)
from shoal.storage.errors import StoreError
from tests.support.history import LOG, ONE, TWO, Keeper, Library, Refusing, Silent, history
from tests.support.storage_host import StorageHost, everything
from tests.support.streams import ALICE, BOB, CAROL, EVE, NOW_MS, OTHER_STREAM, STREAM
from tests.support.sync_pair import Pair, keep

WHOLE = replace(everything(), whole=True)
MESSAGES = history(35)


def ask(host: StorageHost, question: Any) -> Any:
    """A reader asks, and is answered, at once or when it was waited long enough."""
    if not host.links.is_up(EVE):
        host.link_opened(EVE)
    host.received(EVE, question)
    host.finish_all()
    while host.exchange():
        pass
    said = host.said(EVE)
    if not said:
        host.advance(StorageConfig().compare_ns)
        host.finish_all()
        said = host.said(EVE)
    (answer,) = said
    return answer


def until_ms(answer: Any) -> int:
    (heard,) = answer.heard
    assert heard.node == ALICE
    return int(heard.until_ms)


# What storage nodes say


def test_what_was_compared_for_the_question_is_the_answer_of_all(pair: Pair) -> None:
    pair.connect(ALICE, BOB)
    pair.run(3)
    keep(pair.hosts[ALICE], 1, 2, 3)
    bob = pair.hosts[BOB]
    answer = ask(bob, WHOLE)
    assert len(answer.rows) == 3, "it has asked her first"
    assert until_ms(answer) == EVERYTHING
    assert until_ms(ask(bob, replace(WHOLE, end=Position(NOW_MS, 0)))) == EVERYTHING
    last = ask(bob, ReadLast(1, STREAM, 0, 2, None, 9, whole=True))
    assert (len(last.rows), until_ms(last)) == (2, EVERYTHING)


def test_a_later_page_of_the_same_read_is_not_compared_anew(pair: Pair) -> None:
    pair.connect(ALICE, BOB)
    pair.run(3)
    bob = pair.hosts[BOB]
    first = ask(bob, WHOLE)
    asked = len(pair.asked)
    bob.advance(S_NS // 10)
    assert until_ms(ask(bob, replace(WHOLE, since_ns=first.asked_ns))) == EVERYTHING
    assert len(pair.asked) == asked


def test_up_to_the_last_comparison_it_speaks_for_one_that_is_gone(pair: Pair) -> None:
    pair.connect(ALICE, BOB)
    keep(pair.hosts[ALICE], 1, 2, 3)
    pair.run(3)
    bob = pair.hosts[BOB]
    before_ms = bob.time_ns // MS_NS
    pair.disconnect(ALICE, BOB)
    keep(pair.hosts[ALICE], 4)
    bob.advance(100 * S_NS)
    answer = ask(bob, WHOLE)
    assert len(answer.rows) == 3
    assert before_ms - 3_000 <= until_ms(answer) <= before_ms


def test_it_knows_that_after_a_restart_too(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.connect(ALICE, BOB)
    keep(pair.hosts[ALICE], 1, 2, 3)
    pair.run(3)
    before = ask(pair.hosts[BOB], WHOLE)
    pair.disconnect(ALICE, BOB)
    pair.hosts[BOB].finish_all()
    for host in pair.hosts.values():
        host.close()
    bob = StorageHost(BOB, tmp_path / BOB.hex(), peers=(ALICE, BOB))
    bob.advance(4 * S_NS)  # the time of day goes on
    bob.command(bob.sync, FollowStream(STREAM))
    bob.finish_all()
    bob.dial_failed(ALICE, "refused")
    answer = ask(bob, WHOLE)
    assert answer.rows == before.rows
    assert bob.time_ns // MS_NS - 10_000 < until_ms(answer) < EVERYTHING
    bob.close()


# What the other one knows of that


def may_claim(host: StorageHost, until_ms: int) -> bool:
    """Whether this node knows that Bob may speak for it up to then."""
    return host.sync.unaware(STREAM, until_ms - LATE_MS) == (BOB,)


HOUR_NS = 3600 * S_NS


@pytest.mark.parametrize("alice_ns", [-HOUR_NS, -30 * S_NS, 0, HOUR_NS, 720 * HOUR_NS])
@pytest.mark.parametrize("bob_ns", [-HOUR_NS, -30 * S_NS, 0, HOUR_NS, 720 * HOUR_NS])
def test_it_knows_of_every_claim_whatever_the_clocks_say(
    alice_ns: int, bob_ns: int, pair: Pair
) -> None:
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    for host, wrong_ns in ((alice, alice_ns), (bob, bob_ns)):
        host.advance(100 * S_NS)
        host.sync.wall.set(wrong_ns, host.time_ns)
        host.storage.wall.set(wrong_ns, host.time_ns)
        host.advance(100 * S_NS)
    pair.connect(ALICE, BOB)
    pair.run(5)
    claimed_ms = bob.sync.replicas(STREAM, bob.time_ns)[0].until_ms
    assert claimed_ms > 0
    assert may_claim(alice, claimed_ms)
    pair.disconnect(ALICE, BOB)
    for host in (alice, bob):  # the clocks are right again
        host.sync.wall.set(0, host.time_ns)
        host.advance(100 * S_NS)
    claimed_ms = bob.sync.replicas(STREAM, bob.time_ns)[0].until_ms
    assert may_claim(alice, claimed_ms)
    if min(alice_ns, bob_ns) <= 0:
        now_ms = alice.time_ns // MS_NS
        assert not may_claim(alice, now_ms), "one that is right is enough"


@pytest.mark.parametrize("quiet_s", [0, 300])
def test_it_knows_of_them_after_a_restart(quiet_s: int, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.connect(ALICE, BOB)
    keep(pair.hosts[ALICE], 1)
    pair.run(100)
    claimed_ms = pair.hosts[BOB].sync.replicas(STREAM, pair.hosts[BOB].time_ns)[0].until_ms
    now_ns = pair.hosts[ALICE].time_ns
    for host in pair.hosts.values():
        host.close()
    alice = StorageHost(ALICE, tmp_path / ALICE.hex(), peers=(ALICE, BOB))
    alice.advance(now_ns - alice.time_ns + quiet_s * S_NS)
    alice.command(alice.sync, FollowStream(STREAM))
    assert may_claim(alice, claimed_ms) is (alice.sync._began_ms >= claimed_ms), "by its start"
    alice.finish_all()
    assert may_claim(alice, claimed_ms)
    assert not may_claim(alice, claimed_ms + 65_000), "Bob was not there any more"
    alice.close()


def test_what_a_restored_store_noted_is_not_believed(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.connect(ALICE, BOB)
    pair.run(10)
    now_ns = pair.hosts[ALICE].time_ns
    pair.hosts[ALICE].store_below.new_log(now_ns)
    for host in pair.hosts.values():
        host.close()
    alice = StorageHost(ALICE, tmp_path / ALICE.hex(), peers=(ALICE, BOB))
    alice.sync._followed.since_ns = now_ns + 300 * S_NS
    alice.command(alice.sync, FollowStream(STREAM))
    alice.finish_all()
    assert may_claim(alice, now_ns // MS_NS + 200_000)
    alice.close()


def test_a_stranger_may_claim_nothing_by_time(pair: Pair) -> None:
    alice = pair.hosts[ALICE]
    alice.link_opened(EVE)
    alice.received(EVE, AskHeads(1, (STREAM,), 0, alice.time_ns // MS_NS))
    alice.finish_all()
    (told,) = alice.said(EVE)
    assert told.until_ms == 0


def test_no_time_is_granted_that_the_disk_may_forget(tmp_path: Path) -> None:
    """Its limit cannot be written: what may be claimed stands still there."""
    pair = Pair(tmp_path)
    pair.connect(ALICE, BOB)
    pair.run(5)
    alice, bob = pair.hosts[ALICE], pair.hosts[BOB]
    limit_ms = alice.sync._limit_ms[BOB]
    assert limit_ms is not None
    with mock.patch.object(alice.store_below, "put_note", side_effect=StoreError("full")):
        pair.run(200)
    assert bob.sync.replicas(STREAM, bob.time_ns)[0].until_ms == limit_ms
    pair.run(20)
    assert bob.sync.replicas(STREAM, bob.time_ns)[0].until_ms > limit_ms + 100_000
    for host in pair.hosts.values():
        host.close()


def test_of_one_that_it_never_met_it_says_nothing(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    bob.dial_failed(ALICE, "refused")
    assert until_ms(ask(bob, WHOLE)) == 0


def test_a_log_of_another_node_is_never_the_answer_of_all(pair: Pair) -> None:
    """A message that came to Bob alone is in Alice's log when Alice has it, and not before."""
    pair.connect(ALICE, BOB)
    keep(pair.hosts[ALICE], 1, 2, 3)
    pair.run(3)
    bob = pair.hosts[BOB]
    own, other = (pair.hosts[name].store_below.log.bytes for name in (BOB, ALICE))
    answers = [ask(bob, ReadLog(1, STREAM, 0, log, 0, 9, True)) for log in (own, other)]
    assert [answer.own for answer in answers] == [True, False]
    assert until_ms(answers[0]) == EVERYTHING
    assert until_ms(answers[1]) < EVERYTHING


def test_one_that_does_not_answer_is_waited_for_and_then_readers_are_sent_on(pair: Pair) -> None:
    pair.connect(ALICE, BOB)
    pair.run(3)
    pair.lies[ALICE] = lambda question, said: None
    bob = pair.hosts[BOB]
    assert ask(bob, WHOLE) == Refused(1, BEHIND)
    bob.advance(SyncConfig().silent_ns)
    assert 0 < until_ms(ask(bob, WHOLE)) < EVERYTHING, "it is not waited for again"


@pytest.mark.parametrize("refused", ["busy", "not-kept"])
def test_a_refusal_is_waited_for_no_longer(tmp_path: Path, refused: str) -> None:
    """In a network with permissions "not kept" may mean: not for you."""
    pair = Pair(tmp_path, permissions=True)
    pair.connect(ALICE, BOB)
    pair.run(3)

    def refuse(question: Any, said: Any) -> Any:
        return type(said)(said.request, LOG, (), False, (0,)) if refused == "not-kept" else said

    assert isinstance(TellHeads(1, LOG, (), False, (0,)), TellHeads)
    pair.lies[ALICE] = refuse
    keep(pair.hosts[ALICE], 1)
    bob = pair.hosts[BOB]
    replica = bob.sync.replicas(STREAM, bob.time_ns)[0]
    if refused == "not-kept":
        bob.advance(S_NS)
        bob.command(bob.sync, CompareStream(STREAM, bob.time_ns))
        while bob.exchange():
            pass
        after = bob.sync.replicas(STREAM, bob.time_ns)[0]
        assert after.compared_ns == replica.compared_ns, "what it leaves out is not nothing"
        assert after.tried_ns > 0
    for host in pair.hosts.values():
        host.close()


def test_a_stream_that_a_node_never_heard_of_is_not_kept(tmp_path: Path) -> None:
    names = (STREAM, OTHER_STREAM)
    host = StorageHost(BOB, tmp_path, streams=names, holds=lambda stream: stream == STREAM)
    assert ask(host, replace(WHOLE, stream=OTHER_STREAM)) == Refused(1, "not-kept")
    assert ask(host, replace(WHOLE, request=2)).rows == ()
    host.close()


def test_a_log_that_went_back_is_not_compared(pair: Pair) -> None:
    pair.connect(ALICE, BOB)
    keep(pair.hosts[ALICE], 1, 2, 3)
    pair.run(3)

    def shorter(question: Any, said: Any) -> Any:
        if not isinstance(said, TellHeads):
            return said
        places = tuple(
            [
                replace(
                    place,
                    logs=tuple([replace(head, last=head.last - 1) for head in place.logs]),
                )
                for place in said.places
            ]
        )
        return replace(said, places=places)

    pair.lies[ALICE] = shorter
    assert until_ms(ask(pair.hosts[BOB], WHOLE)) < EVERYTHING


# What readers make of it


def speaking(messages: list[bytes], until: int) -> Keeper:
    """A storage node that was compared with the others at a time."""
    keeper = Keeper(messages)
    keeper.speaks_for = lambda _: until
    return keeper


@pytest.mark.parametrize("what", [MessageRange(), LastMessages(100), LogRange(LOG, 0)])
@pytest.mark.parametrize("other", [None, Silent(), Refusing("failed"), Refusing("busy")])
def test_what_was_found_is_told_and_then_that_there_may_be_more(
    what: Any, other: Keeper | None
) -> None:
    library = Library(other, speaking(MESSAGES, NOW_MS))
    assert library.read_all(what) == MESSAGES
    (ended,) = library.ended
    assert ended.reason == INCOMPLETE
    assert not ended.complete
    (unheard,) = ended.unheard
    assert (unheard.node, unheard.until_ms) == (ONE, NOW_MS)


def test_nothing_found_is_not_complete_either() -> None:
    library = Library(None, speaking([], 0))
    assert library.read_all(MessageRange()) == []
    (ended,) = library.ended
    assert (ended.reason, ended.unheard[0].node, ended.unheard[0].until_ms) == (INCOMPLETE, ONE, 0)


def test_messages_older_than_the_comparison_are_complete_without_the_one_that_is_gone() -> None:
    newest_ms = NOW_MS - 10_000 + 34
    for end_ms, reason in ((newest_ms, COMPLETE), (newest_ms + 1, INCOMPLETE)):
        library = Library(None, speaking(MESSAGES, newest_ms + LATE_MS))
        assert library.read_all(MessageRange(None, Position(end_ms, 0))) == MESSAGES
        assert [ended.reason for ended in library.ended] == [reason]


def test_one_that_holds_nothing_itself_says_so_for_itself() -> None:
    for other in (Refusing("not-kept"), speaking([], 0)):
        library = Library(other, speaking(MESSAGES, 0))
        assert library.read_all(MessageRange()) == MESSAGES
        assert library.ended == [HistoryEnded("read")]


def test_two_that_both_have_some_and_do_not_know_each_other_are_not_complete() -> None:
    library = Library(speaking(MESSAGES[:20], 0), speaking(MESSAGES[20:], 0))
    assert library.read_all(MessageRange())
    assert library.ended[0].reason == INCOMPLETE


def test_the_one_that_speaks_for_the_others_is_taken() -> None:
    library = Library(Keeper(MESSAGES), speaking(MESSAGES[:10], 0))
    assert library.read_all(MessageRange()) == MESSAGES
    assert library.ended == [HistoryEnded("read")]


def test_a_stream_that_none_has_heard_of_is_no_empty_one() -> None:
    library = Library(Refusing("not-kept"), Refusing("not-kept"))
    assert library.read_all(MessageRange()) == []
    assert library.ended[0].reason == FAILED


def test_one_that_was_away_is_not_waited_for_again() -> None:
    silent = Silent()
    library = Library(silent, speaking(MESSAGES, 0))
    library.read_all(MessageRange())
    asked, began_ns = len(silent.asked), library.host.time_ns
    library.read_all(MessageRange(), token="again")
    assert library.host.time_ns - began_ns < S_NS
    assert len(silent.asked) == asked
    assert library.ended[1].unheard == (Unheard(ONE, 0, "away"),)
    library.advance(library.client.config.away_ns)
    library.read_all(MessageRange(), token="later")
    assert len(silent.asked) > asked


def test_one_that_was_away_is_asked_if_there_is_no_other() -> None:
    library = Library(Silent(), speaking(MESSAGES, 0))
    library.read_all(MessageRange())
    library.keepers = {ONE: Keeper(MESSAGES), TWO: None}
    library.host.link_closed(TWO, "lost")
    library.read_all(MessageRange(), token="again")
    assert library.ended[1].complete


def test_a_storage_node_that_the_tracker_has_not_named_counts_too() -> None:
    """It was added since the tracker was asked."""
    stranger = ALICE

    class Knows(Keeper):
        def answer(self, question: Any) -> Any:
            answer = super().answer(question)
            return replace(answer, heard=(Heard(ONE, EVERYTHING), Heard(stranger, 0)))

    library = Library(Keeper(MESSAGES), Knows(MESSAGES))
    library.storage = (TWO,)
    assert library.read_all(MessageRange()) == MESSAGES
    assert [one.node for one in library.ended[0].unheard] == [stranger]


class Comparing(Keeper):
    """It compares with another one, if it is asked to, and cannot reach a third."""

    def __init__(self, other: NodeId, comparisons: int = 99) -> None:
        super().__init__(MESSAGES)
        self.other, self.left = other, comparisons

    def answer(self, question: Any) -> Any:
        if question.whole:
            self.left -= 1
            if self.left < 0:
                return Refused(question.request, BEHIND)
        until_ms = EVERYTHING if question.whole else 5
        heard = (Heard(self.other, until_ms), Heard(ALICE, 0))
        return replace(super().answer(question), heard=heard)


def test_while_one_is_gone_the_others_still_compare_and_only_that_one_is_missing() -> None:
    library = Library(Comparing(TWO), Comparing(ONE))
    assert library.read_all(MessageRange()) == MESSAGES
    assert [one.node for one in library.ended[0].unheard] == [ALICE]


def test_one_that_cannot_compare_any_more_gives_what_it_has() -> None:
    library = Library(Comparing(TWO, 1), Comparing(ONE, 1))
    assert library.read_all(MessageRange()) == MESSAGES
    (ended,) = library.ended
    assert ended.reason == INCOMPLETE
    assert {one.node for one in ended.unheard} == {TWO, ALICE}


def test_an_answer_is_as_new_as_the_question_of_whoever_gave_it() -> None:
    """The time of one storage node says nothing to another one."""
    keeper = Keeper(MESSAGES)

    class Timed(Keeper):
        def answer(self, question: Any) -> Any:
            answer = super().answer(question)
            return replace(answer, asked_ns=77) if hasattr(answer, "asked_ns") else answer

    library = Library(keeper, Timed(MESSAGES))
    library.read(MessageRange())
    library.keepers[TWO] = None
    library.host.link_closed(TWO, "lost")
    for _ in range(4):
        library.more()
        library.advance(S_NS)
    assert library.rows == MESSAGES
    assert [question.since_ns for question in keeper.asked][:1] == [0]


@pytest.mark.parametrize("step_s", [3_600, -3_600])
@pytest.mark.parametrize("when", ["compared", "asked"])
def test_a_wrong_clock_makes_it_speak_for_less_and_never_for_more(
    pair: Pair, step_s: int, when: str
) -> None:
    bob = pair.hosts[BOB]
    bob.sync.wall.offset_ns = step_s * S_NS if when == "compared" else 0
    pair.connect(ALICE, BOB)
    pair.run(3)
    compared_ms = bob.time_ns // MS_NS
    pair.disconnect(ALICE, BOB)
    bob.sync.wall.offset_ns = step_s * S_NS if when == "asked" else 0
    assert until_ms(ask(bob, WHOLE)) <= compared_ms


def test_one_that_asks_is_there_and_is_compared_at_once(pair: Pair) -> None:
    bob = pair.hosts[BOB]
    bob.dial_failed(ALICE, "refused")
    keep(pair.hosts[ALICE], 1)
    pair.connect(ALICE, BOB)  # she has dialled: his own turn comes in 5 s at the earliest
    pair.run(2)
    assert until_ms(ask(bob, WHOLE)) == EVERYTHING


def test_rows_that_cannot_be_read_are_missing(pair: Pair) -> None:
    """Also if there is no other storage node."""

    class Damaged(Keeper):
        def answer(self, question: Any) -> Any:
            if question.whole:
                return Refused(question.request, BEHIND)  # another one may have them
            return replace(super().answer(question), damaged=True)

    library = Library(Damaged(MESSAGES))
    assert library.read_all(MessageRange()) == MESSAGES
    (ended,) = library.ended
    assert (ended.reason, ended.unheard) == (INCOMPLETE, (Unheard(ONE, 0, "damaged"),))


def test_one_whose_link_breaks_under_a_comparison_is_not_waited_for(pair: Pair) -> None:
    pair.connect(ALICE, BOB)
    pair.run(3)
    bob = pair.hosts[BOB]
    bob.link_opened(EVE)
    bob.received(EVE, WHOLE)
    bob.finish_all()
    assert bob.said(EVE) == [], "she is being asked"
    pair.disconnect(ALICE, BOB)
    bob.finish_all()
    (answer,) = bob.said(EVE)
    assert 0 < until_ms(answer) < EVERYTHING


def test_a_question_that_was_lost_is_asked_again() -> None:
    class Late(Keeper):
        def answer(self, question: Any) -> Any:
            answer = super().answer(question)
            return None if len(self.asked) == 1 else answer

    library = Library(Late(MESSAGES), speaking(MESSAGES[:10], 0))
    assert library.read_all(MessageRange()) == MESSAGES
    assert library.ended == [HistoryEnded("read")]


def test_a_reader_does_not_wait_for_copies_of_logs_whose_owner_is_gone(tmp_path: Path) -> None:
    """Their messages are in the log of the one that has the copies, too."""
    pair = Pair(tmp_path, names=(ALICE, BOB, CAROL))
    alice, bob, carol = (pair.hosts[name] for name in (ALICE, BOB, CAROL))
    partitions = range(6)
    for partition in partitions:
        keep(carol, 1, partition=partition)
    pair.connect(ALICE, CAROL)
    pair.run(5)
    pair.disconnect(ALICE, CAROL)
    for host in (alice, bob):
        host.advance(SyncConfig().owner_patience_ns)
    held: list[int] = []

    def copies() -> int:
        return sum(len(pair.rows(BOB, CAROL, partition)) for partition in partitions)

    def ask_meanwhile(question: Any, said: Any) -> Any:
        if isinstance(said, TellRows) and question.log == carol.store_below.log.bytes:
            bob.command(bob.sync, CompareStream(STREAM, bob.time_ns))
        if isinstance(said, TellHeads):
            held.append(copies())
        return said

    pair.lies[ALICE] = ask_meanwhile
    pair.connect(ALICE, BOB)
    pair.run(1)
    assert held[0] == 0
    assert 0 < held[1] < len(partitions), "the reader's turn"
    pair.run(20)
    assert copies() == len(partitions), "they come all the same"
    for host in pair.hosts.values():
        host.close()
