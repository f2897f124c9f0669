"""A better tracker that is back: looked for, joined, and obeyed before the other is left."""

from __future__ import annotations

from shoal.kernel.effects import CloseLink
from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Instruction, Leave, Left
from tests.support.streams import ALICE, BOB, STREAM, instruction, sent
from tests.support.tracker_guest import (
    FIRST,
    HOME_OF_FIRST,
    HOME_OF_SECOND,
    SECOND,
    THIRD,
    Guest,
    dialled,
    joins,
)

CONFIG = NodeConfig()


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
