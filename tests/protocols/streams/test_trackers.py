"""A node with several trackers: where its streams go when one fails, and whom it obeys."""

from __future__ import annotations

from shoal.base.units import S_NS
from shoal.kernel.effects import Send
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Leave, Left, Report, Status
from tests.support.streams import ALICE, BOB, CAROL, STREAM, instruction, reasons, sent
from tests.support.tracker_guest import FIRST, HOME_OF_FIRST, SECOND, THIRD, Guest, dialled, joins

CONFIG = NodeConfig()


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
