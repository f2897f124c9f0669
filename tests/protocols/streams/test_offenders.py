"""Peers that do what they must not: counted, dropped, accused, and nobody else suffers."""

from __future__ import annotations

import pytest

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import CloseLink, Verify
from shoal.kernel.inputs import Verified
from shoal.kernel.records import Delivered, ReceivedAgain, ReceivedFirst, Rejected
from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Close, Flood, Left, Open, Pong, Report, Status
from tests.support.streams import (
    ALICE,
    BOB,
    EVE,
    MALLORY,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
    active,
    body_of,
    flood_of,
    instruction,
    link_stream,
    linked_node,
    message_id,
    of_kind,
    reasons,
    sent,
)

CONFIG = NodeConfig()


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
