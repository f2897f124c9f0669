"""A node and its tracker: whose instructions count, and a link that is lost and made again."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.kernel.effects import Send
from shoal.kernel.inputs import Started
from shoal.kernel.records import Delivered, Rejected
from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.protocols.streams.config import DEGREE_MAX, NodeConfig
from shoal.protocols.streams.messages import Flood, Join, Leave, Left, Open
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    MALLORY,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    active,
    body_of,
    flood_of,
    instruction,
    link_stream,
    linked_node,
    message_id,
    new_node,
    of_kind,
    ready_node,
    sent,
)
from tests.support.tracker_link import DIAL, DIALLED, TRACKER_PURPOSE, join_message

CONFIG = NodeConfig()


# Instructions


def test_an_instruction_from_anybody_else_is_refused() -> None:
    bench = linked_node(ALICE)
    for order in (instruction(99, MALLORY), Left(STREAM)):
        for stranger in (ALICE, MALLORY):
            assert bench.receive(stranger, order) == [Rejected(stranger, "not-my-tracker")]
    assert active(bench) == (ALICE,)
    assert ("join", STREAM) not in bench.timers


def test_an_instruction_for_a_stream_we_left_is_answered_by_leave() -> None:
    bench = linked_node(ALICE)
    bench.command(LeaveStream(STREAM))
    assert bench.receive(TRACKER, instruction(2, BOB)) == [Send(Leave(STREAM), (TRACKER,))]
    assert bench.receive(TRACKER, instruction(1, stream=OTHER_STREAM)) == [
        Send(Leave(OTHER_STREAM), (TRACKER,))
    ]


def test_a_tracker_that_forgot_us_is_told_again() -> None:
    bench = linked_node(ALICE)
    assert sent(bench.receive(TRACKER, Left(STREAM))) == [
        (join_message(epoch=0, counter=0, active=(ALICE,)), (TRACKER,))
    ]
    assert active(bench) == (ALICE,)  # data flows on
    bench.receive(TRACKER, instruction(1, ALICE, BOB))  # it counts from the beginning
    assert BOB in bench.machine.streams[STREAM].overlay.neighbours


def test_one_link_serves_several_streams() -> None:
    bench = linked_node(ALICE)
    bench.command(JoinStream(OTHER_STREAM))
    link_stream(bench, OTHER_STREAM, ALICE)
    bench.command(LeaveStream(STREAM))
    assert active(bench, OTHER_STREAM) == (ALICE,)
    assert [claim for claim in bench.claims if claim[0] == ALICE] == [(ALICE, OTHER_STREAM)]


def test_no_name_of_a_stream_is_taken_for_the_tracker_link() -> None:
    with pytest.raises(UsageError):
        ready_node().command(JoinStream(StreamId(TRACKER_PURPOSE)))


# The tracker link


def test_a_lost_tracker_is_dialled_again_soon_then_every_so_often_and_joined_again() -> None:
    bench = linked_node(ALICE)
    bench.link_down(TRACKER)
    wait_ns = bench.timers[DIAL] - bench.now_ns
    assert CONFIG.redial_ns <= wait_ns < 2 * CONFIG.redial_ns
    assert DIALLED in bench.fire(DIAL)
    bench.link_down(TRACKER)
    for _ in range(5):
        wait_ns = bench.timers["seek"] - bench.now_ns
        assert abs(wait_ns - CONFIG.seek_ns) <= CONFIG.seek_ns / 4
        assert DIALLED in bench.fire("seek")
        bench.link_down(TRACKER)
    assert active(bench) == (ALICE,)
    bench.fire("seek")
    joins = sent(bench.link_up(TRACKER))
    assert (join_message(epoch=1, counter=1, active=(ALICE,)), (TRACKER,)) in joins
    bench.fire("seek")
    assert "seek" not in bench.timers  # it had come back
    bench.link_down(TRACKER)
    assert bench.timers[DIAL] - bench.now_ns < 2 * CONFIG.redial_ns


def test_a_tracker_that_cannot_be_reached_at_first_is_dialled_again() -> None:
    bench = new_node()
    bench.feed(Started())
    bench.command(JoinStream(STREAM))
    bench.link_down(TRACKER)
    assert bench.timers["seek"] - bench.now_ns <= CONFIG.seek_ns * 5 // 4
    assert DIALLED in bench.fire("seek")
    assert sent(bench.link_up(TRACKER), Join)


def test_a_join_that_was_lost_after_a_reconnect_is_said_again() -> None:
    bench = linked_node(ALICE)
    bench.link_down(TRACKER)
    bench.fire(DIAL)
    bench.link_up(TRACKER)
    assert sent(bench.fire(("join", STREAM)), Join)
    bench.receive(TRACKER, instruction(7, ALICE))
    assert ("join", STREAM) not in bench.timers


def test_a_leave_while_the_tracker_is_away_is_said_when_it_is_back() -> None:
    # The tracker keeps a place for whoever comes back soon, in all its streams.
    bench = linked_node(ALICE)
    bench.link_down(TRACKER)
    bench.command(LeaveStream(STREAM))
    bench.fire(DIAL)
    assert (Leave(STREAM), (TRACKER,)) in sent(bench.link_up(TRACKER))


def test_a_leave_that_the_tracker_heard_is_not_said_again() -> None:
    bench = linked_node(ALICE)
    bench.command(LeaveStream(STREAM))
    bench.receive(TRACKER, Left(STREAM))
    bench.link_down(TRACKER)
    bench.fire(DIAL)
    assert sent(bench.link_up(TRACKER), Leave) == []


def test_only_so_many_leaves_wait_for_the_tracker() -> None:
    bench = ready_node(NodeConfig(leaving_max=3))
    streams = [StreamId(f"s{number}") for number in range(5)]
    for stream in streams:
        bench.command(JoinStream(stream))
    bench.link_down(TRACKER)
    for stream in streams:
        bench.command(LeaveStream(stream))
    bench.fire(DIAL)
    left = [message.stream for message, _ in sent(bench.link_up(TRACKER), Leave)]
    assert left == ["s2", "s3", "s4"]


def test_a_join_fits_the_wire_while_old_links_wait_for_the_new() -> None:
    olds = [NodeId((1000 + n).to_bytes(20, "big")) for n in range(DEGREE_MAX)]
    news = [NodeId((2000 + n).to_bytes(20, "big")) for n in range(DEGREE_MAX)]
    bench = linked_node(*olds)
    bench.receive(TRACKER, instruction(2, *news))
    for peer in news[:-1]:
        bench.link_up(peer)
        bench.receive(peer, Open(STREAM, True))
    bench.link_down(TRACKER)
    bench.fire(DIAL)
    assert sent(bench.link_up(TRACKER), Join)


def test_data_flows_on_while_the_tracker_is_away() -> None:
    bench = linked_node(ALICE, BOB)
    bench.link_down(TRACKER)
    effects = bench.flood(ALICE, flood_of(body_of(message_id())))
    assert sent(effects, Flood)[0][1] == (BOB,)
    assert of_kind(effects, Delivered)


def test_two_nodes_do_not_come_back_at_the_same_moment() -> None:
    waits_ns = set()
    for id in (ALICE, BOB, CAROL, DAVE):
        bench = ready_node(id=id)
        bench.link_down(TRACKER)
        waits_ns.add(bench.timers[DIAL])
    assert len(waits_ns) == 4
