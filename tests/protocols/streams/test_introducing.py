"""Whom a tracker has a reader ask for keys, who may not ask, and who may call whom after it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import S_NS
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import CheckAccess, Effect, Send
from shoal.kernel.inputs import AccessChanged, AccessChecked, Started
from shoal.kernel.records import Rejected
from shoal.protocols.streams.config import HOLDERS_MAX, TrackerConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Expect, FindHolders, Join, KeyHolders, Leave, Signal
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.signalling import Signaller, SignalRelay
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import LOOKED_AT_MAX, Tracker
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    MALLORY,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
    contact,
    linked_node,
    node,
)

READS, PUBLISHES = int(Permission.SUBSCRIBE), int(Permission.PUBLISH)
RELAYS = [node(100 + number) for number in range(12)]
CONFIG = TrackerConfig()


class Desk(Bench[Tracker]):
    """A tracker with a registry, and the relay beside it; Dave keeps the stream."""

    def __init__(self, readers: list[NodeId], publishers: list[NodeId]) -> None:
        tracker = Tracker(
            lambda stream: RandomPolicy(4, Random(1)),
            storage_of=lambda stream: (contact(DAVE),),
            access=AccessTable(),
        )
        super().__init__(tracker)
        self.relay = SignalRelay(tracker.streams)
        self.feed(Started())
        for members, kinds in ((publishers, PUBLISHES), (readers, READS)):
            for member in members:
                self.join(member, kinds)

    def join(self, member: NodeId, kinds: int) -> None:
        self.receive(member, Join(STREAM, contact(member), 0, 0, ()))
        self.know(member, kinds)
        self.link_up(member)

    def know(self, who: NodeId, kinds: int, problem: str = "") -> list[Effect]:
        verdict = Verdict(kinds, NOW_NS + 120 * S_NS, problem)
        return self.feed(AccessChecked(STREAM, who, verdict))

    def find(
        self, reader: NodeId, publisher: NodeId = ALICE, stream: StreamId = STREAM
    ) -> list[Effect]:
        return self.receive(reader, FindHolders(7, stream, publisher))

    def signal(self, one: NodeId, other: NodeId) -> list[str]:
        signal = Signal(STREAM, other, b"call me")
        effects = Bench(self.relay, now_ns=self.now_ns).receive(one, signal)
        return [effect.reason for effect in effects if isinstance(effect, Rejected)]


def named(*holders: NodeId) -> KeyHolders:
    return KeyHolders(7, tuple(map(contact, holders)))


def introduced(reader: Contact, *holders: NodeId) -> list[Effect]:
    """Those who are named hear of it first: the reader is on its way when it knows of them."""
    return [Send(Expect(STREAM, reader), holders), Send(named(*holders), (reader.node,))]


def test_the_publisher_is_named_and_others_who_may_read() -> None:
    desk = Desk([BOB, CAROL], [ALICE, *RELAYS])
    desk.join(DAVE, 0)
    assert desk.find(BOB) == introduced(contact(BOB), ALICE, CAROL)
    assert desk.find(BOB) == introduced(contact(BOB), ALICE, CAROL), "the same again"


def test_a_publisher_that_is_away_or_cannot_be_told_is_not_named() -> None:
    desk = Desk([BOB, CAROL], [ALICE])
    desk.link_down(ALICE)
    assert desk.find(BOB) == introduced(contact(BOB), CAROL)
    desk.receive(ALICE, Leave(STREAM))
    desk.receive(CAROL, Leave(STREAM))
    assert desk.find(BOB) == [Send(named(), (BOB,))]
    desk.receive(BOB, Leave(STREAM))
    assert desk.find(BOB) == [Send(named(), (BOB,))], "nobody is in the stream at all"


def test_whoever_only_reads_history_is_told_as_well_and_has_to_dial() -> None:
    desk = Desk([], [ALICE])
    assert desk.find(BOB) == [CheckAccess(STREAM, BOB)]
    assert desk.know(BOB, READS) == introduced(Contact(BOB), ALICE)


@pytest.mark.parametrize(
    ("kinds", "problem", "reason"),
    [
        (0, "", "key-not-permitted"),
        (PUBLISHES, "", "key-not-permitted"),
        (int(Permission.GRANT | Permission.EDIT), "", "key-not-permitted"),
        (0, "the chain is away", "permission-unknown"),
    ],
)
def test_who_may_not_read_learns_nothing(kinds: int, problem: str, reason: str) -> None:
    desk = Desk([CAROL], [ALICE])
    assert desk.find(EVE) == [CheckAccess(STREAM, EVE)]
    assert desk.know(EVE, kinds, problem) == [Rejected(EVE, reason)]
    assert desk.find(EVE) == [Rejected(EVE, reason)], "at once the next time"


def test_members_that_may_only_publish_learn_nothing_either() -> None:
    desk = Desk([BOB], [ALICE, MALLORY])
    assert desk.find(MALLORY) == [Rejected(MALLORY, "key-not-permitted")]


def test_who_is_revoked_is_told_nothing_more_and_named_no_more() -> None:
    desk = Desk([BOB, CAROL], [ALICE])
    assert desk.feed(AccessChanged(STREAM, CAROL)) == [CheckAccess(STREAM, CAROL)]
    assert desk.find(BOB) == introduced(contact(BOB), ALICE), "nobody knows what Carol may do"
    desk.know(CAROL, PUBLISHES)
    assert desk.find(BOB) == introduced(contact(BOB), ALICE)
    assert desk.find(CAROL) == [Rejected(CAROL, "key-not-permitted")]


def test_a_reader_asks_no_more_often_than_it_may() -> None:
    desk = Desk([BOB], [ALICE])
    for _ in range(CONFIG.questions_burst):
        assert desk.find(BOB) == introduced(contact(BOB), ALICE)
    assert desk.find(BOB) == [Rejected(BOB, "too-many-questions")]
    desk.now_ns += CONFIG.questions_refill_ns
    assert desk.find(BOB) == introduced(contact(BOB), ALICE)


@given(st.integers(0, 8), st.integers(1, 8), st.booleans())
def test_few_are_named_all_of_whom_may_read(readers: int, relays: int, there: bool) -> None:
    may_read = [node(1000 + number) for number in range(readers)]
    publishers = [node(3000 + number) for number in range(relays)]
    desk = Desk([*may_read, BOB], [*publishers, ALICE] if there else publishers)
    answers = [e.message for e in desk.find(BOB) if isinstance(e, Send)]
    holders = [c.node for c in answers[-1].contacts]
    assert len(set(holders)) == len(holders) <= HOLDERS_MAX
    assert set(holders) <= {*may_read, ALICE}
    assert holders[:1] == [ALICE] if there else ALICE not in holders
    assert len(holders) == there + min(readers, HOLDERS_MAX - there)


def test_no_more_members_are_looked_at_than_one_question_is_worth() -> None:
    desk = Desk([BOB], [node(200 + number) for number in range(2 * LOOKED_AT_MAX)])
    desk.join(CAROL, READS)
    readers = [node(500 + number) for number in range(130)]
    for reader in readers:
        desk.know(reader, READS)
    found = [
        any(c.node == CAROL for c in effect.message.contacts)
        for reader in readers
        for effect in desk.find(reader, ALICE)
        if isinstance(effect, Send) and isinstance(effect.message, KeyHolders)
    ]
    assert 0 < sum(found) < len(readers), "some begin too far from her: each at another member"


# Calls


def stranger_to(desk: Desk, member: NodeId) -> NodeId:
    """Somebody that it is not linked with."""
    linked = desk.machine.streams[STREAM].policy.neighbours(member)
    return next(relay for relay in RELAYS if relay not in linked)


def test_who_was_introduced_may_call_and_be_called_for_a_while() -> None:
    desk = Desk([BOB], RELAYS)
    publisher = stranger_to(desk, BOB)
    other = next(r for r in RELAYS if r != publisher and desk.signal(BOB, r) == ["not-instructed"])
    assert desk.signal(BOB, publisher) == ["not-instructed"]
    desk.find(BOB, publisher)
    assert desk.signal(BOB, publisher) == desk.signal(publisher, BOB) == []
    assert desk.signal(BOB, other) == ["not-instructed"]
    desk.now_ns += CONFIG.introduced_ns
    assert desk.signal(BOB, publisher) == desk.signal(publisher, BOB) == ["not-instructed"]


def test_who_was_refused_may_call_nobody() -> None:
    desk = Desk([BOB], [*RELAYS, MALLORY])
    publisher = stranger_to(desk, MALLORY)
    desk.find(MALLORY, publisher)
    assert desk.signal(MALLORY, publisher) == ["not-instructed"]


def test_a_reader_may_call_only_so_many() -> None:
    desk = Desk([BOB], [node(200 + number) for number in range(60)])
    for number in range(60):
        desk.find(BOB, node(200 + number))
    introduced = desk.machine.streams[STREAM].members[BOB].introduced
    assert list(introduced) == [node(200 + n) for n in range(60 - CONFIG.introduced_max, 60)]


def test_a_node_calls_those_whom_it_was_told_of_for_keys() -> None:
    streams: Bench[StreamNode] = linked_node(ALICE)
    told = {BOB: [STREAM], CAROL: [OTHER_STREAM]}
    signaller = Signaller(streams.machine, lambda peer: told.get(peer, []))
    assert signaller.route(BOB) == (STREAM, TRACKER)
    assert signaller.route(CAROL) is None, "of a stream that we are not in"
    assert signaller.route(EVE) is None
