"""Flooding, copy by copy: exact effects of a first copy and of all that follow it."""

from __future__ import annotations

import msgspec
import pytest

from shoal.base.ids import INT63_MAX
from shoal.base.units import US_NS
from shoal.identity.message_body import Position, encode_body
from shoal.kernel.effects import Notify, Send
from shoal.kernel.records import Delivered, ReceivedAgain, ReceivedFirst, Rejected, Sent
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.config import HOPS_MAX
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.signed_message import VerifiedMessage, read_placed
from shoal.protocols.streams.wire import StreamsCodec
from tests.support.flooding_floor import NOW_US, Floor, verify_of
from tests.support.streams import (
    ALICE,
    BOB,
    DAVE,
    EVE,
    MALLORY,
    NOW_MS,
    NOW_NS,
    body_of,
    flood_of,
    message_id,
    of_kind,
)

# The first copy


def test_the_first_copy_is_checked_and_nothing_else_happens_yet() -> None:
    floor = Floor()
    flood = flood_of(body_of(message_id()))
    assert floor.receive(ALICE, flood) == [verify_of(flood)]
    assert floor.flooding.pending_count() == 1
    assert not floor.has_seen(message_id())


def test_a_valid_message_goes_on_to_everyone_but_its_sender() -> None:
    floor = Floor()
    id = message_id()
    flood = flood_of(body_of(id), hops=2, age_us=700, seen_us=NOW_US - 30)
    floor.receive(ALICE, flood)
    floor.now_ns += 5 * US_NS
    assert floor.verified(flood) == [
        ReceivedFirst(id, ALICE, hops=3, age_us=735),
        Send(Flood(3, 735, NOW_US + 5, flood.signed), (BOB, DAVE)),
        Sent(id, 2),
    ]
    assert floor.flooding.pending_count() == 0
    assert floor.has_seen(id)


def test_the_signed_bytes_go_on_as_they_came() -> None:
    floor = Floor()
    flood = flood_of(body_of(message_id()))
    floor.receive(ALICE, flood)
    (send,) = of_kind(floor.verified(flood), Send)
    assert send.message.signed is flood.signed


def test_a_subscriber_is_given_the_message_after_it_went_on() -> None:
    floor = Floor(subscribed=True)
    previous = Position(NOW_MS - 5, 7)
    body = body_of(message_id(), b"\x00\xff", previous, content_type=1)
    flood = flood_of(body, seen_us=NOW_US)
    floor.receive(BOB, flood)
    message = VerifiedMessage(body.id, previous, 1, b"\x00\xff", flood.signed)
    assert floor.verified(flood) == [
        ReceivedFirst(body.id, BOB, 1, 0),
        Send(Flood(1, 0, NOW_US, flood.signed), (ALICE, DAVE)),
        Sent(body.id, 2),
        Notify(MessageArrived(message, 1, NOW_NS)),
        Delivered(body.id, 1, 0),
    ]


def test_without_others_it_goes_nowhere_but_to_the_subscriber() -> None:
    floor = Floor(subscribed=True)
    floor.channel.active = (ALICE,)
    effects = floor.take(ALICE, flood_of(body_of(message_id())))
    assert [type(e) for e in effects] == [ReceivedFirst, Notify, Delivered]


def test_whoever_became_active_while_the_check_ran_gets_it_too() -> None:
    floor = Floor()
    flood = flood_of(body_of(message_id()))
    floor.receive(ALICE, flood)
    floor.channel.active = (DAVE, EVE)
    (send,) = of_kind(floor.verified(flood), Send)
    assert send.peers == (DAVE, EVE)


def test_own_messages_go_to_all_neighbours() -> None:
    floor = Floor()
    body = body_of(message_id())
    flood = flood_of(body)
    message = read_placed(flood.signed)
    assert floor.flooding.originate(floor.channel, message, NOW_NS) == [
        Send(Flood(0, 0, NOW_US, flood.signed), (ALICE, BOB, DAVE)),
        Sent(body.id, 3),
    ]


# The hop header is advice


@pytest.mark.parametrize("hops", [0, HOPS_MAX - 1, HOPS_MAX])
@pytest.mark.parametrize("age_us", [0, INT63_MAX])
@pytest.mark.parametrize("seen_us", [0, INT63_MAX])
def test_no_hop_header_keeps_a_message_from_going_on(hops: int, age_us: int, seen_us: int) -> None:
    floor = Floor()
    flood = flood_of(body_of(message_id()), hops=hops, age_us=age_us, seen_us=seen_us)
    effects = floor.take(ALICE, flood)
    (send,) = of_kind(effects, Send)
    assert send.peers == (BOB, DAVE)
    codec = StreamsCodec()
    assert codec.decode(codec.encode(send.message)) == send.message  # the next hop takes it
    (first,) = of_kind(effects, ReceivedFirst)
    assert 0 <= first.age_us <= INT63_MAX  # a record's columns are 64-bit integers
    assert (first.hops, first.age_us) == (send.message.hops, send.message.age_us)


def test_a_sender_whose_clock_is_ahead_adds_nothing_to_the_age() -> None:
    floor = Floor()
    effects = floor.take(ALICE, flood_of(body_of(message_id()), age_us=40, seen_us=NOW_US + 9))
    assert of_kind(effects, ReceivedFirst) == [ReceivedFirst(message_id(), ALICE, 1, 40)]


# Further copies


def test_the_same_bytes_wait_as_duplicates_while_the_check_runs() -> None:
    floor = Floor()
    id = message_id()
    flood = flood_of(body_of(id))
    floor.receive(ALICE, flood)
    again = msgspec.structs.replace(flood, hops=9, signed=bytes(bytearray(flood.signed)))
    assert floor.receive(BOB, again) == [ReceivedAgain(id, BOB)]
    assert floor.receive(ALICE, flood) == [ReceivedAgain(id, ALICE)]
    assert of_kind(floor.verified(flood), Send)[0].peers == (BOB, DAVE)


def test_after_the_check_every_copy_of_the_same_body_is_a_duplicate() -> None:
    floor = Floor()
    id = message_id()
    flood = flood_of(body_of(id))
    floor.take(ALICE, flood)
    assert floor.receive(BOB, flood) == [ReceivedAgain(id, BOB)]
    # One body may have several good signatures: nothing new is said, whoever made this one.
    other = Flood(0, 0, 0, b"\x01" * 65 + encode_body(body_of(id)))
    assert floor.receive(DAVE, other) == [ReceivedAgain(id, DAVE)]
    assert floor.offences == []


def test_other_bytes_under_the_same_id_are_checked_for_themselves() -> None:
    floor = Floor()
    id = message_id()
    forged = flood_of(body_of(id, b"forged"), signer=MALLORY)
    real = flood_of(body_of(id, b"real"))
    assert floor.receive(ALICE, forged) == [verify_of(forged)]
    assert floor.receive(BOB, real) == [verify_of(real)]
    assert floor.flooding.pending_count() == 2


@pytest.mark.parametrize("forged_first", [True, False])
def test_a_forged_copy_never_suppresses_the_real_one(forged_first: bool) -> None:
    floor = Floor(subscribed=True)
    id = message_id()
    forged = flood_of(body_of(id, b"forged"), signer=MALLORY)
    real = flood_of(body_of(id, b"real"))
    floor.receive(ALICE, forged)
    floor.receive(BOB, real)
    if forged_first:
        assert floor.verified(forged, False) == [Rejected(ALICE, "bad-signature")]
    effects = floor.verified(real)
    if not forged_first:
        assert floor.verified(forged, False) == [Rejected(ALICE, "bad-signature")]
    (notify,) = of_kind(effects, Notify)
    assert notify.event.message.content == b"real"
    assert of_kind(effects, Send)[0].peers == (ALICE, DAVE)
    assert floor.offences == [(ALICE, "bad-signature")]


def test_a_forged_copy_that_was_refused_may_be_followed_by_the_real_one() -> None:
    floor = Floor(subscribed=True)
    id = message_id()
    assert floor.take(ALICE, flood_of(body_of(id), signer=MALLORY)) == [
        Rejected(ALICE, "bad-signature")
    ]
    assert Delivered(id, 1, NOW_US) in floor.take(ALICE, flood_of(body_of(id)))


def test_the_same_body_under_another_signature_is_not_taken_for_checked() -> None:
    floor = Floor()
    body = body_of(message_id())
    flood = flood_of(body)
    floor.receive(ALICE, flood)
    changed = Flood(0, 0, 0, b"\x00" * 65 + encode_body(body))
    assert floor.receive(BOB, changed) == [verify_of(changed)]
    assert floor.verified(flood)[0] == ReceivedFirst(body.id, ALICE, 1, NOW_US)
    assert floor.verified(changed, False) == [Rejected(BOB, "bad-signature")]


def test_a_body_that_was_marked_while_its_copy_was_checked_is_a_duplicate() -> None:
    floor = Floor(subscribed=True)
    body = body_of(message_id())
    one = flood_of(body)
    two = Flood(0, 0, 0, one.signed[:64] + b"\x01" + one.signed[65:])
    floor.receive(ALICE, one)
    floor.receive(BOB, two)
    assert of_kind(floor.verified(one), Delivered)
    assert floor.verified(two) == [ReceivedAgain(body.id, BOB)]
