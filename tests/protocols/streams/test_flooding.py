"""Flooding, copy by copy: exact effects of every way in which a message can come."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.base.ids import INT63_MAX, MessageId, NodeId
from shoal.base.units import KIB, MS_NS, US_NS
from shoal.identity.stream_message import CONTENT_BYTES_MAX, Position, encode_body
from shoal.kernel.effects import Effect, Notify, Send, Verify
from shoal.kernel.records import (
    Delivered,
    Equivocation,
    GapAbandoned,
    ReceivedAgain,
    ReceivedFirst,
    Rejected,
    Sent,
)
from shoal.protocols.streams.chains import ChainTable
from shoal.protocols.streams.channel import Channel
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.config import HOPS_MAX, NodeConfig
from shoal.protocols.streams.flooding import Flooding
from shoal.protocols.streams.history.messages import FilledFromStorage
from shoal.protocols.streams.messages import Close, Flood, VerifiedMessage
from shoal.protocols.streams.placed import read_placed
from shoal.protocols.streams.wire import StreamsCodec
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    MALLORY,
    ME,
    NOW_MS,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    body_of,
    flood_of,
    is_signed,
    message_id,
    node,
    of_kind,
    placed,
    reasons,
)

NOW_US = NOW_NS // US_NS


class Floor:
    """Flooding in one stream, with Alice, Bob and Dave as neighbours that get data."""

    def __init__(self, config: NodeConfig | None = None, *, subscribed: bool = False) -> None:
        self.config = config or NodeConfig()
        self.channel = Channel(STREAM, self.config, NOW_MS)
        self.channel.neighbours = frozenset((ALICE, BOB, DAVE))
        self.channel.active = (ALICE, BOB, DAVE)
        self.channel.subscribed = subscribed
        self.channels = {STREAM: self.channel}
        self.flooding = Flooding(self.config, self.channels, self.offend)
        self.offences: list[tuple[NodeId, str]] = []
        self.now_ns = NOW_NS

    def offend(self, peer: NodeId, reason: str, now_ns: int) -> list[Effect]:
        self.offences.append((peer, reason))
        return [Rejected(peer, reason)]

    def has_seen(self, id: MessageId) -> bool:
        here = placed(id)
        return bool(self.channel.seen.seen(here.chain, here.number))

    def receive(self, peer: NodeId, flood: Flood) -> list[Effect]:
        return self.flooding.receive(peer, flood, self.now_ns)

    def verified(self, flood: Flood, valid: bool = True) -> list[Effect]:
        return self.flooding.verified(flood.signed, valid, self.now_ns)

    def take(self, peer: NodeId, flood: Flood) -> list[Effect]:
        """A copy comes in, is checked, and what follows."""
        effects = self.receive(peer, flood)
        if not of_kind(effects, Verify):
            return effects
        (check,) = effects
        assert isinstance(check, Verify)
        return self.verified(flood, is_signed(check))


def verify_of(flood: Flood, signer: NodeId = CAROL) -> Verify:
    return Verify(signer, flood.signed, flood.signed)


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


# Refused


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


def test_a_link_may_have_so_many_messages_unverified() -> None:
    floor = Floor(NodeConfig(pending_bytes_max=16 * KIB))
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
    floor = Floor(NodeConfig(pending_bytes_max=16 * KIB))
    big, small = (body_of(message_id(n), content=b"x" * n) for n in (9 * KIB, 1))
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


# All of it at once

SMALL = NodeConfig(
    pending_bytes_max=24 * KIB,
    chains_per_publisher_max=1,
    chains_per_stream_max=2,
    ranges_per_chain_max=3,
    freshness_ns=10 * MS_NS,
    future_ns=3 * MS_NS,
)
PUBLISHERS = (CAROL, EVE, node(99))


class AnyCopies(RuleBasedStateMachine):
    """Copies, forgeries and contradictions from several neighbours, checks that take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.floor = Floor(SMALL, subscribed=True)
        self.waiting: list[Verify] = []
        self.taken: set[MessageId] = set()
        self.delivered: set[MessageId] = set()
        self.contradicted: set[MessageId] = set()
        self.made: list[Flood] = []

    @rule(
        peer=st.sampled_from([ALICE, BOB, DAVE, MALLORY]),
        publisher=st.sampled_from(PUBLISHERS),
        chain=st.sampled_from("abc"),
        age_ms=st.integers(-4, 12),
        sequence=st.integers(0, 1),
        back=st.none() | st.integers(-2, 6),
        content=st.sampled_from([b"one", b"two"]),
        honest=st.booleans(),
    )
    def new_copy(
        self,
        peer: NodeId,
        publisher: NodeId,
        chain: str,
        age_ms: int,
        sequence: int,
        back: int | None,
        content: bytes,
        honest: bool,
    ) -> None:
        timestamp_ms = self.floor.now_ns // MS_NS - age_ms
        id = message_id(sequence, publisher=publisher, chain=chain, timestamp_ms=timestamp_ms)
        previous = None if back is None else Position(timestamp_ms - back, sequence)
        flood = flood_of(body_of(id, content, previous), signer=None if honest else MALLORY)
        self.made.append(flood)
        self.arrives(peer, flood)

    @rule(peer=st.sampled_from([ALICE, BOB, DAVE]), data=st.data())
    def old_copy(self, peer: NodeId, data: st.DataObject) -> None:
        if self.made:
            self.arrives(peer, data.draw(st.sampled_from(self.made)))

    def arrives(self, peer: NodeId, flood: Flood) -> None:
        effects = self.floor.receive(peer, flood)
        self.waiting += of_kind(effects, Verify)

    @rule(count=st.integers(1, 4))
    def checks_return(self, count: int) -> None:
        for check in self.waiting[:count]:
            token: object = check.token
            assert isinstance(token, bytes)
            valid = is_signed(check)
            effects = self.floor.flooding.verified(token, valid, self.floor.now_ns)
            self.taken.update(record.message for record in of_kind(effects, ReceivedFirst))
            for record in of_kind(effects, Delivered):
                assert valid
                assert record.message not in self.delivered
                self.delivered.add(record.message)
            assert not valid or "bad-signature" not in reasons(effects)
            for found in of_kind(effects, Equivocation):
                assert valid
                assert effects == [found, of_kind(effects, Notify)[0]]  # goes nowhere else
                assert found.message in self.taken  # and delivered, when its turn comes
                assert found.message not in self.contradicted
                self.contradicted.add(found.message)
        del self.waiting[:count]

    @rule(ms=st.integers(1, 8) | st.just(1000))
    def time_passes(self, ms: int) -> None:
        self.floor.now_ns += ms * MS_NS

    @invariant()
    def bounded(self) -> None:
        assert self.floor.flooding.pending_count() == len(self.waiting) <= 3 * 3
        assert self.floor.channel.seen.chain_count() <= 1 * 2


def test_whatever_comes_nothing_is_delivered_twice_and_all_is_bounded() -> None:
    run_state_machine_as_test(
        AnyCopies, settings=settings(max_examples=200, stateful_step_count=50)
    )
