"""Keys from those who are no neighbours: the tracker names them, and tells them whom to expect."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import GroupKey, wrap_key
from shoal.protocols.streams.commands import FindKey, KeyFound, KeyNotFound
from shoal.protocols.streams.config import ExchangeConfig
from shoal.protocols.streams.messages import Expect, FindHolders, KeyAnswer, KeyHolders, KeyRequest
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

OTHER_STREAM = StreamId("0x" + "11" * 20 + "/other")
FIRST, SECOND = (Contact(NodeId(bytes([n]) * 20), (f"ws://tracker-{n}:1",)) for n in (1, 2))
CONFIG = ExchangeConfig()


def contact(who: PrivateKey) -> Contact:
    return Contact(who.address, (f"ws://{who.address.hex()}:1",))


def sealed(key: GroupKey = KEY, reader: PrivateKey = ME) -> bytes:
    return wrap_key(key, reader.public, SeededEntropy(1)).sealed


# Asking


def asking(*neighbours: PrivateKey) -> Party:
    """Its neighbours have said that they lack the key, and its tracker is being asked."""
    me = Party(ME, neighbours, trackers=[FIRST])
    me.host.link_opened(FIRST.node)
    me.ask()
    for neighbour in neighbours:
        me.host.received(neighbour.address, KeyAnswer(1, None))
    return me


def test_if_no_neighbour_has_it_the_tracker_names_who_may() -> None:
    me = asking(BOB)
    assert me.take() == [
        (BOB.address, request()),
        (FIRST.node, FindHolders(2, STREAM, ALICE.address)),
    ]
    me.host.received(FIRST.node, KeyHolders(2, (contact(ALICE), contact(CAROL))))
    assert me.host.dialled == [contact(ALICE)]
    assert me.take() == []
    me.host.link_opened(ALICE.address)
    assert me.take() == [(ALICE.address, request())]
    me.host.received(ALICE.address, KeyAnswer(1, sealed()))
    assert me.host.notified == [KeyFound("token")]
    me.host.advance(CONFIG.idle_ns)
    assert not any(me.host.links.is_claimed(peer) for peer in (ALICE.address, FIRST.node))
    assert not [slot for slot, _ in me.host.timers if slot == 0]


def test_the_publisher_is_away_and_another_reader_has_it() -> None:
    me = asking(BOB)
    me.host.received(FIRST.node, KeyHolders(2, (contact(ALICE), contact(CAROL))))
    me.host.dial_failed(ALICE.address, "refused")
    assert me.host.dialled == [contact(ALICE), contact(CAROL)]
    me.host.link_opened(CAROL.address)
    me.host.received(CAROL.address, KeyAnswer(1, sealed()))
    assert me.host.notified == [KeyFound("token")]


def test_a_holder_that_cannot_be_reached_or_is_silent_is_passed_over() -> None:
    me = asking()
    me.host.received(FIRST.node, KeyHolders(2, (contact(ALICE), contact(CAROL))))
    me.host.advance(CONFIG.dial_ns)
    assert not me.host.links.is_claimed(ALICE.address)
    me.host.link_opened(CAROL.address)
    assert me.take()[1:] == [(CAROL.address, request())]
    me.host.advance(CONFIG.ask_ns + CONFIG.again_ns)
    # By then others may be there: it is asked again who.
    assert me.take() == [(FIRST.node, FindHolders(3, STREAM, ALICE.address))]
    me.host.received(FIRST.node, KeyHolders(3, (contact(CAROL),)))
    me.host.received(CAROL.address, KeyAnswer(1, sealed()))
    assert me.host.notified == [KeyFound("token")]


def test_whoever_is_in_no_overlay_asks_one_tracker_after_the_other() -> None:
    me = Party(ME, trackers=[FIRST, SECOND])
    me.ask()
    assert me.host.dialled == [FIRST]
    me.host.dial_failed(FIRST.node, "refused")
    me.host.link_opened(SECOND.node)
    assert me.take() == [(SECOND.node, FindHolders(3, STREAM, ALICE.address))]
    me.host.received(SECOND.node, KeyHolders(3, (contact(ALICE),)))
    me.host.link_opened(ALICE.address)
    me.host.received(ALICE.address, KeyAnswer(1, sealed()))
    assert me.host.notified == [KeyFound("token")]


def test_a_tracker_that_refuses_or_knows_nobody_is_asked_again_and_not_for_ever() -> None:
    me = asking()
    me.host.received(FIRST.node, KeyHolders(2, ()))
    me.host.advance(CONFIG.again_ns)
    me.host.advance(CONFIG.patience_ns)  # it says nothing any more: we may not read, perhaps
    assert me.host.notified == [KeyNotFound("token")]
    asked = [message for _, message in me.take()]
    assert 4 <= len(asked) <= 8
    assert {type(message) for message in asked} == {FindHolders}
    me.host.advance(60 * S_NS)
    assert me.take() == []
    assert not [slot for slot, _ in me.host.timers if slot == 0]


def test_one_question_to_the_tracker_serves_all_keys_of_a_publisher() -> None:
    me = asking()
    other_key = GroupKey.generate(STREAM, ALICE.address, SeededEntropy("other"))
    me.host.command(me.machine, FindKey(STREAM, ALICE.address, other_key.id), "other")
    assert me.take() == [(FIRST.node, FindHolders(2, STREAM, ALICE.address))]
    me.host.received(FIRST.node, KeyHolders(2, (contact(ALICE),)))
    me.host.link_opened(ALICE.address)
    assert me.take() == [
        (ALICE.address, request()),
        (ALICE.address, request(number=3, key=other_key.id)),
    ]
    third = GroupKey.generate(STREAM, ALICE.address, SeededEntropy("third"))
    me.host.command(me.machine, FindKey(STREAM, ALICE.address, third.id), "third")
    assert me.take() == [(ALICE.address, request(number=4, key=third.id))]


def test_nobody_is_dialled_whom_our_tracker_did_not_name() -> None:
    me = asking(BOB)
    named = KeyHolders(2, (contact(CAROL),))
    me.host.received(BOB.address, named)
    me.host.received(FIRST.node, KeyHolders(9, (contact(CAROL),)))
    me.host.received(FIRST.node, KeyHolders(2, ()))
    me.host.received(FIRST.node, named)  # once was enough
    assert me.host.dialled == []
    assert me.rejected() == [
        (BOB.address, "unasked-holders"),
        (FIRST.node, "unasked-holders"),
        (FIRST.node, "unasked-holders"),
    ]


def test_an_answer_after_the_search_was_given_up_is_nobodys_fault() -> None:
    config = ExchangeConfig(patience_ns=S_NS // 2)
    me = Party(ME, [BOB], config)
    me.ask()
    me.host.advance(S_NS // 2)
    assert me.host.notified == [KeyNotFound("token")]
    me.host.received(BOB.address, KeyAnswer(1, sealed()))
    assert me.rejected() == []
    assert len(me.ring) == 0


def test_whom_a_tracker_named_can_be_called_in_that_stream() -> None:
    me = asking()
    assert me.machine.streams_of(ALICE.address) == []
    me.host.received(FIRST.node, KeyHolders(2, (contact(ALICE),)))
    assert me.machine.streams_of(ALICE.address) == [STREAM]
    assert me.machine.streams_of(CAROL.address) == []


def test_what_trackers_named_is_bounded() -> None:
    me = Party(ME, config=ExchangeConfig(named_max=2), trackers=[FIRST])
    me.host.link_opened(FIRST.node)
    for name in (b"a", b"b", b"c"):
        me.ask(FindKey(STREAM, NodeId(name * 20), bytes(16)))
        ((_, asked),) = me.take()
        me.host.received(FIRST.node, KeyHolders(asked.request, (contact(ALICE),)))
        me.host.link_opened(ALICE.address) if name == b"a" else None
        me.take()
    assert me.machine.streams_of(ALICE.address) == [STREAM] * 2


# Answering


def holder(verdict: object = YES, config: ExchangeConfig | None = None) -> Party:
    """Alice, with a key, whose neighbour is Bob."""
    alice = Party(ALICE, [BOB], config, trackers=[FIRST])
    alice.ring.add(KEY)
    alice.host.access.verdicts[STREAM, ME.address] = verdict  # type: ignore[assignment]
    return alice


def ask(alice: Party, message: KeyRequest | None = None) -> list[object]:
    alice.host.received(ME.address, message or request())
    alice.host.finish_all()
    return [said for _, said in alice.take()]


def test_who_comes_by_itself_gets_nothing_and_costs_nothing() -> None:
    alice = holder()
    alice.host.link_opened(ME.address)
    alice.host.received(ME.address, request())
    assert not alice.host.slow_work, "the registry is not even asked"
    assert alice.take() == []
    assert alice.rejected() == [(ME.address, "not-introduced")]


def test_who_is_announced_is_dialled_and_gets_the_key_for_a_while() -> None:
    alice = holder()
    alice.host.received(FIRST.node, Expect(STREAM, contact(ME)))
    assert alice.host.dialled == [contact(ME)]
    alice.host.link_opened(ME.address)
    (answer,) = ask(alice)
    assert isinstance(answer, KeyAnswer)
    assert answer.sealed is not None
    assert alice.machine.met == {ME.address: ME.public}
    alice.host.advance(CONFIG.expected_ns)
    assert not alice.host.links.is_claimed(ME.address)
    assert ask(alice) == []
    assert alice.rejected() == [(ME.address, "not-introduced")]


def test_who_is_announced_in_one_stream_has_no_business_in_another() -> None:
    alice = holder()
    alice.host.link_opened(ME.address)
    alice.host.received(FIRST.node, Expect(OTHER_STREAM, contact(ME)))
    assert ask(alice) == []
    alice.host.received(FIRST.node, Expect(STREAM, contact(ME)))
    assert len(ask(alice)) == 1
    assert alice.machine.streams_of(ME.address) == [OTHER_STREAM, STREAM]


def test_a_tracker_that_lets_in_whom_it_likes_gets_nobody_a_key() -> None:
    alice = holder(NO)
    alice.host.link_opened(ME.address)
    alice.host.received(FIRST.node, Expect(STREAM, contact(ME)))
    assert ask(alice) == [KeyAnswer(1, None)]
    assert alice.rejected() == [(ME.address, "key-not-permitted")]


@pytest.mark.parametrize(
    ("tracker", "message", "rejected"),
    [
        (BOB.address, Expect(STREAM, contact(ME)), (BOB.address, "not-my-tracker")),
        (SECOND.node, Expect(STREAM, contact(ME)), (SECOND.node, "not-my-tracker")),
        (FIRST.node, Expect(STREAM, contact(ALICE)), (FIRST.node, "expects-myself")),
    ],
)
def test_nobody_else_has_us_dial_anybody(
    tracker: NodeId, message: Expect, rejected: tuple[NodeId, str]
) -> None:
    alice = holder()
    alice.host.received(tracker, message)
    assert alice.host.dialled == []
    assert alice.rejected() == [rejected]
    alice.host.link_opened(ME.address)
    assert ask(alice) == []


def test_only_so_many_readers_are_expected() -> None:
    alice = holder(config=ExchangeConfig(expected_max=1))
    for reader in (CAROL, CAROL, ME):
        alice.host.received(FIRST.node, Expect(STREAM, contact(reader)))
    assert alice.host.dialled == [contact(CAROL)]
    assert alice.rejected() == [(ME.address, "too-many-readers")]
    alice.host.advance(CONFIG.expected_ns)
    alice.host.received(FIRST.node, Expect(STREAM, contact(ME)))
    assert alice.host.dialled == [contact(CAROL), contact(ME)]


def test_a_reader_that_cannot_be_dialled_is_served_when_it_comes() -> None:
    alice = holder()
    alice.host.received(FIRST.node, Expect(STREAM, Contact(ME.address)))
    alice.host.dial_failed(ME.address, "it gives no address")
    alice.host.link_opened(ME.address)
    assert len(ask(alice)) == 1


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.booleans(), st.floats(0, 0.7))
def test_whatever_gets_lost_costs_time_only(seed: int, permitted: bool, loss: float) -> None:
    """A tracker that says what it is to say, and a publisher; the tracker's words, and theirs to
    each other, get lost. Nobody who may not read is ever given a key."""
    rng = Random(seed)
    me = Party(ME, [BOB], ExchangeConfig(patience_ns=60 * S_NS), trackers=[FIRST])
    alice = holder(YES if permitted else NO)
    alice.host.link_opened(ME.address)
    for peer in (FIRST.node, ALICE.address):
        me.host.link_opened(peer)
    me.ask()

    def lost() -> bool:
        return rng.random() < loss

    def pass_on(peer: NodeId, message: object) -> None:
        if isinstance(message, FindHolders):
            if not lost():
                alice.host.received(FIRST.node, Expect(STREAM, contact(ME)))
            if not lost():
                holders = (contact(CAROL), contact(ALICE))
                me.host.received(FIRST.node, KeyHolders(message.request, holders))
        elif peer == ALICE.address and not lost():
            alice.host.received(ME.address, message)
            alice.host.finish_all()
        for _, answer in alice.take():
            if not lost():
                me.host.received(ALICE.address, answer)

    for _ in range(70):
        while said := me.take():
            for peer, message in said:
                pass_on(peer, message)
        me.host.advance(S_NS)
        alice.host.advance(S_NS)
    assert me.host.notified in ([KeyFound("token")], [KeyNotFound("token")])
    if not permitted:
        assert len(me.ring) == 0
        assert alice.machine.met == {}
    elif loss < 0.3:
        assert me.host.notified == [KeyFound("token")]
    assert FIND.key == KEY.id
