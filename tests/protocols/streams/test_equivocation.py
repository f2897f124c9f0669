"""A publisher that signs two bodies under one id is found out, and its second body goes nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import NodeId
from shoal.base.units import KIB
from shoal.identity.message_body import Body, Position, decode_body
from shoal.kernel.effects import Effect, Notify, Send, Verify
from shoal.kernel.records import Delivered, Equivocation, ReceivedAgain, Rejected
from shoal.protocols.streams.commands import EquivocationSeen, Publish
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.replay_buffer import RecentMessages
from shoal.protocols.streams.messages import Flood
from tests.support.streams import (
    ALICE,
    BOB,
    DAVE,
    MALLORY,
    ME,
    NOW_MS,
    NOW_NS,
    STREAM,
    body_of,
    flood_of,
    linked_node,
    message_id,
    of_kind,
    placed,
    reasons,
    sent,
)

ID = message_id()
ONE, TWO, THREE = (flood_of(body_of(ID, content)) for content in (b"one", b"two", b"three"))


def proof(first: Flood, second: Flood, peer: NodeId) -> list[Effect]:
    """All that follows from a second body, and nothing else."""
    return [
        Equivocation(ID, peer),
        Notify(EquivocationSeen(STREAM, first.signed, second.signed)),
    ]


def test_a_second_body_is_checked_reported_and_goes_nowhere() -> None:
    bench = linked_node(ALICE, BOB, DAVE)
    assert of_kind(bench.flood(ALICE, ONE), Delivered)
    assert bench.flood(BOB, TWO) == proof(ONE, TWO, BOB)


@pytest.mark.parametrize(
    "second",
    [
        Body(ID, None, 1, b"one"),
        Body(ID, Position(NOW_MS - 1, 0), 0, b"one"),
        Body(ID, None, 0, b""),
    ],
    ids=["content-type", "previous", "content"],
)
def test_whatever_the_bodies_differ_in(second: Body) -> None:
    bench = linked_node(ALICE, BOB)
    bench.flood(ALICE, ONE)
    assert bench.flood(BOB, flood_of(second)) == proof(ONE, flood_of(second), BOB)


def test_two_bodies_under_verification_at_once_are_one_delivery_and_one_proof() -> None:
    bench = linked_node(ALICE, BOB, DAVE)
    first, second = bench.receive(ALICE, ONE), bench.receive(BOB, TWO)
    assert of_kind(first, Verify)
    assert of_kind(second, Verify)
    assert of_kind(bench.answer_verifies(second), Delivered)
    assert bench.answer_verifies(first) == proof(TWO, ONE, ALICE)


def test_an_id_is_reported_once_and_further_bodies_are_not_even_checked() -> None:
    bench = linked_node(ALICE, BOB, DAVE)
    bench.flood(ALICE, ONE)
    bench.flood(BOB, TWO)
    for flood in (ONE, TWO, THREE):
        assert bench.receive(DAVE, flood) == [ReceivedAgain(ID, DAVE)]


def test_bodies_that_were_under_verification_together_are_reported_once() -> None:
    bench = linked_node(ALICE, BOB, DAVE)
    waiting = [
        *bench.receive(ALICE, ONE),
        *bench.receive(BOB, TWO),
        *bench.receive(DAVE, THREE),
    ]
    effects = bench.answer_verifies(waiting)
    assert of_kind(effects, Equivocation) == [Equivocation(ID, BOB)]
    assert ReceivedAgain(ID, DAVE) in effects


def test_the_same_second_body_is_checked_once_at_a_time() -> None:
    bench = linked_node(ALICE, BOB, DAVE)
    bench.flood(ALICE, ONE)
    assert of_kind(bench.receive(BOB, TWO), Verify)
    assert bench.receive(DAVE, TWO) == [ReceivedAgain(ID, DAVE)]


def test_a_forged_second_body_is_an_offence_of_whoever_sent_it() -> None:
    bench = linked_node(ALICE, BOB)
    bench.flood(ALICE, ONE)
    forged = flood_of(body_of(ID, b"forged"), signer=MALLORY)
    assert bench.flood(BOB, forged) == [Rejected(BOB, "bad-signature")]
    # It proves nothing against the publisher: the real thing is still news.
    assert bench.flood(BOB, TWO) == proof(ONE, TWO, BOB)


def test_whoever_forges_second_bodies_is_dropped() -> None:
    bench = linked_node(ALICE, BOB)
    bench.flood(ALICE, ONE)
    for number in range(bench.machine.config.offences_max):
        bench.flood(BOB, flood_of(body_of(ID, b"%d" % number), signer=MALLORY))
    assert bench.machine.streams[STREAM].channel.active == (ALICE,)
    forged = flood_of(body_of(ID, b"more"), signer=MALLORY)
    assert not of_kind(bench.receive(BOB, forged), Verify)


def test_second_bodies_wait_within_the_bounds_of_all_unverified_ones() -> None:
    bench = linked_node(
        ALICE, BOB, config=NodeConfig(pending_bytes_high=KIB, pending_bytes_max=8 * KIB)
    )
    bench.flood(ALICE, ONE)
    for content in (b"a", b"b"):
        assert of_kind(bench.receive(BOB, flood_of(body_of(ID, content))), Verify)
    assert reasons(bench.receive(BOB, flood_of(body_of(ID, b"c")))) == ["too-many-unverified"]


def test_somebody_else_with_our_key_is_found_out_too() -> None:
    bench = linked_node(ALICE, BOB)
    effects = bench.command(Publish(STREAM, b"mine"))
    ((own, _),) = sent(effects, Flood)
    id = decode_body(own.signed).id
    other = flood_of(body_of(id, b"not mine"))
    assert id.publisher == ME
    assert of_kind(bench.flood(ALICE, other), Equivocation) == [Equivocation(id, ALICE)]


def test_a_body_is_compared_while_the_message_is_kept() -> None:
    config = NodeConfig(recent_bytes_max=len(ONE.signed) + 99)
    bench = linked_node(ALICE, BOB, config=config)
    bench.flood(ALICE, ONE)
    bench.flood(ALICE, flood_of(body_of(message_id(1), b"xyz", Position(NOW_MS, 0))))
    assert bench.receive(BOB, TWO) == [ReceivedAgain(ID, BOB)]


def test_the_neighbour_that_brought_it_is_not_blamed_and_order_goes_on() -> None:
    bench = linked_node(ALICE, BOB)
    bench.flood(ALICE, ONE)
    bench.flood(BOB, TWO)
    assert bench.machine._offences._counts == {}
    following = bench.flood(BOB, flood_of(body_of(message_id(1), b"next", Position(NOW_MS, 0))))
    assert of_kind(following, Delivered)
    assert of_kind(following, Send)


# What is remembered of it


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([b"a", b"b", b"c"])), max_size=40))
def test_a_kept_message_is_contradicted_by_another_body_until_settled(
    arrivals: list[tuple[int, bytes]],
) -> None:
    signed = {
        (number, content): flood_of(body_of(message_id(number), content)).signed
        for number, content in arrivals
    }
    size = len(flood_of(body_of(ID, b"a")).signed)
    config = NodeConfig(recent_bytes_max=3 * size)
    recent = RecentMessages(config)
    kept: dict[int, bytes] = {}
    settled: set[int] = set()
    for number, content in arrivals:
        copy = signed[number, content]
        message = placed(message_id(number), signed=copy)
        if number not in kept:
            assert recent.contradicted(message) is None
            recent.add(message, NOW_NS)
            kept[number] = copy
            for old in list(kept)[:-3]:
                del kept[old]
                settled.discard(old)
        elif kept[number] == copy or number in settled:
            assert recent.contradicted(message) is None
        else:
            assert recent.contradicted(message) == kept[number]
            recent.settle(message)
            settled.add(number)
    assert len(recent._settled) == len(settled)
