"""Round trips to members that are no neighbours: who is measured, what counts, who is told."""

from __future__ import annotations

import pytest

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, SetTimer
from shoal.kernel.inputs import LinkOpened
from shoal.kernel.records import RttMeasured
from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.protocols.streams.config import RTT_US_MAX, NodeConfig
from shoal.protocols.streams.member.ping_meter import PINGS, PROBE
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Ping, Pong, Probe, Probed, Rtt
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    MALLORY,
    ME,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
    contact,
    link_stream,
    linked_node,
    of_kind,
    reasons,
    sent,
)

CONFIG = NodeConfig()
TIMER = (PROBE, STREAM)

Node = Bench[StreamNode]


@pytest.fixture
def bench() -> Node:
    """A node with one neighbour, Alice, in each of two streams."""
    bench = linked_node(ALICE)
    bench.command(JoinStream(OTHER_STREAM))
    link_stream(bench, OTHER_STREAM, ALICE)
    return bench


def ask(bench: Node, *peers: NodeId, stream: StreamId = STREAM) -> list[Effect]:
    return bench.receive(TRACKER, Probe(stream, tuple(contact(peer) for peer in peers)))


def ping_of(effects: list[Effect], peer: NodeId) -> Ping:
    [ping] = [message for message, peers in sent(effects, Ping) if peers == (peer,)]
    assert isinstance(ping, Ping)
    return ping


def answer(bench: Node, effects: list[Effect], peer: NodeId, after_ms: float) -> list[Effect]:
    """A peer answers the ping among some effects."""
    bench.now_ns += round(after_ms * MS_NS)
    return bench.receive(peer, Pong(ping_of(effects, peer).nonce))


def measure(bench: Node, peer: NodeId, *each_ms: float) -> list[Effect]:
    """The link to a peer comes up, and it answers so many pings."""
    effects = bench.link_up(peer)
    for after_ms in each_ms:
        effects = answer(bench, effects, peer, after_ms)
    return effects


def told(effects: list[Effect]) -> list[tuple[Probed, tuple[NodeId, ...]]]:
    return sent(effects, Probed)


def probes(bench: Node) -> set[NodeId]:
    """Whom links are held to for this."""
    return {peer for peer, purpose in bench.claims if purpose == PROBE}


# The ordinary case


def test_whoever_is_named_is_dialled_and_pinged_once_the_link_is_up(bench: Node) -> None:
    assert ask(bench, BOB, CAROL) == [
        OpenLink(contact(BOB), PROBE),
        OpenLink(contact(CAROL), PROBE),
        SetTimer(TIMER, CONFIG.probe_ns),
    ]
    assert [peers for _, peers in sent(bench.link_up(BOB))] == [(BOB,)]


def test_the_shortest_of_three_round_trips_counts(bench: Node) -> None:
    ask(bench, BOB)
    assert PINGS == 3
    effects = measure(bench, BOB, 70, 40, 55)
    assert effects[0] == RttMeasured(BOB, 55_000)
    assert told(effects) == [(Probed(STREAM, (Rtt(BOB, 40_000),)), (TRACKER,))]
    assert CloseLink(BOB, PROBE) in effects
    assert TIMER not in bench.timers
    assert probes(bench) == set()


def test_each_ping_is_new(bench: Node) -> None:
    ask(bench, BOB)
    first = bench.link_up(BOB)
    second = answer(bench, first, BOB, 10)
    assert ping_of(first, BOB) != ping_of(second, BOB)
    assert reasons(bench.receive(BOB, Pong(ping_of(first, BOB).nonce))) == ["unasked-pong"]
    assert told(answer(bench, answer(bench, second, BOB, 10), BOB, 10))


def test_the_tracker_gets_one_answer_when_all_are_measured(bench: Node) -> None:
    ask(bench, BOB, CAROL, DAVE)
    assert told(measure(bench, CAROL, 20, 20, 20)) == []
    assert told(measure(bench, BOB, 10, 10, 10)) == []
    rtts = (Rtt(CAROL, 20_000), Rtt(BOB, 10_000), Rtt(DAVE, 30_000))
    assert told(measure(bench, DAVE, 30, 30, 30)) == [(Probed(STREAM, rtts), (TRACKER,))]


def test_a_neighbour_is_measured_over_the_link_that_is_there(bench: Node) -> None:
    ask(bench, ALICE)
    assert told(measure(bench, ALICE, 5, 5, 5)) == [
        (Probed(STREAM, (Rtt(ALICE, 5000),)), (TRACKER,))
    ]
    assert (ALICE, STREAM) in bench.claims, "and stays a neighbour"


def test_nobody_measures_itself_and_nobody_is_named_twice(bench: Node) -> None:
    assert of_kind(ask(bench, ME, BOB, BOB), OpenLink) == [OpenLink(contact(BOB), PROBE)]
    assert len(told(measure(bench, BOB, 10, 10, 10))[0][0].rtts) == 1


def test_a_round_trip_that_took_too_long_fits_the_wire(bench: Node) -> None:
    patient = linked_node(ALICE, config=NodeConfig(probe_ns=1000 * S_NS))
    ask(patient, BOB)
    [(probed, _)] = told(measure(patient, BOB, 90_000, 90_000, 90_000))
    assert probed.rtts == (Rtt(BOB, RTT_US_MAX),)


# What goes wrong


def test_what_was_measured_in_time_is_told(bench: Node) -> None:
    ask(bench, BOB, CAROL, DAVE)
    measure(bench, BOB, 10, 10, 10)
    measure(bench, CAROL, 20)
    effects = bench.fire(TIMER)
    assert told(effects) == [(Probed(STREAM, (Rtt(BOB, 10_000),)), (TRACKER,))]
    assert of_kind(effects, CloseLink) == [CloseLink(CAROL, PROBE), CloseLink(DAVE, PROBE)]
    assert probes(bench) == set()


def test_nothing_measured_is_an_answer_too(bench: Node) -> None:
    ask(bench, BOB)
    assert told(bench.fire(TIMER)) == [(Probed(STREAM, ()), (TRACKER,))]


def test_who_cannot_be_reached_is_not_waited_for(bench: Node) -> None:
    ask(bench, BOB, CAROL)
    measure(bench, BOB, 10, 10, 10)
    effects = bench.link_down(CAROL)
    assert told(effects) == [(Probed(STREAM, (Rtt(BOB, 10_000),)), (TRACKER,))]
    assert TIMER not in bench.timers


def test_a_link_that_breaks_midway_tells_what_was_measured(bench: Node) -> None:
    ask(bench, BOB)
    measure(bench, BOB, 30, 20)
    assert told(bench.link_down(BOB)) == [(Probed(STREAM, (Rtt(BOB, 20_000),)), (TRACKER,))]


def test_a_link_that_comes_up_when_nobody_wants_to_know_is_let_go(bench: Node) -> None:
    assert bench.feed(LinkOpened(BOB, PROBE)) == [CloseLink(BOB, PROBE)]
    ask(bench, BOB)
    bench.fire(TIMER)
    assert bench.feed(LinkOpened(BOB, PROBE)) == [CloseLink(BOB, PROBE)]


def test_pongs_that_answer_no_ping_change_nothing(bench: Node) -> None:
    ask(bench, BOB)
    assert reasons(bench.receive(BOB, Pong(0))) == ["unasked-pong"], "before it was asked"
    effects = bench.link_up(BOB)
    ping = ping_of(effects, BOB)
    assert reasons(bench.receive(BOB, Pong(ping.nonce + 1))) == ["unasked-pong"]
    assert reasons(bench.receive(MALLORY, Pong(ping.nonce))) == ["unasked-pong"]
    for _ in range(PINGS):
        effects = answer(bench, effects, BOB, 10)
    assert told(effects) == [(Probed(STREAM, (Rtt(BOB, 10_000),)), (TRACKER,))]
    assert reasons(bench.receive(BOB, Pong(ping.nonce))) == ["unasked-pong"], "and after"


def test_only_the_streams_tracker_may_ask(bench: Node) -> None:
    probe = Probe(STREAM, (contact(BOB),))
    for stranger in (ALICE, MALLORY):
        effects = bench.receive(stranger, probe)
        assert reasons(effects) == ["not-my-tracker"]
        assert len(effects) == 1
    unknown = bench.receive(TRACKER, Probe(StreamId("not/joined"), (contact(BOB),)))
    assert reasons(unknown) == ["not-my-tracker"]
    assert probes(bench) == set()


# Several requests


def test_a_stream_that_is_left_wants_to_know_nothing(bench: Node) -> None:
    ask(bench, BOB, CAROL)
    measure(bench, BOB, 10)
    effects = bench.command(LeaveStream(STREAM))
    assert CancelTimer(TIMER) in effects
    assert {CloseLink(BOB, PROBE), CloseLink(CAROL, PROBE)} <= set(of_kind(effects, CloseLink))
    assert probes(bench) == set()
    assert TIMER not in bench.timers
    assert told(bench.advance(20 * S_NS)) == []


def test_two_streams_share_what_is_measured(bench: Node) -> None:
    ask(bench, BOB, CAROL)
    effects = ask(bench, BOB, DAVE, stream=OTHER_STREAM)
    assert of_kind(effects, OpenLink) == [OpenLink(contact(DAVE), PROBE)], "Bob is dialled once"
    measure(bench, CAROL, 20, 20, 20)
    measure(bench, DAVE, 30, 30, 30)
    assert told(measure(bench, BOB, 10, 10, 10)) == [
        (Probed(STREAM, (Rtt(CAROL, 20_000), Rtt(BOB, 10_000))), (TRACKER,)),
        (Probed(OTHER_STREAM, (Rtt(DAVE, 30_000), Rtt(BOB, 10_000))), (TRACKER,)),
    ]


def test_one_stream_that_is_left_takes_nothing_from_the_other(bench: Node) -> None:
    ask(bench, BOB)
    ask(bench, BOB, stream=OTHER_STREAM)
    assert CloseLink(BOB, PROBE) not in bench.command(LeaveStream(STREAM))
    assert told(measure(bench, BOB, 10, 10, 10)) == [
        (Probed(OTHER_STREAM, (Rtt(BOB, 10_000),)), (TRACKER,))
    ]


def test_a_new_question_takes_the_place_of_the_last(bench: Node) -> None:
    ask(bench, BOB, CAROL)
    measure(bench, BOB, 10, 10, 10)
    bench.advance(CONFIG.probe_ns - S_NS)
    effects = ask(bench, DAVE)
    assert of_kind(effects, CloseLink) == [CloseLink(CAROL, PROBE)]
    assert bench.timers[TIMER] == bench.now_ns + CONFIG.probe_ns
    assert probes(bench) == {DAVE}
    assert told(measure(bench, DAVE, 30, 30, 30)) == [
        (Probed(STREAM, (Rtt(DAVE, 30_000),)), (TRACKER,))
    ]


def test_the_same_question_again_begins_anew(bench: Node) -> None:
    ask(bench, BOB)
    before = bench.link_up(BOB)
    ask(bench, BOB)
    assert reasons(answer(bench, before, BOB, 1)) == ["unasked-pong"]
    assert told(measure(bench, BOB, 10, 10, 10)) == [
        (Probed(STREAM, (Rtt(BOB, 10_000),)), (TRACKER,))
    ]
