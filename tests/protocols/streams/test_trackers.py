"""A node with several trackers: where its streams go, when, and whom it obeys."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send
from shoal.kernel.inputs import Started
from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Instruction, Join, Leave, Left, Open, Report, Status
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.ring import TrackerRing
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    ME,
    STREAM,
    Bench,
    contact,
    instruction,
    node,
    of_kind,
    reasons,
    sent,
    sign_as,
)

CONFIG = NodeConfig()
RING = TrackerRing([contact(node(number)) for number in range(200, 203)])
FIRST, SECOND, THIRD = (c.node for c in RING.order(STREAM))


HOME_OF_FIRST = next(
    stream
    for stream in (StreamId(f"home/{number}") for number in range(100))
    if RING.order(stream)[0].node == FIRST and RING.order(stream)[1].node == SECOND
)

HOME_OF_SECOND = next(
    stream
    for stream in (StreamId(f"home/{number}") for number in range(100))
    if RING.order(stream)[0].node == SECOND
)


class Guest(Bench[StreamNode]):
    """A node that has been started, and knows three trackers."""

    def __init__(self) -> None:
        super().__init__(StreamNode(ME, RING, sign_as(ME), "c1", Random(1), CONFIG))
        self.feed(Started(contact(ME).addresses))

    def joined(self, *neighbours: NodeId) -> Guest:
        """In the stream with its best tracker, with these neighbours."""
        self.command(JoinStream(STREAM))
        self.link_up(FIRST)
        self.receive(FIRST, instruction(5, *neighbours, epoch=10))
        for peer in neighbours:
            self.link_up(peer)
            self.receive(peer, Open(STREAM, True))
        return self

    def failed_over(self, *neighbours: NodeId) -> Guest:
        """With its second tracker, after the first one died."""
        self.joined(*neighbours)
        self.link_down(FIRST)
        self.fire(("dial", FIRST))
        self.link_down(FIRST)
        self.link_up(SECOND)
        self.receive(SECOND, instruction(1, *neighbours, epoch=11))
        return self

    @property
    def at(self) -> NodeId | None:
        return self.machine.trackers.at(STREAM)

    @property
    def active(self) -> tuple[NodeId, ...]:
        return self.machine.streams[STREAM].channel.active


def dialled(effects: list[Effect]) -> list[NodeId]:
    return [effect.contact.node for effect in of_kind(effects, OpenLink)]


def joins(effects: list[Effect]) -> list[tuple[NodeId, Join]]:
    return [(peer, message) for message, peers in sent(effects, Join) for peer in peers]


# Failing over


def test_a_stream_goes_to_its_best_tracker_and_nobody_else_is_dialled() -> None:
    guest = Guest()
    assert dialled(guest.command(JoinStream(STREAM))) == [FIRST]
    assert [peer for peer, _ in joins(guest.link_up(FIRST))] == [FIRST]
    assert "seek" not in guest.timers


def test_a_tracker_whose_link_breaks_is_dialled_once_more_before_the_next() -> None:
    guest = Guest().joined(ALICE)
    assert dialled(guest.link_down(FIRST)) == []
    assert dialled(guest.fire(("dial", FIRST))) == [FIRST]
    assert dialled(guest.link_down(FIRST)) == [SECOND]
    [(peer, join)] = joins(guest.link_up(SECOND))
    assert (peer, join.epoch, join.counter, join.neighbours) == (SECOND, 10, 5, (ALICE,))
    assert guest.active == (ALICE,)


def test_a_tracker_that_is_back_at_once_keeps_its_streams() -> None:
    guest = Guest().joined(ALICE)
    guest.link_down(FIRST)
    guest.fire(("dial", FIRST))
    assert [peer for peer, _ in joins(guest.link_up(FIRST))] == [FIRST]
    assert "seek" not in guest.timers


def test_a_tracker_that_refuses_at_first_is_not_dialled_twice_before_the_next() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    assert dialled(guest.link_down(FIRST)) == [SECOND]
    assert dialled(guest.link_down(SECOND)) == [THIRD]
    assert dialled(guest.link_down(THIRD)) == []
    assert guest.at is None
    assert set(dialled(guest.fire("seek"))) == {FIRST, SECOND, THIRD}


def test_a_dial_that_takes_too_long_is_not_waited_for_and_goes_on() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    assert dialled(guest.fire(("patience", FIRST))) == [SECOND]
    assert guest.claims[FIRST, ""] is False
    guest.link_up(SECOND)
    assert [peer for peer, _ in joins(guest.link_up(FIRST))] == [FIRST]


def test_a_tracker_known_to_be_dead_is_not_tried_first_for_another_stream() -> None:
    guest = Guest().failed_over()
    assert [peer for peer, _ in joins(guest.command(JoinStream(HOME_OF_FIRST)))] == [SECOND]


def test_statuses_and_reports_go_to_the_tracker_that_is_obeyed() -> None:
    guest = Guest().failed_over(ALICE)
    effects = guest.receive(SECOND, instruction(2, ALICE, epoch=11))
    assert [peers for _, peers in sent(effects, Status)] == [(SECOND,)]
    assert [peers for _, peers in sent(guest.fire(("report", STREAM)), Report)] == [(SECOND,)]


# Coming back


def test_a_better_tracker_is_looked_for_joined_and_obeyed_before_the_other_is_left() -> None:
    guest = Guest().failed_over(ALICE)
    assert dialled(guest.fire("seek")) == [FIRST]
    [(peer, join)] = joins(guest.link_up(FIRST))
    assert (peer, join.epoch, join.counter, join.neighbours) == (FIRST, 11, 1, (ALICE,))
    assert guest.at == SECOND
    # Until it has said something, the other one counts.
    guest.receive(SECOND, instruction(2, ALICE, BOB, epoch=11))
    assert guest.machine.streams[STREAM].overlay.counter == 2
    effects = guest.receive(FIRST, instruction(1, ALICE, epoch=12))
    assert guest.at == FIRST
    assert sent(effects, Leave) == []
    assert CloseLink(SECOND, "") not in effects
    assert sent(guest.fire(("leave", STREAM, SECOND))) == [(Leave(STREAM), (SECOND,))]
    assert CloseLink(SECOND, "") in guest.receive(SECOND, Left(STREAM))
    guest.fire("seek")
    assert "seek" not in guest.timers


def test_of_two_trackers_the_higher_instruction_counts() -> None:
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    guest.link_up(FIRST)
    guest.receive(SECOND, instruction(3, ALICE, BOB, epoch=13))
    effects = guest.receive(FIRST, instruction(7, ALICE, epoch=12))
    assert guest.at == SECOND
    [(peer, join)] = joins(effects)
    assert (peer, join.epoch, join.counter) == (FIRST, 13, 3), "it has to go beyond that"
    guest.receive(FIRST, instruction(1, ALICE, epoch=14))
    assert guest.at == FIRST


def test_an_old_epoch_of_the_own_tracker_is_answered_with_what_we_know() -> None:
    guest = Guest().failed_over(ALICE)
    effects = guest.receive(SECOND, instruction(9, BOB, epoch=9))
    assert [(peer, join.epoch) for peer, join in joins(effects)] == [(SECOND, 11)]
    assert guest.active == (ALICE,)


def test_a_tracker_that_is_back_hears_no_leave_of_a_stream_that_joins_it() -> None:
    # It may never have been away, and would move links that are as they should be.
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    assert sent(guest.link_up(FIRST), Leave) == []
    guest.link_down(FIRST)
    guest.command(LeaveStream(STREAM))
    guest.command(JoinStream(HOME_OF_FIRST))
    guest.fire(("dial", FIRST))
    assert (Leave(STREAM), (FIRST,)) in sent(guest.link_up(FIRST), Leave)


def test_a_better_tracker_that_goes_again_before_it_spoke_costs_nothing() -> None:
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    guest.link_up(FIRST)
    guest.link_down(FIRST)
    assert guest.at == SECOND
    guest.receive(SECOND, instruction(2, ALICE, epoch=11))
    assert guest.machine.streams[STREAM].overlay.counter == 2
    guest.advance(2 * CONFIG.seek_ns)
    assert (FIRST, "") in guest.claims


def test_a_tracker_that_dies_while_its_stream_moves_away_is_let_go() -> None:
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    guest.link_up(FIRST)
    guest.link_down(SECOND)
    assert guest.at == FIRST
    guest.receive(FIRST, instruction(1, ALICE, epoch=12))
    assert guest.machine.streams[STREAM].overlay.epoch == 12


def test_a_join_to_a_better_tracker_is_said_again() -> None:
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    guest.link_up(FIRST)
    assert [peer for peer, _ in joins(guest.fire(("join", STREAM)))] == [FIRST]


def test_whoever_leaves_a_stream_that_moves_tells_both() -> None:
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    guest.link_up(FIRST)
    told = sent(guest.command(LeaveStream(STREAM)), Leave)
    assert {peers for _, peers in told} == {(FIRST,), (SECOND,)}


def test_a_better_tracker_that_is_there_for_another_stream_is_joined() -> None:
    guest = Guest().joined(ALICE)
    guest.command(JoinStream(HOME_OF_SECOND))
    for tracker in (SECOND, FIRST):
        guest.link_down(tracker)
    guest.fire(("dial", FIRST))
    guest.link_down(FIRST)
    guest.link_up(THIRD)
    guest.receive(THIRD, instruction(1, ALICE, epoch=11))
    assert guest.at == THIRD
    guest.fire("seek")
    guest.link_up(SECOND)
    guest.receive(SECOND, Instruction(HOME_OF_SECOND, 12, 1, ()))
    # Before the second has spoken the first is there; and then it is gone again.
    guest.link_up(FIRST)
    guest.receive(SECOND, Left(STREAM))
    guest.link_down(FIRST)
    assert guest.at == THIRD
    assert SECOND in [peer for peer, _ in joins(guest.advance(2 * CONFIG.seek_ns))]
    guest.receive(SECOND, instruction(2, ALICE, epoch=12))
    assert guest.at == SECOND


def test_a_better_tracker_that_refuses_our_epoch_counts_anew_and_is_not_pestered() -> None:
    # Its clock is far behind. Else whoever knows an epoch would never come to it, and newcomers
    # would be there without them.
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    guest.link_up(FIRST)
    assert joins(guest.receive(FIRST, Left(STREAM))) == []
    [(peer, join)] = joins(guest.advance(CONFIG.join_retry_ns))
    assert (peer, join.epoch, join.counter, join.neighbours) == (FIRST, 0, 0, (ALICE,))
    guest.receive(SECOND, instruction(2, ALICE, epoch=11))
    assert guest.machine.streams[STREAM].overlay.counter == 2
    guest.receive(FIRST, instruction(1, ALICE, BOB, epoch=3))
    assert guest.at == FIRST
    assert guest.machine.streams[STREAM].overlay.epoch == 3
    assert [join.epoch for _, join in joins(guest.link_down(FIRST))] == []
    guest.fire(("dial", FIRST))
    assert [join.epoch for _, join in joins(guest.link_up(FIRST))] == [3]


def test_a_dial_that_was_given_up_and_goes_on_is_not_waited_for_without_end() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    guest.fire(("patience", FIRST))
    guest.link_up(SECOND)
    guest.receive(SECOND, instruction(1, epoch=5))
    guest.now_ns += 2 * CONFIG.seek_ns  # its failure is old news, but nobody has looked since
    guest.command(JoinStream(HOME_OF_FIRST))
    guest.advance(CONFIG.tracker_patience_ns)
    assert guest.machine.trackers.at(HOME_OF_FIRST) == SECOND


def test_streams_that_join_one_after_the_other_do_not_keep_a_dial_alive() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    guest.advance(CONFIG.tracker_patience_ns // 2)
    guest.command(JoinStream(HOME_OF_FIRST))
    guest.advance(CONFIG.tracker_patience_ns // 2)
    assert guest.at == SECOND


# Trackers that are there and silent


def passed_over() -> Guest:
    """With the second tracker, since the first never answered."""
    guest = Guest()
    guest.command(JoinStream(STREAM))
    guest.link_up(FIRST)
    assert dialled(guest.advance(CONFIG.answer_ns)) == [SECOND]
    guest.link_up(SECOND)
    guest.receive(SECOND, instruction(1, epoch=11))
    assert guest.at == SECOND
    return guest


def test_a_tracker_that_is_there_and_never_answers_is_passed_over() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    guest.link_up(FIRST)
    assert dialled(guest.advance(CONFIG.answer_ns - 1)) == [], "a takeover may hold its answer"
    said = guest.advance(CONFIG.join_retry_ns)
    assert dialled(said) == [SECOND]
    assert guest.at == FIRST, "as long as no other is there, that one may still answer"
    effects = guest.link_up(SECOND)
    assert [peer for peer, _ in joins(effects)] == [SECOND]
    assert (Leave(STREAM), (FIRST,)) in sent(effects, Leave)
    assert guest.at == SECOND


def test_a_silent_tracker_hears_no_join_until_it_speaks_and_is_joined_at_once_then() -> None:
    guest = passed_over()
    effects = guest.advance(600 * S_NS)
    assert joins(effects) == []
    assert len(sent(effects, Leave)) == 600 * S_NS // CONFIG.join_retry_ns
    assert [peer for peer, _ in joins(guest.receive(FIRST, Left(STREAM)))] == [FIRST]
    assert guest.at == SECOND
    guest.receive(FIRST, instruction(1, epoch=12))
    assert guest.at == FIRST


def test_a_silent_tracker_whose_link_breaks_is_dialled_and_asked_for_a_word() -> None:
    guest = passed_over()
    guest.link_down(FIRST)
    guest.fire(("dial", FIRST))
    guest.link_down(FIRST)
    assert FIRST in dialled(guest.advance(2 * CONFIG.seek_ns))
    effects = guest.link_up(FIRST)
    assert joins(effects) == []
    assert sent(effects, Leave) == [(Leave(STREAM), (FIRST,))]
    assert [peer for peer, _ in joins(guest.receive(FIRST, Left(STREAM)))] == [FIRST]


def test_a_tracker_that_speaks_but_takes_nobody_in_is_tried_less_and_less_often() -> None:
    guest = passed_over()
    tries_s: list[int] = []
    joined = False
    for second in range(1200):
        for message, peers in sent(guest.advance(S_NS)):
            if peers == (FIRST,) and isinstance(message, Leave):
                joined = False
                more = joins(guest.receive(FIRST, Left(STREAM)))
            else:
                more = [(FIRST, message)] if peers == (FIRST,) else []
            if more and not joined:
                joined = True
                tries_s.append(second)
        if guest.claims.get((FIRST, "")) is False:
            joined = bool(joins(guest.link_up(FIRST)))
            tries_s += [second] * joined
        assert guest.at == SECOND
    waits_s = [b - a for a, b in pairwise(tries_s)]
    patience_s = CONFIG.answer_ns // S_NS
    assert 8 <= len(tries_s) <= 14
    assert waits_s[0] < patience_s + 10
    assert waits_s[-1] > patience_s + CONFIG.silent_max_ns // S_NS


def test_a_tracker_that_denies_every_join_is_not_asked_for_ever() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    asked = joins(guest.link_up(FIRST))
    count = 0
    while asked and count < 1000:
        guest.now_ns += S_NS // 10
        asked = joins(guest.receive(FIRST, Left(STREAM)))
        count += 1
    assert count <= CONFIG.answer_ns // (S_NS // 10)
    assert dialled(guest.advance(CONFIG.join_retry_ns)) == [SECOND]


def test_a_node_with_neighbours_waits_longer_for_a_silent_tracker() -> None:
    guest = Guest().joined(ALICE)
    guest.link_down(FIRST)
    guest.fire(("dial", FIRST))
    guest.link_up(FIRST)
    assert dialled(guest.advance(CONFIG.answer_linked_ns - 1)) == []
    guest.advance(CONFIG.join_retry_ns)
    [(peer, join)] = joins(guest.link_up(SECOND))
    assert (peer, join.neighbours) == (SECOND, (ALICE,))
    assert guest.active == (ALICE,)


def test_a_better_tracker_that_is_silent_does_not_keep_another_better_one_away() -> None:
    guest = Guest().failed_over()
    guest.link_down(SECOND)
    guest.fire(("dial", SECOND))
    guest.link_down(SECOND)
    guest.link_up(THIRD)
    guest.receive(THIRD, instruction(1, epoch=12))
    guest.advance(2 * CONFIG.seek_ns)
    guest.link_up(FIRST)
    guest.advance(CONFIG.answer_ns + 2 * CONFIG.seek_ns)
    assert [peer for peer, _ in joins(guest.link_up(SECOND))] == [SECOND]


# Whom to obey


def test_a_lower_instruction_of_a_tracker_that_we_fell_to_is_not_just_ignored() -> None:
    # The one before went on counting in the same epoch: this one would say it again for ever.
    guest = Guest().failed_over(ALICE)
    guest.fire("seek")
    guest.link_up(FIRST)
    guest.receive(SECOND, instruction(50, ALICE, epoch=12))
    guest.link_down(SECOND)
    assert guest.at == FIRST
    [(peer, join)] = joins(guest.receive(FIRST, instruction(7, BOB, epoch=12)))
    assert (peer, join.epoch, join.counter) == (FIRST, 12, 50)


def test_a_tracker_that_the_stream_is_not_with_is_told_so() -> None:
    guest = Guest().joined(ALICE)
    assert guest.receive(THIRD, instruction(99, BOB, epoch=99)) == [
        Send(Leave(STREAM), (THIRD,)),
    ]
    assert guest.receive(THIRD, Left(STREAM)) != []
    assert joins(guest.receive(THIRD, Left(STREAM))) == []
    assert guest.active == (ALICE,)


def test_whoever_is_no_tracker_is_not_listened_to() -> None:
    guest = Guest().joined(ALICE)
    assert reasons(guest.receive(CAROL, instruction(99, BOB, epoch=99))) == ["not-my-tracker"]
    assert reasons(guest.receive(CAROL, Left(STREAM))) == ["not-my-tracker"]


def test_while_no_tracker_answers_links_stay() -> None:
    guest = Guest().joined(ALICE, BOB)
    for tracker in (FIRST, SECOND, THIRD):
        guest.link_down(tracker)
        if ("dial", tracker) in guest.timers:
            guest.fire(("dial", tracker))
            guest.link_down(tracker)
    assert guest.at is None
    for _ in range(20):
        guest.advance(3 * S_NS)
        for tracker in (FIRST, SECOND, THIRD):
            guest.link_down(tracker)
    assert guest.active == (ALICE, BOB)
    guest.advance(2 * CONFIG.seek_ns)
    [(peer, join)] = joins(guest.link_up(THIRD))
    assert (peer, join.neighbours) == (THIRD, (ALICE, BOB))


STREAMS = [STREAM, StreamId("x"), StreamId("y")]
trackers = st.sampled_from([FIRST, SECOND, THIRD])


class AnyTrackers(RuleBasedStateMachine):
    """Trackers come and go, speak and are silent, in any order.

    The node's own invariants are checked after each step. Here: it says Join only over a link
    that is up, and moves only to whoever instructs it; in the end, when some trackers are there and
    answer and the others stay dead, every stream is with its best one that lives, and all other
    links are gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guest = Guest()
        self.epoch = 1
        self.joined: dict[tuple[NodeId, StreamId], None] = {}
        self.dead: frozenset[NodeId] = frozenset()

    @initialize(dead=st.frozensets(trackers, max_size=2))
    def choose(self, dead: frozenset[NodeId]) -> None:
        self.dead = dead

    def do(self, effects: list[Effect]) -> None:
        for effect in of_kind(effects, Send):
            message: Any = effect.message
            for peer in effect.peers:
                if isinstance(message, Join):
                    assert self.guest.claims.get((peer, ""))
                    self.joined[peer, message.stream] = None
                    self.epoch = max(self.epoch, message.epoch)
                elif isinstance(message, Leave):
                    self.joined.pop((peer, message.stream), None)
                    if self.guest.claims.get((peer, "")):
                        self.do(self.guest.receive(peer, Left(message.stream)))

    @rule(stream=st.sampled_from(STREAMS))
    def toggle(self, stream: StreamId) -> None:
        inside = stream in self.guest.machine.streams
        self.do(self.guest.command(LeaveStream(stream) if inside else JoinStream(stream)))

    @rule(tracker=trackers)
    def comes(self, tracker: NodeId) -> None:
        self.do(self.guest.link_up(tracker))

    @rule(tracker=trackers)
    def goes(self, tracker: NodeId) -> None:
        self.joined = {key: None for key in self.joined if key[0] != tracker}
        self.do(self.guest.link_down(tracker))

    @rule(tracker=trackers, stream=st.sampled_from(STREAMS), newer=st.integers(-1, 2))
    def instructs(self, tracker: NodeId, stream: StreamId, newer: int) -> None:
        if self.guest.claims.get((tracker, "")):
            epoch = max(1, self.epoch + newer)
            self.epoch = max(self.epoch, epoch)  # the highest that anybody has named
            before = self.guest.machine.trackers.at(stream)
            self.do(self.guest.receive(tracker, Instruction(stream, epoch, 1, ())))
            after = self.guest.machine.trackers.at(stream)
            assert after in (before, tracker)

    @rule(tracker=trackers, stream=st.sampled_from(STREAMS))
    def denies(self, tracker: NodeId, stream: StreamId) -> None:
        if self.guest.claims.get((tracker, "")):
            self.do(self.guest.receive(tracker, Left(stream)))

    @precondition(lambda self: self.guest.timers)
    @rule(wait_ns=st.sampled_from([S_NS // 4, S_NS, 4 * S_NS, 20 * S_NS]))
    def wait(self, wait_ns: int) -> None:
        self.do(self.guest.advance(wait_ns))

    @invariant()
    def no_version_is_higher_than_what_trackers_named(self) -> None:
        for state in self.guest.machine.streams.values():
            assert state.overlay.epoch <= self.epoch

    def teardown(self) -> None:
        for _ in range(12):
            self.do(self.guest.advance(2 * S_NS))
            for tracker in RING.trackers:
                if tracker in self.dead:
                    self.goes(tracker)
                else:
                    self.do(self.guest.link_up(tracker))
            for tracker, stream in list(self.joined):
                self.epoch += 1  # as trackers do that are told of a later one
                order = Instruction(stream, self.epoch, 1, ())
                self.do(self.guest.receive(tracker, order))
        machine = self.guest.machine
        best = {
            stream: next(c.node for c in RING.order(stream) if c.node not in self.dead)
            for stream in machine.streams
        }
        assert {stream: machine.trackers.at(stream) for stream in machine.streams} == best
        held = {peer for (peer, purpose), up in self.guest.claims.items() if purpose == "" and up}
        assert held == set(best.values())


def test_any_order_of_deaths_and_returns() -> None:
    run_state_machine_as_test(
        AnyTrackers, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
