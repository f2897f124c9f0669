"""Neighbours that are lost, and round trips to those that are there."""

from __future__ import annotations

from shoal.base.units import MS_NS
from shoal.kernel.effects import OpenLink, Send
from shoal.kernel.records import RttMeasured
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.ping_meter import ANSWER_NS
from shoal.protocols.streams.messages import Open, Ping, Pong, Report, Status
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    EVE,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    active,
    contact,
    instruction,
    link_stream,
    linked_node,
    of_kind,
    ready_node,
    reasons,
    sent,
)

CONFIG = NodeConfig()


# Neighbours that are lost


def test_a_lost_neighbour_is_reported_once_and_tried_again() -> None:
    bench = linked_node(ALICE, BOB)
    bench.link_down(ALICE)
    assert active(bench) == (BOB,)
    [(report, peers)] = sent(bench.fire(("report", STREAM)))
    assert (report.lost, report.accused, peers) == ((ALICE,), (), (TRACKER,))
    [(report, _)] = sent(bench.fire(("report", STREAM)))
    assert report.lost == ()
    assert OpenLink(contact(ALICE), STREAM) in bench.fire(("retry", STREAM))


def test_a_neighbour_that_never_came_up_is_missing_from_the_status_not_lost() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.receive(TRACKER, instruction(1, ALICE))
    effects = bench.link_down(ALICE)
    assert sent(effects, Status) == [(Status(STREAM, 1, 1, ()), (TRACKER,))]
    assert bench.timers[("report", STREAM)] == bench.now_ns + CONFIG.report_first_ns


# Round trips


def test_a_new_neighbour_is_pinged_and_its_answer_reported() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.receive(TRACKER, instruction(1, ALICE))
    bench.link_up(ALICE)
    [(ping, peers)] = sent(bench.receive(ALICE, Open(STREAM, True)), Ping)
    assert peers == (ALICE,)
    bench.now_ns += 3 * MS_NS
    assert bench.receive(ALICE, Pong(ping.nonce)) == [RttMeasured(ALICE, 3000)]
    [(report, _)] = sent(bench.fire(("report", STREAM)), Report)
    assert [(rtt.peer, rtt.rtt_us) for rtt in report.rtts] == [(ALICE, 3000)]


def test_every_neighbour_is_pinged_once_however_many_streams_are_shared() -> None:
    bench = linked_node(ALICE, BOB)
    bench.command(JoinStream(OTHER_STREAM))
    link_stream(bench, OTHER_STREAM, BOB, CAROL)
    bench.now_ns += ANSWER_NS  # they were asked when their links came up, and said nothing
    assert [peers for _, peers in sent(bench.fire("ping"), Ping)] == [(ALICE, BOB, CAROL)]


def test_a_neighbour_whose_round_trip_is_known_is_not_asked_at_once() -> None:
    bench = linked_node(ALICE)
    bench.now_ns += ANSWER_NS  # whatever was asked before does not count any more
    [(ping, _)] = sent(bench.fire("ping"), Ping)
    assert of_kind(bench.receive(ALICE, Pong(ping.nonce)), RttMeasured)
    bench.command(JoinStream(OTHER_STREAM))
    bench.receive(TRACKER, instruction(1, ALICE, stream=OTHER_STREAM))
    bench.link_up(ALICE)
    assert sent(bench.receive(ALICE, Open(OTHER_STREAM, True)), Ping) == []


def test_a_ping_is_answered_by_whoever_gets_it() -> None:
    assert ready_node().receive(EVE, Ping(7)) == [Send(Pong(7), (EVE,))]


def test_a_neighbour_asked_twice_is_not_blamed_for_answering_twice() -> None:
    bench = ready_node()
    for stream in (STREAM, OTHER_STREAM):
        bench.command(JoinStream(stream))
        bench.receive(TRACKER, instruction(1, ALICE, stream=stream))
    bench.link_up(ALICE)
    pings = []
    for stream in (STREAM, OTHER_STREAM):
        pings += sent(bench.receive(ALICE, Open(stream, True)), Ping)
    answers = [effect for ping, _ in pings for effect in bench.receive(ALICE, Pong(ping.nonce))]
    assert reasons(answers) == []
