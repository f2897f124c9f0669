"""The tracker machine: who is told what, when, and how it is answered."""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.ids import INT63_MAX, Contact
from shoal.base.units import S_NS
from shoal.kernel.effects import OpenLink, Send, SetTimer
from shoal.kernel.inputs import Started
from shoal.kernel.records import InstructionSent, LinkChanged, MemberChanged, Rejected
from shoal.protocols.streams.config import NodeConfig, TrackerConfig
from shoal.protocols.streams.messages import Instruction, Join, Leave, Status
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    EVE,
    MALLORY,
    NOW_MS,
    OTHER_STREAM,
    STREAM,
    Bench,
    contact,
    of_kind,
    reasons,
    sent,
)
from tests.support.tracker_desk import Desk, crowd, cut, instructions

CONFIG = TrackerConfig()
MEMBER = "member"


# Joining


def test_a_started_tracker_begins_an_epoch_and_sweeps() -> None:
    tracker = Tracker(lambda stream: RandomPolicy(4, Random(1)))
    bench = Bench(tracker)
    assert bench.feed(Started()) == [SetTimer("sweep", CONFIG.sweep_ns)]
    assert tracker.epoch == NOW_MS


def test_the_first_member_is_told_that_it_is_alone() -> None:
    desk = Desk()
    assert desk.join(ALICE) == [
        OpenLink(Contact(ALICE), MEMBER),
        MemberChanged(STREAM, ALICE, True, "join"),
        Send(Instruction(STREAM, NOW_MS, 1, ()), (ALICE,)),
        InstructionSent(STREAM, ALICE, NOW_MS, 1, 0),
        SetTimer(("resend", STREAM), CONFIG.resend_ns),
    ]


def test_both_ends_of_a_new_link_are_told_of_each_other_in_growing_counters() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert desk.join(BOB) == [
        OpenLink(Contact(BOB), MEMBER),
        MemberChanged(STREAM, BOB, True, "join"),
        LinkChanged(STREAM, ALICE, BOB, True),
        Send(Instruction(STREAM, NOW_MS, 2, (contact(ALICE),)), (BOB,)),
        InstructionSent(STREAM, BOB, NOW_MS, 2, 1),
        Send(Instruction(STREAM, NOW_MS, 3, (contact(BOB),)), (ALICE,)),
        InstructionSent(STREAM, ALICE, NOW_MS, 3, 1),
        SetTimer(("resend", STREAM), CONFIG.resend_ns),
    ]


def test_up_to_the_degree_everybody_is_linked_to_everybody() -> None:
    desk, nodes = crowd(CONFIG.degree + 1)
    for peer in nodes:
        assert set(desk.neighbours(peer)) == set(nodes) - {peer}


def test_only_those_whose_neighbours_changed_are_told() -> None:
    desk, nodes = crowd(40)
    before = {peer: desk.neighbours(peer) for peer in nodes}
    told = instructions(desk.join(EVE))
    changed = {peer for peer in nodes if set(desk.neighbours(peer)) != set(before[peer])}
    assert set(told) == changed | {EVE}
    assert len(told) <= 2 * CONFIG.degree + 1
    for peer, order in told.items():
        assert tuple(c.node for c in order.neighbours) == desk.neighbours(peer)


def test_counters_only_grow_over_all_streams_and_lives() -> None:
    desk = Desk()
    seen: list[int] = []
    for _ in range(3):
        for stream in (STREAM, OTHER_STREAM):
            effects = [*desk.join(ALICE, stream), *desk.join(BOB, stream)]
            effects += desk.receive(ALICE, Leave(stream))
            effects += desk.receive(BOB, Leave(stream))
            assert stream not in desk.machine.streams
            seen += [order.counter for order, _ in sent(effects, Instruction)]
    assert seen == sorted(set(seen))


def test_a_member_that_joins_again_is_told_again() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.join(BOB)
    desk.quiet()
    effects = desk.join(BOB)
    assert of_kind(effects, MemberChanged) == []
    assert of_kind(effects, OpenLink) == []
    assert instructions(effects) == {BOB: Instruction(STREAM, NOW_MS, 4, (contact(ALICE),))}


def test_a_join_with_the_contact_of_another_is_refused() -> None:
    desk = Desk()
    join = Join(STREAM, contact(ALICE), 0, 0, ())
    assert desk.receive(MALLORY, join) == [Rejected(MALLORY, "joins-for-another")]
    assert desk.machine.streams == {}
    assert instructions(desk.join(ALICE))


def test_new_addresses_reach_the_neighbours_with_their_next_instruction() -> None:
    desk = Desk()
    desk.join(ALICE)
    moved = Contact(ALICE, ("ws://moved:1",))
    desk.receive(ALICE, Join(STREAM, moved, 0, 0, ()))
    assert instructions(desk.join(BOB))[BOB].neighbours == (moved,)


# Statuses


def test_a_status_answers_its_instruction() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert desk.status(ALICE) == []
    assert instructions(desk.advance(10 * CONFIG.resend_ns)) == {}


def test_an_unanswered_instruction_is_said_again_with_the_same_counter() -> None:
    desk = Desk()
    first = instructions(desk.join(ALICE))
    for _ in range(3):
        effects = desk.fire(("resend", STREAM))
        assert instructions(effects) == first
        assert of_kind(effects, InstructionSent) == [InstructionSent(STREAM, ALICE, NOW_MS, 1, 0)]
    desk.status(ALICE)
    assert desk.fire(("resend", STREAM)) == []


def test_each_instruction_is_said_again_at_its_own_time() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.now_ns += S_NS
    desk.join(BOB, OTHER_STREAM)
    desk.join(CAROL, OTHER_STREAM)
    desk.status(BOB, stream=OTHER_STREAM)
    assert set(instructions(desk.advance(2 * S_NS))) == {ALICE}
    assert set(instructions(desk.advance(S_NS))) == {CAROL}


def test_an_instruction_that_was_replaced_does_not_delay_another() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.join(BOB)
    desk.now_ns += S_NS
    desk.join(ALICE)
    assert set(instructions(desk.advance(CONFIG.resend_ns - S_NS))) == {BOB}


@pytest.mark.parametrize("off", [(0, -1), (0, 1), (-1, 0), (1, 0)], ids=str)
def test_a_status_of_another_instruction_is_late(off: tuple[int, int]) -> None:
    desk, nodes = crowd(10)
    member = desk.machine.streams[STREAM].members[nodes[0]]
    late = Status(STREAM, desk.machine.epoch + off[0], member.version[1] + off[1], ())
    before = desk.neighbours(nodes[0])
    assert desk.receive(nodes[0], late) == [Rejected(nodes[0], "late-status")]
    assert desk.neighbours(nodes[0]) == before


def test_a_missing_neighbour_is_replaced() -> None:
    desk, nodes = crowd(20)
    peer = nodes[3]
    failed = desk.neighbours(peer)[1]
    effects = desk.status(peer, failed)
    assert cut(peer, failed) in effects
    assert failed not in desk.neighbours(peer)
    assert len(desk.neighbours(peer)) == len(desk.neighbours(failed)) == CONFIG.degree
    told = instructions(effects)
    assert {peer, failed} <= set(told)
    for told_peer, order in told.items():
        assert tuple(c.node for c in order.neighbours) == desk.neighbours(told_peer)


def test_a_status_that_names_strangers_gains_nothing_by_it() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    member = desk.machine.streams[STREAM].members[peer]
    status = Status(STREAM, NOW_MS, member.version[1], (*desk.neighbours(peer), MALLORY, peer))
    assert desk.receive(peer, status) == []


def test_a_later_epoch_of_one_does_not_make_the_statuses_of_others_late() -> None:
    desk, nodes = crowd(20)
    peer = nodes[3]
    failed = desk.neighbours(peer)[1]
    member = desk.machine.streams[STREAM].members[peer]
    handled = Status(STREAM, NOW_MS, member.version[1], ())
    desk.join(EVE, OTHER_STREAM, epoch=NOW_MS + 10)
    assert reasons(desk.receive(peer, handled)) == []
    assert failed not in desk.neighbours(peer)


def test_settings_of_node_and_tracker_fit_together() -> None:
    # A tracker that forgets sooner than a node comes back would cut what still works.
    assert TrackerConfig().gone_ns > 2 * NodeConfig().redial_ns
    assert TrackerConfig().resend_ns < NodeConfig().open_timeout_ns


# Epochs


def test_a_node_that_obeyed_a_later_tracker_is_instructed_beyond_it() -> None:
    desk = Desk()
    desk.join(ALICE)
    later = NOW_MS + 1000
    order = instructions(desk.join(BOB, epoch=later, counter=77))[BOB]
    assert (order.epoch, order.counter) > (later, 77)
    assert instructions(desk.join(CAROL))[CAROL].epoch == order.epoch


def test_a_node_with_a_higher_counter_of_our_epoch_is_instructed_beyond_it() -> None:
    desk = Desk()
    order = instructions(desk.join(BOB, epoch=NOW_MS, counter=77))[BOB]
    assert (order.epoch, order.counter) > (NOW_MS, 77)


def test_a_member_that_comes_back_with_our_newest_instruction_begins_no_epoch() -> None:
    desk = Desk()
    desk.join(ALICE)
    order = instructions(desk.join(ALICE, epoch=NOW_MS, counter=desk.machine.counter))[ALICE]
    assert order.epoch == NOW_MS


def test_an_earlier_epoch_changes_nothing() -> None:
    desk = Desk()
    order = instructions(desk.join(BOB, epoch=NOW_MS - 1, counter=10**9))[BOB]
    assert (order.epoch, order.counter) == (NOW_MS, 1)


@pytest.mark.parametrize("epoch", [INT63_MAX, INT63_MAX - 1], ids=["highest", "last but one"])
def test_no_node_can_use_the_epochs_up(epoch: int) -> None:
    desk, nodes = crowd(10)
    desk.join(MALLORY, OTHER_STREAM, epoch=epoch)
    desk.join(MALLORY, OTHER_STREAM, epoch=INT63_MAX)
    assert desk.machine.epoch < NOW_MS + 400 * 24 * 3600 * 1000
    assert instructions(desk.join(EVE))
    desk.quiet()
    restarted = Desk()
    restarted.now_ns += 60 * S_NS
    for peer in nodes:  # a tracker that begins anew still gets through to all
        assert instructions(restarted.join(peer, epoch=desk.machine.epoch, counter=INT63_MAX))


# Sweeps


def test_a_sweep_is_quiet_where_nothing_is_to_be_done_and_comes_again() -> None:
    desk, _ = crowd(20)
    for _ in range(3):
        assert desk.fire("sweep") == [SetTimer("sweep", CONFIG.sweep_ns)]


def test_what_a_sweep_changes_is_instructed() -> None:
    desk, nodes = crowd(20)
    policy = desk.policies[STREAM]
    one, other = nodes[0], desk.neighbours(nodes[0])[0]
    policy._graph.cut(one, other)  # as a sweep finds it
    policy._graph.take_changes()
    told = instructions(desk.fire("sweep"))
    assert {one, other} <= set(told)
    assert len(desk.neighbours(one)) == CONFIG.degree
