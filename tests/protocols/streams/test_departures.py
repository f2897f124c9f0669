"""Members that leave, break off or crash: when a tracker believes it, and whom it tells."""

from __future__ import annotations

from shoal.base.ids import Contact, StreamId
from shoal.kernel.effects import CloseLink, OpenLink, Send, SetTimer
from shoal.kernel.records import MemberChanged
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.messages import Leave, Left, Report
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    MALLORY,
    OTHER_STREAM,
    STREAM,
    node,
    of_kind,
)
from tests.support.tracker_desk import Desk, crowd, instructions

CONFIG = TrackerConfig()
MEMBER = "member"


def test_a_leave_is_answered_and_the_overlay_closes_over_the_gap() -> None:
    desk, nodes = crowd(20)
    peer = nodes[7]
    neighbours = desk.neighbours(peer)
    effects = desk.receive(peer, Leave(STREAM))
    assert effects[:3] == [
        Send(Left(STREAM), (peer,)),
        MemberChanged(STREAM, peer, False, "leave"),
        CloseLink(peer, MEMBER),
    ]
    assert peer not in instructions(effects)
    assert set(neighbours) <= set(instructions(effects))
    assert all(len(desk.neighbours(n)) == CONFIG.degree for n in nodes if n != peer)


def test_a_leave_of_a_non_member_is_answered_and_changes_nothing() -> None:
    desk, _ = crowd(3)
    assert desk.receive(MALLORY, Leave(STREAM)) == [Send(Left(STREAM), (MALLORY,))]
    assert desk.receive(MALLORY, Leave(OTHER_STREAM)) == [Send(Left(OTHER_STREAM), (MALLORY,))]


def test_a_stream_without_members_is_forgotten() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert desk.receive(ALICE, Leave(STREAM)) == [
        Send(Left(STREAM), (ALICE,)),
        MemberChanged(STREAM, ALICE, False, "leave"),
        CloseLink(ALICE, MEMBER),
    ]
    assert desk.machine.streams == {}
    assert instructions(desk.advance(CONFIG.resend_ns)) == {}


def test_whoever_left_without_an_answer_is_not_instructed_again() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.join(BOB)
    desk.receive(BOB, Leave(STREAM))
    assert set(instructions(desk.fire(("resend", STREAM)))) == {ALICE}


def test_whoever_left_is_a_stranger() -> None:
    desk = Desk()
    desk.join(BOB)
    desk.join(ALICE)
    desk.link_down(ALICE)
    desk.receive(ALICE, Leave(STREAM))  # over a new link, which it did not come back on
    assert desk.fire(("gone", ALICE)) == []
    desk.claims[ALICE, MEMBER] = True
    assert desk.link_down(ALICE) == []
    assert OpenLink(Contact(ALICE), MEMBER) in desk.join(ALICE)


def test_the_link_of_a_member_is_kept_while_it_is_in_any_stream() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert of_kind(desk.join(ALICE, OTHER_STREAM), OpenLink) == []
    assert of_kind(desk.receive(ALICE, Leave(STREAM)), CloseLink) == []
    assert of_kind(desk.receive(ALICE, Leave(OTHER_STREAM)), CloseLink) == [
        CloseLink(ALICE, MEMBER)
    ]


def test_a_member_whose_link_broke_has_time_to_come_back() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    assert desk.link_down(peer) == [SetTimer(("gone", peer), CONFIG.gone_ns)]
    desk.advance(CONFIG.gone_ns - 1)
    effects = desk.join(peer)
    assert OpenLink(Contact(peer), MEMBER) in effects
    assert of_kind(effects, MemberChanged) == []
    assert of_kind(desk.advance(CONFIG.gone_ns), MemberChanged) == []


def test_a_member_that_does_not_come_back_is_gone_from_all_its_streams() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    desk.join(peer, OTHER_STREAM)
    desk.link_down(peer)
    effects = desk.fire(("gone", peer))
    assert of_kind(effects, MemberChanged) == [
        MemberChanged(STREAM, peer, False, "gone"),
        MemberChanged(OTHER_STREAM, peer, False, "gone"),
    ]
    assert peer not in desk.machine.streams[STREAM].members
    assert OTHER_STREAM not in desk.machine.streams
    assert all(peer not in desk.neighbours(n) for n in nodes[1:])


def test_a_member_that_two_have_lost_has_crashed() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    witness = desk.neighbours(peer)[0]
    desk.link_down(peer)
    effects = desk.receive(witness, Report(STREAM, (), (peer, peer), ()))
    assert MemberChanged(STREAM, peer, False, "crash") in effects
    assert witness in instructions(effects)
    assert desk.fire(("gone", peer)) == []


def test_a_lost_neighbour_that_the_tracker_still_sees_loses_that_link_only() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    lost = desk.neighbours(peer)[0]
    effects = desk.receive(peer, Report(STREAM, (), (lost,), ()))
    assert of_kind(effects, MemberChanged) == []
    assert lost not in desk.neighbours(peer)
    assert len(desk.neighbours(lost)) == CONFIG.degree


def test_a_stranger_is_not_lost_by_a_report() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    stranger = next(n for n in nodes if n != peer and n not in desk.neighbours(peer))
    before = desk.neighbours(stranger)
    desk.link_down(stranger)
    assert desk.receive(peer, Report(STREAM, (), (stranger, MALLORY), (stranger, peer))) == []
    assert desk.neighbours(stranger) == before


def test_two_nodes_that_lost_each_other_are_relinked_in_all_streams_they_share() -> None:
    desk = Desk()
    streams = [StreamId(f"s{number}") for number in range(100)]
    for stream in streams:
        for peer in (ALICE, BOB, CAROL, DAVE, EVE, MALLORY, node(50)):
            desk.join(peer, stream)
        if BOB in desk.neighbours(ALICE, stream):
            desk.receive(ALICE, Report(stream, (), (BOB,), ()))
    assert [s for s in streams if BOB in desk.neighbours(ALICE, s)] == []
