"""Asking for keys and answering: for those who may read, against lies, losses and restarts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.base.ids import KEYS_PARTITION, MessageId, NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import GroupKey, Wrap, encode_announcements, wrap_key
from shoal.identity.message_body import KEYS
from shoal.kernel.access import Verdict
from shoal.protocols.streams.commands import KeyFound, KeyNotFound
from shoal.protocols.streams.config import ExchangeConfig
from shoal.protocols.streams.keys.key_ring import UNWRAPS_MAX, KeyRing
from shoal.protocols.streams.messages import KeyAnswer, KeyRequest
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.protocols.streams.wire import KeysCodec
from tests.support.key_party import (
    ALICE,
    BOB,
    CAROL,
    FIND,
    KEY,
    ME,
    NO,
    STREAM,
    YES,
    Party,
    request,
)


def test_the_publisher_is_asked_first_and_its_key_is_taken() -> None:
    me = Party(ME, [BOB, ALICE])
    me.ask()
    assert me.take() == [(ALICE.address, request())]
    sealed = wrap_key(KEY, ME.public, SeededEntropy(1)).sealed
    me.host.received(ALICE.address, KeyAnswer(1, sealed))
    assert me.ring.get(KEY.id) is not None
    assert me.host.notified == [KeyFound("token")]
    me.host.advance(S_NS)
    assert not me.host.links.is_claimed(ALICE.address)
    assert not [slot for slot, _ in me.host.timers if slot == 0]


def test_whoever_lacks_it_lies_or_is_silent_is_passed_over() -> None:
    me = Party(ME, [BOB, CAROL, ALICE])
    me.ask()
    me.host.received(ALICE.address, KeyAnswer(1, None))
    other = wrap_key(KEY, CAROL.public, SeededEntropy(1)).sealed
    me.host.received(BOB.address, KeyAnswer(1, other))  # sealed for somebody else
    assert [peer for peer, _ in me.take()] == [ALICE.address, BOB.address, CAROL.address]
    me.host.advance(S_NS)  # Carol does not answer
    assert me.host.notified == []
    me.host.advance(S_NS)
    assert me.take() == [(ALICE.address, request())]  # the next round
    assert me.rejected() == [(BOB.address, "wrong-key")]
    me.host.received(ALICE.address, KeyAnswer(1, wrap_key(KEY, ME.public, SeededEntropy(2)).sealed))
    assert me.host.notified == [KeyFound("token")]


def test_what_nobody_has_is_given_up() -> None:
    me = Party(ME, [BOB])
    me.ask()
    me.host.advance(11 * S_NS)
    assert me.host.notified == [KeyNotFound("token")]
    assert len(me.take()) >= 5
    me.host.received(BOB.address, KeyAnswer(1, wrap_key(KEY, ME.public, SeededEntropy(2)).sealed))
    assert me.rejected() == [(BOB.address, "unasked-key")]
    assert len(me.ring) == 0


def test_an_answer_of_somebody_who_was_not_asked_is_none() -> None:
    me = Party(ME, [BOB, CAROL])
    me.ask()
    good = wrap_key(KEY, ME.public, SeededEntropy(1)).sealed
    me.host.received(CAROL.address, KeyAnswer(1, good))
    assert me.rejected() == [(CAROL.address, "unasked-key")]
    assert me.host.notified == []


def test_a_key_that_is_announced_meanwhile_ends_the_search() -> None:
    me = Party(ME, [BOB])
    me.ask()
    me.ring.add(KEY)
    me.host.advance(S_NS)
    assert me.host.notified == [KeyFound("token")]


def test_a_link_that_breaks_is_one_who_does_not_answer() -> None:
    me = Party(ME, [BOB, CAROL])
    me.ask()
    me.host.link_closed(BOB.address, "gone")
    assert [peer for peer, _ in me.take()] == [BOB.address, CAROL.address]


def test_without_neighbours_it_waits_for_some() -> None:
    me = Party(ME)
    me.ask()
    assert me.take() == []
    me.vicinity.around.append(BOB.address)
    me.host.link_opened(BOB.address)
    me.host.advance(S_NS)
    assert me.take() == [(BOB.address, request())]


def test_too_many_searches_are_refused() -> None:
    me = Party(ME, [BOB], ExchangeConfig(finds_max=1))
    me.ask()
    me.host.command(me.machine, FIND, "another")
    assert me.host.notified == [KeyNotFound("another")]
    with pytest.raises(UsageError, match="no command"):
        me.host.command(me.machine, "nonsense")


# Answering


def asked(verdict: Verdict, message: KeyRequest, peer: PrivateKey = ME) -> Party:
    bob = Party(BOB, [peer])
    bob.ring.add(KEY)
    bob.host.access.verdicts[STREAM, peer.address] = verdict
    bob.host.received(peer.address, message)
    bob.host.finish_all()
    return bob


def test_who_may_read_gets_a_key_wrapped_for_it() -> None:
    bob = asked(YES, request())
    ((peer, answer),) = bob.take()
    assert peer == ME.address
    assert bob.machine.met == {ME.address: ME.public}
    me = Party(ME, [BOB])
    me.ask()
    me.host.received(BOB.address, answer)
    found = me.ring.get(KEY.id)
    assert found is not None
    assert found.secret_bytes() == KEY.secret_bytes()


@pytest.mark.parametrize(
    ("verdict", "rejected"),
    [
        (NO, [(ME.address, "key-not-permitted")]),
        (Verdict(0, 0, "the chain is away"), []),  # nobody's fault
    ],
)
def test_who_may_not_read_gets_none(verdict: Verdict, rejected: list[Any]) -> None:
    bob = asked(verdict, request())
    assert bob.take() == [(ME.address, KeyAnswer(1, None))]
    assert bob.rejected() == rejected
    assert bob.machine.met == {}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (request(CAROL), "another-public-key"),
        (KeyRequest(1, STREAM, KEY.id, b"\x02" + bytes(31) + b"\x05"), "no-public-key"),
    ],
)
def test_a_key_is_wrapped_for_the_peer_itself_only(message: KeyRequest, reason: str) -> None:
    bob = asked(YES, message)
    assert bob.take() == []
    assert bob.rejected() == [(ME.address, reason)]
    assert not bob.host.slow_work


@pytest.mark.parametrize(
    "message",
    [
        request(key=bytes(16)),
        KeyRequest(1, StreamId("0x/other"), KEY.id, ME.public.to_bytes()),
    ],
)
def test_a_key_that_is_not_held_or_of_another_stream_is_none(message: KeyRequest) -> None:
    bob = asked(YES, message)
    assert bob.take() == [(ME.address, KeyAnswer(1, None))]


def test_a_peer_asks_no_more_often_than_it_may() -> None:
    config = ExchangeConfig(requests_burst=3, request_ns=S_NS)
    bob = Party(BOB, [ME, CAROL], config)
    for number in range(5):
        bob.host.received(ME.address, request(number=number))
    bob.host.received(CAROL.address, request(CAROL))
    assert [peer for peer, _ in bob.take()] == [ME.address] * 3 + [CAROL.address]
    assert bob.rejected() == [(ME.address, "too-many-key-requests")] * 2
    bob.host.advance(S_NS)
    bob.host.received(ME.address, request(number=9))
    assert bob.take() == [(ME.address, KeyAnswer(9, None))]


def test_one_question_to_the_registry_serves_many_and_their_number_is_bounded() -> None:
    bob = Party(BOB, [ME], ExchangeConfig(checks_max=2))
    bob.ring.add(KEY)
    bob.host.access.verdicts[STREAM, ME.address] = YES
    for number in range(3):
        bob.host.received(ME.address, request(number=number))
    assert bob.take() == [(ME.address, KeyAnswer(2, None))]  # one too many
    assert len(bob.host.slow_work) == 1
    bob.host.finish_all()
    assert [answer.request for _, answer in bob.take()] == [0, 1]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.booleans(), st.floats(0, 0.7))
def test_lost_messages_and_restarts_cost_time_only(seed: int, permitted: bool, loss: float) -> None:
    """Two who may have the key, messages that get lost, and one of the two forgets everything."""
    rng = Random(seed)
    config = ExchangeConfig(patience_ns=60 * S_NS)
    me = Party(ME, [ALICE, BOB], config)
    others = {party.address: Party(party, [ME]) for party in (ALICE, BOB)}
    for other in others.values():
        other.ring.add(KEY)
        other.host.access.verdicts[STREAM, ME.address] = YES if permitted else NO
    restart_s = rng.randrange(60)
    me.ask()
    for second in range(70):
        for peer, message in me.take():
            other = others[NodeId(peer)]
            if rng.random() >= loss:
                other.host.received(ME.address, message)
                other.host.finish_all()
            for _, answer in other.take():
                if rng.random() >= loss:
                    me.host.received(peer, answer)
        if second == restart_s:
            others[BOB.address].begin()
        me.host.advance(S_NS)
    (told,) = me.host.notified
    assert isinstance(told, KeyFound) == (me.ring.get(KEY.id) is not None)
    if not permitted:
        assert told == KeyNotFound("token")
    elif loss < 0.3:
        assert told == KeyFound("token")
    me.machine.check_invariants()


# Bytes


def test_messages_travel() -> None:
    codec = KeysCodec()
    for message in (request(), KeyAnswer(5, None), KeyAnswer(6, bytes(81))):
        assert codec.decode(codec.encode(message)) == message
    assert codec.encode(KeyAnswer(5, None)) == b"\x93\x02\x05\xc0"
    short = KeyRequest(1, StreamId("s"), bytes(16), b"\x02" * 33)
    told = b"\x95\x01\x01\xa1s\xc4\x10" + bytes(16) + b"\xc4\x21" + b"\x02" * 33
    assert codec.encode(short) == told
    with pytest.raises(OversizedMessage):
        codec.decode(bytes(2000))


@given(st.binary(max_size=60))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(MalformedMessage):
        KeysCodec().decode(noise)


def test_a_ring_is_bounded_and_a_publisher_pushes_its_own_out() -> None:
    ring = KeyRing(keys_max=6, publisher_keys_max=3)
    keys = {
        name: [GroupKey(STREAM, NodeId(name * 20), bytes([n]) * 32) for n in range(5)]
        for name in (b"a", b"b", b"c")
    }
    for key in keys[b"b"][:2] + keys[b"a"]:
        assert ring.add(key)
    assert not ring.add(keys[b"a"][4])
    assert [ring.get(key.id) is not None for key in keys[b"a"]] == [False, False, True, True, True]
    for key in keys[b"c"][:2]:
        ring.add(key)
    assert len(ring) == 6  # of whoever had most, one went
    assert ring.get(keys[b"a"][2].id) is None
    assert {key.publisher[:1] for key in ring.all()} == {b"a", b"b", b"c"}


def test_of_an_announcement_only_what_is_for_the_reader_is_tried_and_not_too_much() -> None:
    wrap = wrap_key(KEY, ME.public, SeededEntropy(1))
    for_others = [Wrap(NodeId(n.to_bytes(20)), bytes(16), bytes(81)) for n in range(500)]
    bad = [Wrap(ME.address, n.to_bytes(16), bytes(81)) for n in range(UNWRAPS_MAX)]
    for wraps, learned in [([*for_others, wrap], 1), ([*bad[1:], wrap], 1), ([*bad, wrap], 0)]:
        (content,) = encode_announcements(wraps)
        id = MessageId(STREAM, KEYS_PARTITION, 1, 0, ALICE.address, "c")
        ring = KeyRing()
        assert ring.learn(VerifiedMessage(id, None, KEYS, content, b""), ME) == learned
        assert len(ring) == learned
