"""Messages that a node refuses: forged, stale, too many, or of somebody who may not send them."""

from __future__ import annotations

import pytest

from shoal.base.units import KIB, MS_NS
from shoal.identity.message_body import CONTENT_BYTES_MAX
from shoal.kernel.effects import Send, Verify
from shoal.kernel.records import Delivered, ReceivedFirst, Rejected
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.chain_table import ChainTable
from shoal.protocols.streams.messages import Close, Flood
from tests.support.flooding_floor import Floor, verify_of
from tests.support.streams import (
    ALICE,
    BOB,
    EVE,
    MALLORY,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    body_of,
    flood_of,
    message_id,
    of_kind,
    reasons,
)


def test_a_body_that_is_none_is_an_offence() -> None:
    floor = Floor()
    assert floor.receive(ALICE, Flood(0, 0, 0, b"\x00" * 66)) == [Rejected(ALICE, "malformed-body")]
    assert floor.offences == [(ALICE, "malformed-body")]
    assert floor.flooding.pending_count() == 0


def test_a_bad_signature_is_an_offence_of_whoever_sent_it() -> None:
    floor = Floor()
    forged = flood_of(body_of(message_id()), signer=MALLORY)
    assert floor.take(BOB, forged) == [Rejected(BOB, "bad-signature")]
    assert floor.offences == [(BOB, "bad-signature")]
    assert not floor.has_seen(message_id())


def test_a_stream_that_is_not_ours_is_refused_unchecked() -> None:
    floor = Floor()
    flood = flood_of(body_of(message_id(stream=OTHER_STREAM)))
    assert floor.receive(ALICE, flood) == [Rejected(ALICE, "not-my-stream")]


def test_data_from_a_stranger_is_refused_and_it_is_told_to_stop() -> None:
    floor = Floor()
    flood = flood_of(body_of(message_id()))
    assert floor.receive(EVE, flood) == [
        Rejected(EVE, "not-a-neighbour"),
        Send(Close(STREAM, False), (EVE,)),
    ]
    assert floor.receive(ALICE, flood) == [verify_of(flood)]


@pytest.mark.parametrize(
    ("offset_ns", "refusal"),
    [
        (-NodeConfig().freshness_ns - MS_NS, "stale"),
        (-NodeConfig().freshness_ns, None),
        (NodeConfig().future_ns, None),
        (NodeConfig().future_ns + MS_NS, "from-the-future"),
    ],
)
def test_messages_are_fresh(offset_ns: int, refusal: str | None) -> None:
    floor = Floor()
    flood = flood_of(body_of(message_id(timestamp_ms=(NOW_NS + offset_ns) // MS_NS)))
    expected = [verify_of(flood)] if refusal is None else [Rejected(ALICE, refusal)]
    assert floor.receive(ALICE, flood) == expected
    assert floor.offences == []  # clocks differ: an honest relay may pass it on


def test_what_a_link_brings_that_should_not_be_read_is_refused_at_a_bound() -> None:
    floor = Floor(NodeConfig(pending_bytes_high=4 * KIB, pending_bytes_max=8 * KIB))
    floods = [flood_of(body_of(message_id(n))) for n in range(4)]
    assert of_kind(floor.receive(ALICE, floods[0]), Verify)
    assert of_kind(floor.receive(ALICE, floods[1]), Verify)
    assert floor.receive(ALICE, floods[2]) == [Rejected(ALICE, "too-many-unverified")]
    assert of_kind(floor.receive(BOB, floods[2]), Verify)  # another link has its own count
    floor.verified(floods[0])
    assert of_kind(floor.receive(ALICE, floods[3]), Verify)
    for flood in floods[1:]:
        floor.verified(flood)
    assert floor.flooding.pending_count() == 0
    more = [flood_of(body_of(message_id(n))) for n in range(4, 7)]
    assert [type(floor.receive(ALICE, flood)[0]) for flood in more] == [Verify, Verify, Rejected]


def test_what_a_link_has_us_hold_is_bounded_in_bytes_too() -> None:
    floor = Floor(NodeConfig(pending_bytes_high=KIB, pending_bytes_max=8 * KIB))
    big, small = (body_of(message_id(n), content=b"x" * n) for n in (5 * KIB, 1))
    assert of_kind(floor.receive(ALICE, flood_of(big)), Verify)
    assert floor.receive(ALICE, flood_of(small)) == [Rejected(ALICE, "too-many-unverified")]


def test_several_of_the_largest_messages_may_follow_one_another() -> None:
    # They come as fast as the link brings them; a check takes milliseconds.
    floor = Floor()
    for number in range(4):
        flood = flood_of(body_of(message_id(number), bytes(CONTENT_BYTES_MAX)))
        assert reasons(floor.receive(ALICE, flood)) == []


def test_a_publisher_with_too_many_chains_is_refused_unchecked() -> None:
    floor = Floor(NodeConfig(chains_per_publisher_max=1, chains_per_stream_max=2))
    floor.take(ALICE, flood_of(body_of(message_id(chain="a"))))
    flood = flood_of(body_of(message_id(chain="b")))
    assert floor.receive(ALICE, flood) == [Rejected(ALICE, "too-many-chains")]
    assert of_kind(floor.receive(ALICE, flood_of(body_of(message_id(1, chain="a")))), Verify)


def test_chains_that_were_checked_at_the_same_time_are_bounded_too() -> None:
    floor = Floor(NodeConfig(chains_per_publisher_max=2, chains_per_stream_max=4))
    floods = [flood_of(body_of(message_id(chain=chain))) for chain in "abcd"]
    for flood in floods:
        assert of_kind(floor.receive(ALICE, flood), Verify)
    outcomes = [type(floor.verified(flood)[0]) for flood in floods]
    assert outcomes == [ReceivedFirst, ReceivedFirst, Rejected, Rejected]
    assert floor.channel.seen.chain_count() == 2


def test_a_message_that_became_stale_while_its_check_ran_is_refused() -> None:
    # Its chain may have been forgotten meanwhile, and then nobody could tell it from a replay.
    floor = Floor(subscribed=True)
    id = message_id(timestamp_ms=(NOW_NS - floor.config.freshness_ns) // MS_NS)
    one, two = flood_of(body_of(id, b"one")), flood_of(body_of(id, b"two"))
    floor.receive(ALICE, one)
    floor.receive(BOB, two)
    assert of_kind(floor.verified(one), Delivered)
    floor.now_ns += 1
    floor.channel.seen = ChainTable(floor.config)
    assert floor.verified(two) == [Rejected(BOB, "stale")]


def test_a_message_of_a_stream_left_while_its_check_ran_is_dropped() -> None:
    floor = Floor(subscribed=True)
    flood = flood_of(body_of(message_id()))
    floor.receive(ALICE, flood)
    del floor.channels[STREAM]
    assert floor.verified(flood) == [Rejected(ALICE, "not-my-stream")]
    assert floor.flooding.pending_count() == 0
