"""What one node may ask of a tracker, and what it may not say: nobody else suffers."""

from __future__ import annotations

import pytest

from shoal.base.ids import INT63_MAX, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Send
from shoal.kernel.records import Rejected
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.messages import Join, JoinRefused, Leave, Left, Report, Rtt, Status
from shoal.protocols.streams.tracker.tracker import NO_ROOM
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    MALLORY,
    NOW_MS,
    OTHER_STREAM,
    STREAM,
    contact,
    reasons,
    sent,
)
from tests.support.tracker_desk import Desk, crowd, instructions

CONFIG = TrackerConfig()


# Bounds


def test_joins_and_leaves_of_one_node_are_rate_limited() -> None:
    desk = Desk()
    desk.join(BOB)
    outcomes = []
    for _ in range(CONFIG.changes_burst):
        outcomes += reasons(desk.join(ALICE)) or ["joined"]
        desk.receive(ALICE, Leave(STREAM))
    assert outcomes.count("joined") == CONFIG.changes_burst // 2
    assert set(outcomes) == {"joined", "too-many-joins"}
    assert instructions(desk.join(CAROL))  # another node is not concerned
    desk.now_ns += CONFIG.changes_refill_ns
    assert instructions(desk.join(ALICE))


def test_a_node_cannot_buy_itself_changes_with_new_names() -> None:
    desk = Desk()
    outcomes = []
    for number in range(1000):
        stream = StreamId(f"s{number}")
        outcomes += reasons(desk.join(MALLORY, stream)) or ["joined"]
        desk.receive(MALLORY, Leave(stream))
    assert outcomes.count("joined") < 1000


def test_a_node_may_be_in_so_many_streams() -> None:
    desk = Desk(TrackerConfig(streams_per_node_max=2))
    for number in range(2):
        assert instructions(desk.join(ALICE, StreamId(f"s{number}")))
    said = desk.join(ALICE, StreamId("s2"))
    assert said == [
        Rejected(ALICE, "too-many-streams"),
        Send(JoinRefused(StreamId("s2"), True, NO_ROOM), (ALICE,)),
    ]
    assert instructions(desk.join(ALICE, StreamId("s1")))  # in it already
    assert instructions(desk.join(BOB, StreamId("s2")))


def test_a_tracker_has_so_many_streams() -> None:
    desk = Desk(TrackerConfig(streams_max=2))
    for number, peer in enumerate((ALICE, MALLORY)):
        assert instructions(desk.join(peer, StreamId(f"s{number}")))
    assert not instructions(desk.join(BOB, StreamId("s2")))
    assert set(desk.machine.streams) == {"s0", "s1"}
    assert instructions(desk.join(BOB, StreamId("s1")))
    desk.receive(ALICE, Leave(StreamId("s0")))
    assert instructions(desk.join(BOB, StreamId("s2")))


# Security: what is wrong is counted, and what is right still works after it


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Status(STREAM, NOW_MS, 1, ()), "not-a-member"),
        (Status(OTHER_STREAM, NOW_MS, 1, ()), "not-a-member"),
        (Report(STREAM, (Rtt(BOB, 1),), (BOB,), (CAROL,)), "not-a-member"),
        (Join(STREAM, contact(ALICE), 0, 0, ()), "joins-for-another"),
        (Join(STREAM, contact(ALICE), INT63_MAX, INT63_MAX, ()), "joins-for-another"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_must_not_be_said_is_counted_and_nothing_else_suffers(
    message: object, reason: str
) -> None:
    desk = Desk()
    for peer in (ALICE, BOB, CAROL):
        desk.join(peer)
    desk.quiet()
    effects = desk.receive(MALLORY, message)
    assert reasons(effects) == [reason]
    assert all(peers == (MALLORY,) for _, peers in sent(effects))
    assert set(desk.neighbours(ALICE)) == {BOB, CAROL}
    assert instructions(desk.join(DAVE))[DAVE].epoch == NOW_MS


def test_a_member_speaks_for_itself_only() -> None:
    desk = Desk()
    for peer in (ALICE, BOB, CAROL):
        desk.join(peer)
    desk.join(MALLORY, OTHER_STREAM)
    desk.quiet()
    member = desk.machine.streams[STREAM].members[ALICE]
    theirs = Status(STREAM, NOW_MS, member.version[1], ())
    assert reasons(desk.receive(MALLORY, theirs)) == ["not-a-member"]
    assert desk.receive(MALLORY, Leave(STREAM)) == [Send(Left(STREAM), (MALLORY,))]
    assert set(desk.machine.streams[STREAM].members) == {ALICE, BOB, CAROL}


def test_one_member_cannot_keep_the_whole_overlay_moving() -> None:
    # Each lie cuts four links and instructs a dozen nodes; a new lie needs one round trip.
    desk, nodes = crowd(60)
    peer, told = nodes[0], 0
    for _ in range(200):
        told += len(instructions(desk.status(peer, *desk.neighbours(peer))))
        desk.now_ns += 10 * MS_NS
    assert told < 400
