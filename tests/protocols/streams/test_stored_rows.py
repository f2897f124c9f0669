"""Rows that storage gives for a gap, and what waits behind it."""

from __future__ import annotations

from shoal.base.units import KIB
from shoal.identity.message_body import Position
from shoal.kernel.effects import Notify, Send, Verify
from shoal.kernel.records import Delivered, GapAbandoned, Rejected
from shoal.protocols.streams.commands import FilledFromStorage, MessageArrived
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Flood
from tests.support.flooding_floor import Floor
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    ME,
    NOW_MS,
    STREAM,
    body_of,
    flood_of,
    message_id,
    of_kind,
)


def filled(*signed: bytes) -> FilledFromStorage:
    return FilledFromStorage(STREAM, CAROL, 0, "c", signed, True)


def stored_chain(floor: Floor, count: int) -> list[Flood]:
    """Messages of a chain, the first of which was given before a long absence."""
    floods = []
    for number in range(count):
        id = message_id(timestamp_ms=NOW_MS + 1 + number)
        previous = Position(id.timestamp_ms - 1, 0) if number else None
        floods.append(flood_of(body_of(id, b"%d" % number, previous)))
    floor.take(ALICE, floods[0])
    floor.now_ns += 2 * floor.config.freshness_ns
    return floods


def test_what_storage_has_of_our_absence_is_taken_however_old_and_goes_no_further() -> None:
    floor = Floor(subscribed=True)
    _, second, third = floods = stored_chain(floor, 3)
    assert floor.receive(BOB, second) == [Rejected(BOB, "stale")], "of a neighbour it is a replay"
    asked = floor.flooding.filled(ME, filled(*[each.signed for each in floods]), floor.now_ns)
    checks = of_kind(asked, Verify)
    assert [check.token for check in checks] == [second.signed, third.signed]
    for flood, content in ((second, b"1"), (third, b"2")):
        effects = floor.verified(flood)
        assert of_kind(effects, Send) == []
        (told,) = of_kind(effects, Notify)
        assert isinstance(told.event, MessageArrived)
        assert (told.event.message.content, told.event.gap_before) == (content, False)
    assert floor.channel.recent.between((CAROL, 0, "c"), (NOW_MS + 1, 0), (NOW_MS + 9, 0)) == []
    again = floor.flooding.filled(ME, filled(third.signed), floor.now_ns)
    assert of_kind(again, Verify) == []


def test_what_storage_has_of_before_our_time_is_refused() -> None:
    floor = Floor()
    floor.now_ns += 2 * floor.config.freshness_ns
    flood = flood_of(body_of(message_id(timestamp_ms=NOW_MS - 1)))
    effects = floor.flooding.filled(ME, filled(flood.signed), floor.now_ns)
    assert effects == [Rejected(ME, "stale")]


def test_a_forged_row_of_storage_is_not_taken() -> None:
    floor = Floor(subscribed=True)
    _, second = stored_chain(floor, 2)
    floor.flooding.filled(ME, filled(second.signed), floor.now_ns)
    assert floor.verified(second, valid=False) == [Rejected(ME, "bad-signature")]


def test_if_too_much_waits_the_gap_is_given_up_and_told() -> None:
    floor = Floor(NodeConfig(waiting_bytes_per_chain_max=4 * KIB), subscribed=True)
    floods = []
    for number in (0, 2, 3, 4, 5):
        previous = Position(NOW_MS + number, 0) if number else None
        id = message_id(timestamp_ms=NOW_MS + number + 1)
        floods.append(flood_of(body_of(id, b"%d" % number, previous)))
    effects = [floor.take(ALICE, flood) for flood in floods]
    assert [bool(of_kind(each, Delivered)) for each in effects] == [True, False, False, False, True]
    told = [each.event for each in of_kind(effects[-1], Notify)]
    assert [each.gap_before for each in told if isinstance(each, MessageArrived)] == [
        True,
        False,
        False,
        False,
    ]
    assert of_kind(effects[-1], GapAbandoned) == [GapAbandoned(STREAM, CAROL, "c")]
