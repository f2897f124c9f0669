"""The node machine: commands, the tracker link, what peers may say, and what they may not."""

from __future__ import annotations

import pytest

from shoal.base.errors import StreamUnavailable, UsageError
from shoal.base.ids import PARTITIONS_MAX, STREAM_ID_CHARS_MAX, MessageId, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS, US_NS
from shoal.identity.stream_message import CONTENT_BYTES_MAX, Position
from shoal.kernel.effects import CancelTimer, CloseLink, Notify, OpenLink, Send, SetTimer, Verify
from shoal.kernel.inputs import CommandIssued, Started, Verified
from shoal.kernel.records import (
    Delivered,
    Published,
    ReceivedAgain,
    ReceivedFirst,
    Rejected,
    RttMeasured,
    Sent,
)
from shoal.protocols.streams.commands import (
    JoinStream,
    LeaveStream,
    MessageArrived,
    Publish,
    PublishAccepted,
    StreamReady,
)
from shoal.protocols.streams.config import DEGREE_MAX, NodeConfig
from shoal.protocols.streams.messages import (
    Close,
    Flood,
    Heads,
    Join,
    Leave,
    Left,
    Open,
    Ping,
    Pong,
    Report,
    Status,
)
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.rtt import ANSWER_NS
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    HOME_STREAM,
    MALLORY,
    ME,
    NOW_MS,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
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
    reasons,
    sent,
)

CONFIG = NodeConfig()
TRACKER_PURPOSE = ""


def join_message(
    stream: StreamId = STREAM, epoch: int = 0, counter: int = 0, active: tuple[NodeId, ...] = ()
) -> Join:
    return Join(stream, contact(ME), epoch, counter, active)


def own_id(number: int = 0, timestamp_ms: int = NOW_MS, partition: int = 0) -> MessageId:
    return message_id(
        number, publisher=ME, chain="c1", timestamp_ms=timestamp_ms, partition=partition
    )


def active(bench: Bench[StreamNode], stream: StreamId = STREAM) -> tuple[NodeId, ...]:
    return bench.machine.streams[stream].channel.active


DIAL = ("dial", TRACKER)
LEAVE = ("leave", STREAM, TRACKER)
DIALLED = OpenLink(contact(TRACKER), TRACKER_PURPOSE)


# Joining and leaving


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


# Publishing


def test_a_published_message_goes_to_all_neighbours_and_to_the_local_subscriber() -> None:
    bench = linked_node(ALICE, BOB)
    effects = bench.command(Publish(STREAM, b"{}", partition=3), token="t")
    id = own_id(partition=3)
    (flood,) = [message for message, _ in sent(effects, Flood)]
    (arrived,) = [e.event for e in of_kind(effects, Notify) if isinstance(e.event, MessageArrived)]
    assert (arrived.message.id, arrived.hops) == (id, 0)
    assert effects == [
        Published(id, len(flood.signed)),
        Notify(PublishAccepted(id, "t", flood.signed)),
        Send(Flood(0, 0, NOW_NS // US_NS, arrived.message.signed), (ALICE, BOB)),
        Sent(id, 2),
        Notify(arrived),
        Delivered(id, 0, 0),
    ]


def test_a_publisher_that_does_not_subscribe_is_not_told() -> None:
    bench = linked_node(ALICE, subscribe=False)
    effects = bench.command(Publish(STREAM, b"{}"))
    assert [type(effect) for effect in effects] == [Published, Notify, Send, Sent]


def test_an_own_message_that_comes_back_is_a_duplicate() -> None:
    bench = linked_node(ALICE, BOB)
    [(flood, _)] = sent(bench.command(Publish(STREAM, b"{}")), Flood)
    assert bench.receive(BOB, flood) == [ReceivedAgain(own_id(), BOB)]


def test_messages_wait_until_the_first_instruction_is_settled() -> None:
    # Before, the neighbours may be newcomers too, and whoever they know is nobody.
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    effects = bench.command(Publish(STREAM, b"1"))
    assert [type(e) for e in effects] == [Published, Notify, Notify, Delivered]
    bench.receive(TRACKER, instruction(1, ALICE, BOB))
    bench.link_up(ALICE)
    assert sent(bench.receive(ALICE, Open(STREAM, False)), Flood) == []
    assert sent(bench.command(Publish(STREAM, b"2"))) == []
    bench.link_up(BOB)
    floods = sent(bench.receive(BOB, Open(STREAM, False)), Flood)
    assert [peers for _, peers in floods] == [(ALICE, BOB), (ALICE, BOB)]
    [(_, peers)] = sent(bench.command(Publish(STREAM, b"3")), Flood)
    assert peers == (ALICE, BOB)


def test_messages_wait_while_every_neighbour_is_down() -> None:
    bench = linked_node(ALICE)
    bench.link_down(ALICE)
    assert sent(bench.command(Publish(STREAM, b"1"))) == []
    bench.fire(("retry", STREAM))
    bench.link_up(ALICE)
    assert len(sent(bench.receive(ALICE, Open(STREAM, True)), Flood)) == 1  # said once
    assert sent(bench.receive(ALICE, Open(STREAM, True)), Flood) == []


def test_our_open_goes_before_the_messages_that_waited_for_it() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.command(Publish(STREAM, b"1"))
    bench.receive(ALICE, Open(STREAM, False))
    bench.receive(TRACKER, instruction(1, ALICE))
    kinds = [type(message) for message, peers in sent(bench.link_up(ALICE)) if ALICE in peers]
    assert kinds == [Open, Ping, Flood]


def test_a_node_alone_in_its_stream_publishes_to_itself() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.receive(TRACKER, instruction(1))
    effects = bench.command(Publish(STREAM, b"1"))
    assert [type(e) for e in effects] == [Published, Notify, Notify, Delivered]
    bench.receive(TRACKER, instruction(2, ALICE))
    bench.link_up(ALICE)
    assert sent(bench.receive(ALICE, Open(STREAM, True)), Flood) == []


def test_what_a_node_published_alone_is_there_for_those_who_come_later() -> None:
    # It may be alone at a tracker that the others have not reached.
    bench = linked_node()
    bench.command(Publish(STREAM, b"{}"))
    bench.now_ns += S_NS
    bench.receive(TRACKER, instruction(2, ALICE))
    bench.link_up(ALICE)
    [(heads, peers)] = sent(bench.receive(ALICE, Open(STREAM, True)), Heads)
    assert peers == (ALICE,)
    assert [chain[0] for chain, _ in heads.chains] == [ME]


def test_only_so_many_messages_wait() -> None:
    bench = ready_node(NodeConfig(held_messages_max=2))
    bench.command(JoinStream(STREAM))
    for _ in range(2):
        bench.command(Publish(STREAM, b"{}"))
    with pytest.raises(StreamUnavailable, match="2 messages wait"):
        bench.command(Publish(STREAM, b"{}"))
    bench.receive(TRACKER, instruction(1, ALICE))
    bench.link_up(ALICE)
    assert len(sent(bench.receive(ALICE, Open(STREAM, True)), Flood)) == 2
    [(flood, _)] = sent(bench.command(Publish(STREAM, b"{}")), Flood)
    assert b"{}" in flood.signed


def test_a_message_that_waited_too_long_is_not_sent_to_be_refused() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    bench.command(Publish(STREAM, b"{}"))
    bench.now_ns += CONFIG.freshness_ns + S_NS
    bench.receive(TRACKER, instruction(1, ALICE))
    bench.link_up(ALICE)
    assert sent(bench.receive(ALICE, Open(STREAM, True)), Flood) == []


@pytest.mark.parametrize(
    ("publish", "says"),
    [
        (Publish(OTHER_STREAM, b""), "join it first"),
        (Publish(STREAM, bytes(CONTENT_BYTES_MAX + 1)), "the limit is 524288"),
        (Publish(STREAM, b"", partition=PARTITIONS_MAX), "partition 100"),
        (Publish(STREAM, b"", partition=-1), "partition -1"),
        (Publish(STREAM, b"", content_type=256), "content type 256"),
    ],
)
def test_what_cannot_be_published_is_refused_and_leaves_no_trace(
    publish: Publish, says: str
) -> None:
    bench = linked_node(ALICE)
    with pytest.raises(UsageError, match=says):
        bench.command(publish)
    effects = bench.command(Publish(STREAM, b"{}"))
    assert effects[0] == Published(own_id(), len(sent(effects, Flood)[0][0].signed))


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


# Offences


def forged(number: int) -> Flood:
    return flood_of(body_of(message_id(number)), signer=MALLORY)


def offend(bench: Bench[StreamNode], peer: NodeId, times: int, first: int = 0) -> list[object]:
    """So many forged messages; the effects of the last."""
    effects: list[object] = []
    for number in range(first, first + times):
        effects = list(bench.flood(peer, forged(number)))
    return effects


def test_a_neighbour_is_dropped_and_accused_at_its_last_offence_in_all_shared_streams() -> None:
    bench = linked_node(ALICE, BOB)
    bench.command(JoinStream(OTHER_STREAM))
    link_stream(bench, OTHER_STREAM, ALICE)
    assert offend(bench, ALICE, CONFIG.offences_max - 1) == [Rejected(ALICE, "bad-signature")]
    assert active(bench) == (ALICE, BOB)
    effects = bench.flood(ALICE, forged(99))
    assert effects[0] == Rejected(ALICE, "bad-signature")
    assert sent(effects, Close) == [
        (Close(STREAM, False), (ALICE,)),
        (Close(OTHER_STREAM, False), (ALICE,)),
    ]
    assert of_kind(effects, CloseLink) == [
        CloseLink(ALICE, STREAM),
        CloseLink(ALICE, OTHER_STREAM),
    ]
    assert (active(bench), active(bench, OTHER_STREAM)) == ((BOB,), ())
    for stream in (STREAM, OTHER_STREAM):
        [(report, _)] = sent(bench.fire(("report", stream)), Report)
        assert (report.lost, report.accused) == ((), (ALICE,))


def test_an_offender_that_the_tracker_brings_back_begins_anew() -> None:
    bench = linked_node(ALICE, BOB)
    offend(bench, ALICE, CONFIG.offences_max)
    bench.receive(TRACKER, instruction(2, ALICE, BOB))
    bench.link_up(ALICE)
    bench.receive(ALICE, Open(STREAM, False))
    offend(bench, ALICE, CONFIG.offences_max - 1, first=50)
    assert set(active(bench)) == {ALICE, BOB}
    offend(bench, ALICE, 1, first=80)
    assert active(bench) == (BOB,)


def test_offences_of_one_are_not_held_against_another() -> None:
    bench = linked_node(ALICE, BOB)
    offend(bench, ALICE, CONFIG.offences_max - 1)
    offend(bench, BOB, CONFIG.offences_max - 1, first=50)
    assert active(bench) == (ALICE, BOB)


def test_an_offence_of_a_stranger_is_counted_and_no_more() -> None:
    bench = linked_node(ALICE)
    for _ in range(2 * CONFIG.offences_max):
        assert bench.receive(EVE, Flood(0, 0, 0, b"\0" * 66)) == [Rejected(EVE, "malformed-body")]
    assert active(bench) == (ALICE,)


def test_a_dropped_neighbour_is_not_listened_to() -> None:
    bench = linked_node(ALICE, BOB)
    offend(bench, ALICE, CONFIG.offences_max)
    effects = bench.receive(ALICE, flood_of(body_of(message_id(100))))
    assert reasons(effects) == ["not-a-neighbour"]


def test_a_dropped_neighbour_does_not_come_back_by_itself() -> None:
    bench = linked_node(ALICE, BOB)
    offend(bench, ALICE, CONFIG.offences_max)
    bench.receive(ALICE, Open(STREAM, False))
    bench.link_up(ALICE)
    assert active(bench) == (BOB,)
    bench.receive(TRACKER, instruction(2, ALICE, BOB))  # the tracker insists
    bench.link_up(ALICE)
    bench.receive(ALICE, Open(STREAM, False))
    assert set(active(bench)) == {ALICE, BOB}


def test_a_dropped_neighbour_is_missing_until_the_tracker_replaced_it() -> None:
    bench = linked_node(ALICE, BOB)
    offend(bench, ALICE, CONFIG.offences_max)
    bench.fire(("report", STREAM))  # which the tracker never gets, or has no more patience for
    assert sent(bench.fire(("retry", STREAM)), Status) == [
        (Status(STREAM, 1, 1, (BOB,)), (TRACKER,))
    ]


def test_offences_are_not_forgotten_by_hanging_up() -> None:
    bench = linked_node(ALICE, BOB)
    offend(bench, ALICE, CONFIG.offences_max - 1)
    bench.link_down(ALICE)
    bench.receive(ALICE, Open(STREAM, False))
    bench.link_up(ALICE)
    assert set(active(bench)) == {ALICE, BOB}
    offend(bench, ALICE, 1, first=50)
    assert active(bench) == (BOB,)


def test_offenders_are_not_remembered_for_ever() -> None:
    bench = linked_node(ALICE)
    offences = bench.machine._offences._counts
    for counter in range(2, 200):
        newcomer = NodeId(counter.to_bytes(20, "little"))
        bench.receive(TRACKER, instruction(counter, newcomer))
        bench.link_up(newcomer)
        bench.receive(newcomer, Open(STREAM, False))
        offend(bench, newcomer, 1, first=counter * 10)
    bench.receive(TRACKER, instruction(200))
    bench.advance(600 * S_NS)
    assert len(offences) <= 64


# Security: what is wrong is counted, and what is right still works after it


def assert_works(bench: Bench[StreamNode], number: int = 500) -> None:
    """A valid message from a neighbour is taken, passed on and delivered."""
    id = message_id(number, timestamp_ms=bench.now_ns // MS_NS)
    effects = bench.flood(ALICE, flood_of(body_of(id)))
    assert of_kind(effects, ReceivedFirst)
    assert sent(effects, Flood)[0][1] == (BOB,)
    assert of_kind(effects, Delivered)


def test_a_replayed_message_is_a_duplicate_then_stale_and_never_delivered_again() -> None:
    bench = linked_node(ALICE, BOB)
    flood = flood_of(body_of(message_id()))
    assert of_kind(bench.flood(ALICE, flood), Delivered)
    assert bench.flood(BOB, flood) == [ReceivedAgain(message_id(), BOB)]
    bench.now_ns += CONFIG.freshness_ns + S_NS
    replayed = bench.flood(BOB, flood)
    assert replayed in ([ReceivedAgain(message_id(), BOB)], [Rejected(BOB, "stale")])
    other = flood_of(body_of(message_id(chain="unheard")))
    assert bench.flood(BOB, other) == [Rejected(BOB, "stale")]
    assert_works(bench)


@pytest.mark.parametrize(
    ("peer", "message", "reason"),
    [
        (ALICE, instruction(99, MALLORY), "not-my-tracker"),
        (ALICE, Left(STREAM), "not-my-tracker"),
        (ALICE, Pong(12345), "unasked-pong"),
        (EVE, Pong(1), "unasked-pong"),
        (EVE, Open(OTHER_STREAM, False), "not-my-stream"),
        (ALICE, flood_of(body_of(message_id(stream=OTHER_STREAM))), "not-my-stream"),
        (EVE, flood_of(body_of(message_id())), "not-a-neighbour"),
        (ALICE, flood_of(body_of(message_id(timestamp_ms=0))), "stale"),
        (ALICE, flood_of(body_of(message_id(timestamp_ms=2**62))), "from-the-future"),
        (ALICE, forged(0), "bad-signature"),
        (ALICE, Flood(0, 0, 0, b"\xc1" * 100), "malformed-body"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_what_must_not_be_said_is_counted_and_nothing_else_suffers(
    peer: NodeId, message: object, reason: str
) -> None:
    bench = linked_node(ALICE, BOB)
    effects = bench.receive(peer, message)
    effects = [*effects, *bench.answer_verifies(effects)]
    assert reasons(effects) == [reason]
    assert active(bench) == (ALICE, BOB)
    assert_works(bench)


def test_opens_from_strangers_cost_a_bounded_memory_and_nothing_else() -> None:
    bench = linked_node(ALICE, BOB)
    for number in range(1000):
        stranger = NodeId((10_000 + number).to_bytes(20, "big"))
        assert bench.receive(stranger, Open(STREAM, False)) == []
    assert_works(bench)


def test_closes_from_strangers_do_nothing() -> None:
    bench = linked_node(ALICE, BOB)
    assert bench.receive(EVE, Close(STREAM, False)) == []
    assert bench.receive(EVE, Close(STREAM, True)) == []
    assert bench.receive(ALICE, Close(STREAM, True)) == []
    assert_works(bench)


def test_a_result_of_a_check_for_a_stream_left_meanwhile_changes_nothing() -> None:
    bench = linked_node(ALICE, BOB)
    (check,) = bench.receive(ALICE, flood_of(body_of(message_id())))
    assert isinstance(check, Verify)
    bench.command(LeaveStream(STREAM))
    assert of_kind(bench.feed(Verified(check.token, True)), Delivered) == []
