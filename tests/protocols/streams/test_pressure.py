"""Links that are not read for a while: too many checks, or a neighbour that cannot keep up."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import Effect, PauseReading, ResumeReading, SetTimer, Verify
from shoal.kernel.inputs import (
    AccessChecked,
    LinkClosed,
    SendQueueHigh,
    SendQueueLow,
    Verified,
)
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import FilledFromStorage
from shoal.protocols.streams.config import PENDING_BYTES_MIN, AccessConfig, NodeConfig
from shoal.protocols.streams.delivery.flooding import Flooding
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.permissions import AccessTable
from tests.support.flooding_floor import Floor, verify_of
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    ME,
    NOW_NS,
    STREAM,
    Bench,
    body_of,
    flood_of,
    linked_node,
    message_id,
)

FEW = NodeConfig(pending_bytes_high=3 * PENDING_BYTES_MIN, pending_bytes_low=PENDING_BYTES_MIN)


def floods(count: int, first: int = 0) -> list[Flood]:
    return [flood_of(body_of(message_id(first + n))) for n in range(count)]


def reading(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if type(effect) in (PauseReading, ResumeReading)]


# Checks


def test_a_link_with_many_checks_is_not_read_until_few_are_left() -> None:
    floor = Floor(FEW)
    first, *others = floods(6)
    for flood in (first, *others[:2]):
        assert floor.receive(ALICE, flood) == [verify_of(flood)]
    assert floor.receive(ALICE, others[2]) == [verify_of(others[2]), PauseReading(ALICE)]
    assert floor.receive(ALICE, others[3]) == [verify_of(others[3])], "it had been read"
    told = [reading(floor.verified(flood)) for flood in (first, *others[:4])]
    assert told == [[], [], [], [ResumeReading(ALICE)], []]
    assert floor.receive(ALICE, others[4]) == [verify_of(others[4])]


def test_forged_messages_count_as_well_and_other_links_are_read() -> None:
    floor = Floor(FEW)
    for flood in floods(4):
        floor.receive(ALICE, flood)
    (other,) = floods(1, 10)
    assert floor.receive(BOB, other) == [verify_of(other)]
    for flood in floods(2):
        floor.verified(flood, False)
    assert reading(floor.verified(floods(3)[2], False)) == [ResumeReading(ALICE)]


def test_pages_of_storage_have_their_own_bound_and_pause_nothing() -> None:
    floor = Floor(FEW)
    page = FilledFromStorage(STREAM, CAROL, 0, "c", tuple(f.signed for f in floods(4)), True)
    effects = floor.flooding.filled(ME, page, floor.now_ns)
    assert [type(effect) for effect in effects] == [Verify, Verify, Verify, Rejected]


def test_what_waits_for_the_registry_stops_no_link() -> None:
    floor = Floor(FEW)
    table = AccessTable(AccessConfig())
    floor.flooding = Flooding(FEW, floor.channels, floor.offend, access=table)
    for flood in floods(20):
        assert reading(floor.receive(ALICE, flood)) == []
        assert reading(floor.verified(flood)) == []
    assert floor.flooding.pending_count() == 20
    answer = AccessChecked(STREAM, CAROL, Verdict(Permission.PUBLISH, NOW_NS + S_NS))
    assert reading(floor.flooding.access_checked(answer, floor.now_ns)) == []


# Congestion


def neighbours(config: NodeConfig | None = None) -> Bench[StreamNode]:
    return linked_node(ALICE, BOB, DAVE, config=config)


def take(bench: Bench[StreamNode], peer: NodeId, number: int) -> list[Effect]:
    """A message from a peer is checked; which links are read after it."""
    return reading(bench.flood(peer, flood_of(body_of(message_id(number)))))


def test_who_brings_what_a_congested_neighbour_has_to_get_is_not_read_until_that_caught_up() -> (
    None
):
    bench = neighbours()
    assert reading(bench.feed(SendQueueHigh(BOB))) == [], "nothing was brought yet"
    assert take(bench, ALICE, 1) == [PauseReading(ALICE)]
    assert take(bench, ALICE, 2) == [], "it had been read"
    assert take(bench, DAVE, 3) == [PauseReading(DAVE)]
    assert bench.feed(SendQueueLow(BOB))[1:] == [ResumeReading(ALICE), ResumeReading(DAVE)]
    assert ("congested", BOB) not in bench.timers
    assert take(bench, ALICE, 4) == []


def test_the_congested_one_itself_is_read_so_that_two_never_wait_for_each_other() -> None:
    bench = neighbours()
    bench.feed(SendQueueHigh(BOB))
    assert take(bench, BOB, 1) == []
    bench.feed(SendQueueHigh(ALICE))
    assert take(bench, BOB, 2) == []
    assert take(bench, ALICE, 3) == []


def test_links_are_read_again_when_the_last_one_has_caught_up() -> None:
    bench = neighbours()
    bench.feed(SendQueueHigh(BOB))
    bench.feed(SendQueueHigh(DAVE))
    take(bench, ALICE, 1)
    assert reading(bench.feed(SendQueueLow(BOB))) == []
    assert reading(bench.feed(SendQueueLow(DAVE))) == [ResumeReading(ALICE)]


def test_a_link_waits_only_for_those_it_was_held_up_for() -> None:
    bench = neighbours()
    bench.feed(SendQueueHigh(BOB))
    take(bench, ALICE, 1)
    bench.now_ns += bench.machine.config.patience_ns // 2
    bench.feed(SendQueueHigh(DAVE))  # also with what others bring
    assert reading(bench.feed(SendQueueLow(BOB))) == [ResumeReading(ALICE)]
    assert take(bench, ALICE, 2) == [PauseReading(ALICE)], "now for Dave"
    assert reading(bench.feed(SendQueueLow(DAVE))) == [ResumeReading(ALICE)]


def test_patience_ends_and_who_wore_it_out_is_not_waited_for_for_a_while() -> None:
    bench = neighbours()
    config = bench.machine.config
    assert bench.feed(SendQueueHigh(BOB)) == [SetTimer(("congested", BOB), config.patience_ns)]
    take(bench, ALICE, 1)
    assert reading(bench.advance(config.patience_ns)) == [ResumeReading(ALICE)]
    assert take(bench, ALICE, 2) == []
    bench.feed(SendQueueLow(BOB))
    assert bench.feed(SendQueueHigh(BOB)) == []
    bench.feed(SendQueueLow(BOB))
    bench.now_ns += config.in_vain_ns
    assert bench.feed(SendQueueHigh(BOB)) == [SetTimer(("congested", BOB), config.patience_ns)]


def test_a_link_with_both_reasons_is_paused_once_and_read_when_both_are_over() -> None:
    bench = neighbours(FEW)
    waiting = floods(4, first=10)
    told = [reading(bench.receive(ALICE, flood)) for flood in waiting]
    assert told == [[], [], [], [PauseReading(ALICE)]]
    bench.feed(SendQueueHigh(BOB))
    assert reading(bench.feed(Verified(waiting[0].signed, True))) == []
    for flood in waiting[1:]:
        assert reading(bench.feed(Verified(flood.signed, True))) == []
    assert reading(bench.feed(SendQueueLow(BOB))) == [ResumeReading(ALICE)]


def test_a_link_that_is_lost_takes_its_pause_and_its_congestion_along() -> None:
    bench = neighbours()
    bench.feed(SendQueueHigh(BOB))
    take(bench, ALICE, 1)
    take(bench, DAVE, 2)
    bench.feed(LinkClosed(ALICE, str(STREAM), "lost"))
    assert reading(bench.feed(LinkClosed(BOB, str(STREAM), "lost"))) == [ResumeReading(DAVE)]
    assert ("congested", BOB) not in bench.timers
