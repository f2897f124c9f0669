"""The node machine: streams that are joined, ready and left, and commands that are refused."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import STREAM_ID_CHARS_MAX, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import CancelTimer, CloseLink, Notify, OpenLink, Send, SetTimer
from shoal.kernel.inputs import CommandIssued, Started
from shoal.kernel.records import Delivered, Rejected
from shoal.protocols.streams.commands import (
    JoinStream,
    LeaveStream,
    MessageArrived,
    MessageTaken,
    StreamReady,
)
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Close, Join, Leave, Left, Open
from tests.support.streams import (
    ALICE,
    BOB,
    HOME_STREAM,
    ME,
    NOW_MS,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    active,
    body_of,
    contact,
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

LEAVE = ("leave", STREAM, TRACKER)


def test_a_node_dials_its_tracker_when_it_has_something_to_say() -> None:
    # A link that only one side has a use for would be closed by the other, again and again.
    bench = new_node()
    (ping,) = bench.feed(Started(contact(ME).addresses))
    assert isinstance(ping, SetTimer)
    assert 0 <= ping.delay_ns < CONFIG.ping_ns  # thousands of nodes do not ping at once
    assert of_kind(bench.command(JoinStream(STREAM)), OpenLink) == [DIALLED]
    assert bench.command(JoinStream(OTHER_STREAM)) == []


def test_a_node_in_no_stream_parts_with_its_tracker() -> None:
    bench = linked_node(ALICE)
    bench.command(LeaveStream(STREAM))
    bench.command(LeaveStream(HOME_STREAM))
    assert of_kind(bench.receive(TRACKER, Left(STREAM)), CloseLink) == []
    closed = bench.receive(TRACKER, Left(HOME_STREAM))
    assert CloseLink(TRACKER, TRACKER_PURPOSE) in closed
    assert DIALLED in bench.command(JoinStream(STREAM))


def test_a_join_is_said_and_said_again_until_an_instruction_comes() -> None:
    bench = ready_node()
    said = [
        Send(join_message(), (TRACKER,)),
        SetTimer(("join", STREAM), CONFIG.join_retry_ns),
    ]
    assert bench.command(JoinStream(STREAM)) == said
    assert bench.fire(("join", STREAM)) == said
    assert bench.fire(("join", STREAM)) == said
    bench.receive(TRACKER, instruction(1))
    assert ("join", STREAM) not in bench.timers


def test_a_join_waits_for_the_tracker() -> None:
    bench = new_node()
    bench.feed(Started(contact(ME).addresses))
    assert sent(bench.command(JoinStream(STREAM))) == []
    assert sent(bench.link_up(TRACKER)) == [(join_message(), (TRACKER,))]


def test_a_join_while_the_tracker_is_away_waits_too() -> None:
    bench = ready_node()
    bench.link_down(TRACKER)
    assert bench.command(JoinStream(STREAM)) == []
    bench.fire(DIAL)
    assert (join_message(), (TRACKER,)) in sent(bench.link_up(TRACKER))


def test_a_node_is_ready_once_its_first_instruction_is_handled() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    assert of_kind(bench.receive(TRACKER, instruction(1, ALICE)), Notify) == []
    bench.link_up(ALICE)
    assert of_kind(bench.receive(ALICE, Open(STREAM, True)), Notify) == [
        Notify(StreamReady(STREAM))
    ]
    again = bench.receive(TRACKER, instruction(2, ALICE))
    assert of_kind(again, Notify) == []


def test_joining_again_changes_the_subscription_only() -> None:
    bench = linked_node(ALICE, subscribe=False)
    assert not bench.machine.streams[STREAM].channel.subscribed
    assert bench.command(JoinStream(STREAM, subscribe=True)) == [Notify(StreamReady(STREAM))]
    assert bench.machine.streams[STREAM].channel.subscribed
    assert active(bench) == (ALICE,)


def test_whoever_subscribes_later_is_given_what_comes_from_then_on() -> None:
    bench = linked_node(ALICE, subscribe=False)
    for number in range(4):
        if number == 2:
            bench.command(JoinStream(STREAM))
        bench.now_ns += S_NS
        at_ms = bench.now_ns // MS_NS
        previous = Position(at_ms - 1000, 0) if number else None
        body = body_of(message_id(timestamp_ms=at_ms), previous=previous)
        given = of_kind(bench.flood(ALICE, flood_of(body)), Delivered)
        assert len(given) == (number >= 2), number


@pytest.mark.parametrize("joins", [(False,), (False, True), (True, False)])
def test_each_who_subscribes_is_told_in_the_order_that_it_wants(joins: tuple[bool, ...]) -> None:
    """Whoever joined first does not decide for the others."""
    bench = linked_node(ALICE, subscribe=False)
    for ordered in joins:
        bench.command(JoinStream(STREAM, ordered=ordered))
    ids = [message_id(timestamp_ms=NOW_MS + number) for number in range(3)]
    chain = [
        body_of(id, previous=Position(id.timestamp_ms - 1, 0) if number else None)
        for number, id in enumerate(ids)
    ]
    came = [chain[0], chain[2], chain[1]]
    effects = [effect for body in came for effect in bench.flood(ALICE, flood_of(body))]
    told = [effect.event for effect in of_kind(effects, Notify)]
    taken = [event.message.id for event in told if type(event) is MessageTaken]
    arrived = [event.message.id for event in told if type(event) is MessageArrived]
    assert taken == [body.id for body in came]
    assert arrived == (ids if True in joins else [])
    assert len(of_kind(effects, Delivered)) == 3, "once to this node"


def test_a_gap_shows_also_if_our_clock_is_ahead() -> None:
    bench = linked_node(ALICE)
    begun_ms = NOW_MS - 10_000  # it is ten seconds earlier with Carol
    first = body_of(message_id(timestamp_ms=begun_ms))
    third = body_of(message_id(timestamp_ms=begun_ms + 200), previous=Position(begun_ms + 100, 0))
    effects = [*bench.flood(ALICE, flood_of(first)), *bench.flood(ALICE, flood_of(third))]
    effects += bench.advance(60 * S_NS)
    given = [e.event for e in of_kind(effects, Notify) if type(e.event) is MessageArrived]
    assert [event.gap_before for event in given] == [False, True]


def test_joining_again_before_it_is_ready_waits() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    assert bench.command(JoinStream(STREAM)) == []


def test_a_leave_parts_with_neighbours_and_is_said_until_it_is_heard() -> None:
    bench = linked_node(ALICE, BOB)
    effects = bench.command(LeaveStream(STREAM))
    assert sent(effects) == [
        (Close(STREAM, False), (ALICE, BOB)),
        (Leave(STREAM), (TRACKER,)),
    ]
    assert of_kind(effects, CloseLink) == [CloseLink(ALICE, STREAM), CloseLink(BOB, STREAM)]
    assert sent(bench.fire(LEAVE)) == [(Leave(STREAM), (TRACKER,))]
    assert bench.receive(TRACKER, Left(STREAM)) == [CancelTimer(LEAVE)]
    assert [key for key in bench.timers if isinstance(key, tuple) and STREAM in key] == []


def test_a_leave_before_the_first_instruction_ends_the_join() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    assert sent(bench.command(LeaveStream(STREAM))) == [(Leave(STREAM), (TRACKER,))]
    assert ("join", STREAM) not in bench.timers


def test_a_leave_is_not_said_to_nobody() -> None:
    bench = linked_node(ALICE)
    bench.command(LeaveStream(STREAM))
    bench.link_down(TRACKER)
    assert sent(bench.fire(LEAVE)) == []


def test_a_stream_joined_again_is_not_left_by_an_old_timer() -> None:
    bench = linked_node(ALICE)
    bench.command(LeaveStream(STREAM))
    bench.command(JoinStream(STREAM))
    if LEAVE in bench.timers:
        assert sent(bench.fire(LEAVE), Leave) == []
    assert STREAM in bench.machine.streams


def test_after_a_leave_nothing_of_the_stream_is_taken() -> None:
    bench = linked_node(ALICE)
    bench.command(LeaveStream(STREAM))
    flood = flood_of(body_of(message_id()))
    assert bench.receive(ALICE, flood) == [Rejected(ALICE, "not-my-stream")]
    assert bench.receive(ALICE, Open(STREAM, False)) == [Rejected(ALICE, "not-my-stream")]
    assert bench.receive(ALICE, Close(STREAM, True)) == []
    assert bench.link_down(ALICE) == []


def test_a_leave_and_a_join_later_begin_anew() -> None:
    bench = linked_node(ALICE)
    bench.command(LeaveStream(STREAM))
    bench.receive(TRACKER, Left(STREAM))
    assert sent(bench.command(JoinStream(STREAM))) == [(join_message(), (TRACKER,))]
    link_stream(bench, STREAM, BOB)
    assert active(bench) == (BOB,)


def test_a_leave_of_a_stream_never_joined_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to leave"):
        ready_node().command(LeaveStream(STREAM))


@pytest.mark.parametrize("stream", ["", "s" * (STREAM_ID_CHARS_MAX + 1)], ids=["empty", "long"])
def test_a_name_that_no_message_can_carry_is_refused(stream: str) -> None:
    with pytest.raises(UsageError):
        ready_node().machine.handle(CommandIssued(JoinStream(StreamId(stream))), NOW_NS)


@pytest.mark.parametrize("stream", ["s", "s" * STREAM_ID_CHARS_MAX], ids=["short", "long"])
def test_a_name_within_the_limits_is_joined(stream: str) -> None:
    assert sent(ready_node().command(JoinStream(StreamId(stream))), Join)


def test_a_command_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="no command"):
        ready_node().command("join")
