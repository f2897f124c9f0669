"""Whom a tracker takes into a stream that not everybody may be in."""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import CheckAccess, CloseLink, Effect, Notify, Send, SetTimer
from shoal.kernel.inputs import AccessChanged, AccessChecked, Started
from shoal.kernel.records import MemberChanged
from shoal.protocols.streams.commands import JoinStream, StreamRefused
from shoal.protocols.streams.config import AccessConfig, NodeConfig, TrackerConfig
from shoal.protocols.streams.messages import (
    FindStorage,
    Instruction,
    Join,
    JoinRefused,
    StorageNodes,
)
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import MEMBER, Tracker
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
    contact,
    of_kind,
    ready_node,
    reasons,
    sent,
)

NOTHING = Verdict(Permission.GRANT, NOW_NS + 120 * S_NS)
NOBODY_KNOWS = Verdict(0, NOW_NS, "the chain is away")
REFUSED = JoinRefused(STREAM, False, "")


def may(*kinds: Permission, until_ns: int = NOW_NS + 120 * S_NS) -> Verdict:
    return Verdict(sum(kinds), until_ns)


class Desk(Bench[Tracker]):
    """A tracker with a registry; Dave keeps the stream."""

    def __init__(self, config: AccessConfig | None = None) -> None:
        keeper = (contact(DAVE),)
        tracker = Tracker(
            lambda stream: RandomPolicy(4, Random(1)),
            storage_of=lambda stream: keeper if stream == STREAM else (),
            access=AccessTable(config),
        )
        super().__init__(tracker)
        self.feed(Started())

    def join(self, peer: NodeId) -> list[Effect]:
        effects = self.receive(peer, Join(STREAM, contact(peer), 0, 0, ()))
        self.link_up(peer)
        return effects

    def answer(self, peer: NodeId, verdict: Verdict) -> list[Effect]:
        effects = self.feed(AccessChecked(STREAM, peer, verdict))
        self.link_up(peer)
        return effects

    def members(self) -> list[NodeId]:
        state = self.machine.streams.get(STREAM)
        return [] if state is None else list(state.members)


@pytest.mark.parametrize("kind", [Permission.PUBLISH, Permission.SUBSCRIBE])
def test_a_join_waits_for_the_registry(kind: Permission) -> None:
    desk = Desk()
    assert desk.join(ALICE) == [CheckAccess(STREAM, ALICE)]
    assert desk.join(ALICE) == [], "said again: that is under way"
    assert desk.members() == []
    effects = desk.answer(ALICE, may(kind))
    assert desk.members() == [ALICE]
    assert [peers for _, peers in sent(effects, Instruction)] == [(ALICE,)]
    assert not of_kind(desk.join(ALICE), CheckAccess), "known from now on"


def test_who_may_do_nothing_gets_no_link_and_is_told_so() -> None:
    desk = Desk()
    desk.join(EVE)
    effects = desk.answer(EVE, NOTHING)
    assert effects[1] == Send(REFUSED, (EVE,))
    assert reasons(effects) == ["no-permission"]
    assert desk.members() == []
    assert desk.join(EVE)[1] == Send(REFUSED, (EVE,)), "at once the next time"
    assert (EVE, MEMBER) not in desk.claims


def test_who_keeps_a_stream_is_taken_in() -> None:
    desk = Desk()
    desk.join(DAVE)
    desk.answer(DAVE, NOTHING)
    assert desk.members() == [DAVE]


def test_while_the_chain_is_away_newcomers_are_told_to_come_again_and_members_stay() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.answer(ALICE, may(Permission.PUBLISH))
    desk.join(BOB)
    refused = desk.answer(BOB, NOBODY_KNOWS)
    assert refused[1] == Send(JoinRefused(STREAM, True, "the chain is away"), (BOB,))
    desk.answer(ALICE, NOBODY_KNOWS)
    assert desk.members() == [ALICE]
    desk.now_ns += AccessConfig().retry_ns
    assert desk.join(BOB) == [CheckAccess(STREAM, BOB)]
    desk.answer(BOB, may(Permission.SUBSCRIBE))
    assert desk.members() == [ALICE, BOB]


def test_a_member_that_lost_its_permission_is_taken_out() -> None:
    desk = Desk()
    for peer in (ALICE, BOB, CAROL):
        desk.join(peer)
        desk.answer(peer, may(Permission.PUBLISH))
    assert desk.feed(AccessChanged(STREAM, BOB)) == [CheckAccess(STREAM, BOB)]
    effects = desk.answer(BOB, NOTHING)
    assert effects[1] == Send(REFUSED, (BOB,))
    assert MemberChanged(STREAM, BOB, False, "revoked") in effects
    assert CloseLink(BOB, MEMBER) in effects
    told = {peer: message for message, peers in sent(effects, Instruction) for peer in peers}
    assert {peer: [c.node for c in said.neighbours] for peer, said in told.items()} == {
        ALICE: [CAROL],
        CAROL: [ALICE],
    }
    assert desk.members() == [ALICE, CAROL]


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (AccessChanged(STREAM), [ALICE, BOB]),
        (AccessChanged(), [ALICE, BOB]),
        (AccessChanged(STREAM, EVE), []),
        (AccessChanged(OTHER_STREAM), []),
    ],
)
def test_a_change_asks_for_those_it_is_about(change: AccessChanged, asked: list[NodeId]) -> None:
    desk = Desk()
    for peer in (ALICE, BOB):
        desk.join(peer)
        desk.answer(peer, may(Permission.SUBSCRIBE))
    assert desk.feed(change) == [CheckAccess(STREAM, peer) for peer in asked]
    assert desk.members() == [ALICE, BOB]


def test_a_permission_that_ends_takes_its_member_along() -> None:
    desk = Desk()
    for peer, end_s in ((ALICE, 120), (BOB, 15)):
        desk.join(peer)
        desk.answer(peer, may(Permission.SUBSCRIBE, until_ns=NOW_NS + end_s * S_NS))
    sweep_ns = TrackerConfig().sweep_ns
    assert of_kind(desk.advance(sweep_ns), CheckAccess) == []
    assert of_kind(desk.advance(sweep_ns), CheckAccess) == [CheckAccess(STREAM, BOB)]
    desk.answer(BOB, NOTHING)
    assert desk.members() == [ALICE]


def test_a_question_after_storage_waits_until_the_stream_is_known() -> None:
    desk = Desk()
    assert desk.receive(EVE, FindStorage(STREAM)) == [CheckAccess(STREAM, EVE)]
    effects = desk.answer(EVE, NOTHING)
    assert effects == [Send(StorageNodes(STREAM, (contact(DAVE),)), (EVE,))]


def test_nobody_keeps_a_stream_only_if_the_registry_says_so() -> None:
    desk = Desk()
    for peer, verdict in ((EVE, NOBODY_KNOWS), (ALICE, NOTHING)):
        desk.receive(peer, FindStorage(OTHER_STREAM))
        effects = desk.feed(AccessChecked(OTHER_STREAM, peer, verdict))
        if verdict.problem:
            assert sent(effects) == []
        else:
            assert sent(effects) == [(StorageNodes(OTHER_STREAM, ()), (peer,))]


def test_joins_that_wait_are_bounded() -> None:
    desk = Desk(AccessConfig(joins_max=2))
    for peer in (ALICE, BOB):
        desk.join(peer)
    assert reasons(desk.join(CAROL)) == ["too-many-joins"]
    desk.answer(ALICE, may(Permission.PUBLISH))
    assert desk.join(CAROL) == [CheckAccess(STREAM, CAROL)]


# At the node


def test_a_refusal_reaches_the_application_and_is_no_silence() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    told = bench.receive(TRACKER, JoinRefused(STREAM, True, "the chain is away"))
    assert told == [
        Notify(StreamRefused(STREAM, True, "the chain is away")),
        SetTimer(("join", STREAM), NodeConfig().refused_ns),
    ]
    joins = 0
    for _ in range(4):  # it is asked again, for longer than a silent tracker would be
        joins += len(sent(bench.advance(NodeConfig().answer_ns // 3), Join))
        bench.receive(TRACKER, JoinRefused(STREAM, True, "the chain is away"))
    assert joins >= 3
    assert bench.machine.trackers.at(STREAM) == TRACKER


def test_nobody_else_may_refuse() -> None:
    bench = ready_node()
    bench.command(JoinStream(STREAM))
    assert reasons(bench.receive(EVE, JoinRefused(STREAM, False, ""))) == ["not-my-tracker"]
    unknown = bench.receive(TRACKER, JoinRefused(OTHER_STREAM, False, ""))
    assert reasons(unknown) == ["not-my-tracker"]
