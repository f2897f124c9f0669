"""Signals through a tracker: for pairs that it made, so many, so long, and for nobody else."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.kernel.effects import Effect, Notify, Send
from shoal.kernel.inputs import Started
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Join, Leave, Probe, Signal, Signalled
from shoal.protocols.streams.signalling import (
    ROUTES_MAX,
    SIGNALS_BURST,
    SIGNALS_REFILL_NS,
    SendSignal,
    SignalArrived,
    Signaller,
    SignalRelay,
)
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    MALLORY,
    ME,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
    contact,
    linked_node,
    node,
)

MEMBERS = [node(100 + number) for number in range(12)]


class Desk:
    """A tracker, and the relay beside it."""

    def __init__(self, *members: NodeId, degree: int = 4) -> None:
        self.tracker = Bench(Tracker(lambda stream: RandomPolicy(degree, Random(1))))
        self.tracker.feed(Started())
        for member in members:
            self.join(member)
        self.relay = Bench(SignalRelay(self.tracker.machine.streams))

    def join(self, member: NodeId) -> None:
        self.tracker.receive(member, Join(STREAM, contact(member), 0, 0, ()))

    def neighbours(self, member: NodeId) -> tuple[NodeId, ...]:
        return tuple(self.tracker.machine.streams[STREAM].policy.neighbours(member))

    def signal(self, sender: NodeId, receiver: NodeId, stream: StreamId = STREAM) -> list[Effect]:
        return self.relay.receive(sender, Signal(stream, receiver, b"hello"))


def passed_on(sender: NodeId, receiver: NodeId) -> list[Effect]:
    return [Send(Signalled(STREAM, sender, b"hello"), (receiver,))]


def refused(sender: NodeId, reason: str = "not-instructed") -> list[Effect]:
    return [Rejected(sender, reason)]


# At the tracker


@given(st.sampled_from(MEMBERS), st.sampled_from(MEMBERS))
def test_signals_go_within_instructed_pairs_and_nowhere_else(one: NodeId, other: NodeId) -> None:
    desk = Desk(*MEMBERS)
    instructed = other in desk.neighbours(one)
    expected = passed_on(one, other) if instructed else refused(one)
    assert desk.signal(one, other) == expected
    assert instructed == (one in desk.neighbours(other))


def test_who_is_not_in_the_stream_says_nothing_to_those_who_are() -> None:
    desk = Desk(ALICE, BOB)
    assert desk.signal(ALICE, BOB) == passed_on(ALICE, BOB)
    assert desk.signal(MALLORY, BOB) == refused(MALLORY)
    assert desk.signal(ALICE, MALLORY) == refused(ALICE)
    assert desk.signal(ALICE, BOB, OTHER_STREAM) == refused(ALICE)
    assert desk.signal(ALICE, ALICE) == refused(ALICE)


def test_who_has_left_is_no_pair_any_more() -> None:
    desk = Desk(ALICE, BOB)
    desk.tracker.receive(BOB, Leave(STREAM))
    assert desk.signal(ALICE, BOB) == refused(ALICE)
    assert desk.signal(BOB, ALICE) == refused(BOB)


def test_who_is_to_be_measured_may_be_called_and_answer() -> None:
    desk = Desk(*MEMBERS)
    one = MEMBERS[0]
    other = next(m for m in MEMBERS[1:] if m not in desk.neighbours(one))
    assert desk.signal(one, other) == refused(one)
    state = desk.tracker.machine.streams[STREAM]
    state.ask_probes(STREAM, ((one, (other,)),))
    assert desk.signal(one, other) == passed_on(one, other)
    assert desk.signal(other, one) == passed_on(other, one)


def test_a_pair_may_say_so_much_and_others_do_not_suffer() -> None:
    desk = Desk(ALICE, BOB, CAROL)
    for _ in range(SIGNALS_BURST):
        assert desk.signal(ALICE, BOB) == passed_on(ALICE, BOB)
    assert desk.signal(ALICE, BOB) == refused(ALICE, "too-many-signals")
    assert desk.signal(ALICE, CAROL) == passed_on(ALICE, CAROL)
    assert desk.signal(BOB, ALICE) == passed_on(BOB, ALICE)
    desk.relay.now_ns += SIGNALS_REFILL_NS
    assert desk.signal(ALICE, BOB) == passed_on(ALICE, BOB)


# At a node


def signaller(*neighbours: NodeId) -> tuple[Bench[StreamNode], Bench[Signaller]]:
    streams = linked_node(*neighbours)
    return streams, Bench(Signaller(streams.machine))


def test_a_neighbour_is_reached_through_the_tracker_of_the_stream() -> None:
    _, bench = signaller(ALICE)
    assert bench.machine.route(ALICE) == (STREAM, TRACKER)
    assert bench.command(SendSignal(ALICE, b"x")) == [Send(Signal(STREAM, ALICE, b"x"), (TRACKER,))]


def test_nobody_else_is_reached() -> None:
    _, bench = signaller(ALICE)
    assert bench.machine.route(BOB) is None
    assert bench.command(SendSignal(BOB, b"x")) == []


def test_who_calls_first_is_answered_though_we_were_not_told_of_it() -> None:
    streams, bench = signaller(ALICE)
    told = bench.receive(TRACKER, Signalled(STREAM, BOB, b"x"))
    assert told == [Notify(SignalArrived(BOB, b"x"))]
    assert bench.machine.route(BOB) == (STREAM, TRACKER)
    streams.command(LeaveStream(STREAM))
    assert bench.machine.route(BOB) is None


def test_who_is_being_measured_is_reached() -> None:
    streams, bench = signaller(ALICE)
    streams.receive(TRACKER, Probe(STREAM, (contact(CAROL),)))
    assert bench.machine.route(CAROL) == (STREAM, TRACKER)


def test_signals_are_taken_from_the_tracker_of_their_stream_only() -> None:
    streams, bench = signaller(ALICE)
    assert bench.receive(ALICE, Signalled(STREAM, BOB, b"x")) == refused(ALICE, "not-my-tracker")
    unknown = Signalled(OTHER_STREAM, BOB, b"x")
    assert bench.receive(TRACKER, unknown) == refused(TRACKER, "not-my-tracker")
    mirror = Signalled(STREAM, ME, b"x")
    assert bench.receive(TRACKER, mirror) == refused(TRACKER, "signals-from-myself")
    streams.command(JoinStream(OTHER_STREAM))
    assert bench.receive(TRACKER, unknown) == [Notify(SignalArrived(BOB, b"x"))]


def test_only_so_many_callers_are_remembered() -> None:
    _, bench = signaller(ALICE)
    callers = [node(1000 + number) for number in range(ROUTES_MAX + 5)]
    for caller in callers:
        bench.receive(TRACKER, Signalled(STREAM, caller, b"x"))
    assert bench.machine.route(callers[0]) is None
    assert bench.machine.route(callers[-1]) == (STREAM, TRACKER)


def test_another_command_is_a_mistake() -> None:
    _, bench = signaller(ALICE)
    with pytest.raises(UsageError, match="no command of a signaller"):
        bench.command(JoinStream(STREAM))
