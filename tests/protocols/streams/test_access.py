"""What machines remember of who may do what, and messages that wait for it."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import CheckAccess, Effect, Send, SetTimer, Verify
from shoal.kernel.inputs import AccessChanged, AccessChecked
from shoal.kernel.records import Delivered, ReceivedAgain, ReceivedFirst, Rejected
from shoal.protocols.streams.config import PENDING_BYTES_MIN, AccessConfig, NodeConfig
from shoal.protocols.streams.delivery.flooding import Channel, Flooding
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.permissions import ACCESS, AccessTable
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    NOW_MS,
    NOW_NS,
    OTHER_STREAM,
    STREAM,
    body_of,
    flood_of,
    is_signed,
    message_id,
    of_kind,
    reasons,
)

YES = Verdict(Permission.PUBLISH, NOW_NS + 120 * S_NS)
NO = Verdict(Permission.SUBSCRIBE, NOW_NS + 120 * S_NS)
NOBODY_KNOWS = Verdict(0, NOW_NS, "the chain is away")
CONFIG = AccessConfig()


# The table


def test_a_verdict_counts_until_its_end_and_is_asked_for_once() -> None:
    table = AccessTable()
    assert table.look(STREAM, CAROL, NOW_NS) is None
    assert table.ask(STREAM, CAROL) == [CheckAccess(STREAM, CAROL)]
    assert table.ask(STREAM, CAROL) == [], "that is under way"
    assert table.checked(AccessChecked(STREAM, CAROL, YES), NOW_NS) == YES
    assert table.look(STREAM, CAROL, YES.until_ns - 1) == YES
    assert table.look(STREAM, CAROL, YES.until_ns) is None
    assert table.ask(STREAM, CAROL) == [CheckAccess(STREAM, CAROL)]


def test_no_step_of_the_clock_makes_a_verdict_last_or_end() -> None:
    table = AccessTable()
    ahead_ns = 30 * 86_400 * S_NS
    table.wall.set(ahead_ns, NOW_NS - 100 * S_NS)
    verdict = Verdict(Permission.PUBLISH, NOW_NS + ahead_ns + 120 * S_NS)
    table.checked(AccessChecked(STREAM, CAROL, verdict), NOW_NS)
    table.wall.set(0, NOW_NS + S_NS)
    assert table.look(STREAM, CAROL, NOW_NS + 119 * S_NS) is not None
    assert table.look(STREAM, CAROL, NOW_NS + 120 * S_NS) is None


def test_that_nobody_knows_counts_for_a_moment_only() -> None:
    table = AccessTable()
    table.checked(AccessChecked(STREAM, CAROL, NOBODY_KNOWS), NOW_NS)
    found = table.look(STREAM, CAROL, NOW_NS)
    assert found is not None
    assert (found.permissions, found.problem) == (0, "the chain is away")
    assert table.look(STREAM, CAROL, NOW_NS + CONFIG.retry_ns) is None


STREAMS, NODES = (STREAM, OTHER_STREAM), (ALICE, BOB, CAROL)


class AnyVerdicts(RuleBasedStateMachine):
    """A table against what it was told, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = AccessTable(AccessConfig(verdicts_max=4))
        self.now_ns = NOW_NS
        self.told: dict[tuple[StreamId, NodeId], Verdict] = {}

    @rule(
        stream=st.sampled_from(STREAMS),
        who=st.sampled_from(NODES),
        bits=st.integers(0, 31),
        lasts_ns=st.integers(-1, 3 * S_NS),
        problem=st.sampled_from(["", "", "away"]),
    )
    def answer(self, stream: StreamId, who: NodeId, bits: int, lasts_ns: int, problem: str) -> None:
        verdict = Verdict(0 if problem else bits, self.now_ns + lasts_ns, problem)
        kept = self.table.checked(AccessChecked(stream, who, verdict), self.now_ns)
        assert (kept.permissions, kept.problem) == (verdict.permissions, verdict.problem)
        self.told[stream, who] = kept

    @rule(stream=st.sampled_from([*STREAMS, None]), who=st.sampled_from([*NODES, None]))
    def change(self, stream: StreamId | None, who: NodeId | None) -> None:
        self.table.changed(AccessChanged(stream, who))
        for key in list(self.told):
            if stream in (None, key[0]) and who in (None, key[1]):
                del self.told[key]

    @rule(ns=st.integers(0, 2 * S_NS))
    def time_passes(self, ns: int) -> None:
        self.now_ns += ns

    @invariant()
    def nothing_counts_that_was_not_told_or_is_over(self) -> None:
        assert len(self.table) <= 4
        for stream in STREAMS:
            for who in NODES:
                found = self.table.look(stream, who, self.now_ns)
                if found is not None:
                    assert found == self.told[stream, who]
                    assert self.now_ns < found.until_ns


def test_no_verdict_outlives_a_change_or_its_end() -> None:
    run_state_machine_as_test(
        AnyVerdicts, settings=settings(max_examples=50, stateful_step_count=30)
    )


# Flooding


class Floor:
    """Flooding in one stream, with a registry; Alice, Bob and Dave are neighbours."""

    def __init__(self, config: AccessConfig = CONFIG) -> None:
        self.channel = Channel(STREAM, NodeConfig(), NOW_MS)
        self.channel.neighbours = frozenset((ALICE, BOB, DAVE))
        self.channel.active = (ALICE, BOB, DAVE)
        self.channel.subscribed = True
        self.offences: list[str] = []
        self.flooding = Flooding(
            NodeConfig(), {STREAM: self.channel}, self.offend, access=AccessTable(config)
        )
        self.now_ns = NOW_NS

    def offend(self, peer: NodeId, reason: str, now_ns: int) -> list[Effect]:
        self.offences.append(reason)
        return [Rejected(peer, reason)]

    def take(self, peer: NodeId, flood: Flood) -> list[Effect]:
        effects = self.flooding.receive(peer, flood, self.now_ns)
        checks = of_kind(effects, Verify)
        if not checks:
            return effects
        return self.flooding.verified(flood.signed, is_signed(checks[0]), self.now_ns)

    def answer(self, verdict: Verdict, who: NodeId = CAROL) -> list[Effect]:
        lasting = msgspec.structs.replace(verdict, until_ns=self.now_ns + 120 * S_NS)
        return self.flooding.access_checked(AccessChecked(STREAM, who, lasting), self.now_ns)


def flood(number: int = 0, publisher: NodeId = CAROL, size: int = 0) -> Flood:
    return flood_of(body_of(message_id(number, publisher=publisher), bytes(size)))


def test_a_strangers_message_waits_and_goes_on_when_it_may() -> None:
    floor = Floor()
    assert floor.take(ALICE, flood()) == [CheckAccess(STREAM, CAROL)]
    assert of_kind(floor.take(BOB, flood()), ReceivedAgain), "a copy of what waits"
    assert floor.take(ALICE, flood(1)) == [], "one question is enough"
    effects = floor.answer(YES)
    assert [r.message.sequence for r in of_kind(effects, ReceivedFirst)] == [0, 1]
    assert [send.peers for send in of_kind(effects, Send)] == [(BOB, DAVE)] * 2
    assert floor.flooding.pending_count() == 0
    assert of_kind(floor.take(BOB, flood(2)), ReceivedFirst), "known from now on"


def test_a_forged_message_asks_nobody() -> None:
    floor = Floor()
    forged = flood_of(body_of(message_id()), signer=EVE)
    assert reasons(floor.take(ALICE, forged)) == ["bad-signature"]


def test_what_is_not_permitted_goes_nowhere_and_is_not_seen() -> None:
    floor = Floor()
    floor.take(ALICE, flood())
    assert floor.answer(NO) == [Rejected(ALICE, "no-permission")]
    # Known by now: not even its signature is checked.
    assert floor.flooding.receive(BOB, flood(1), NOW_NS) == [Rejected(BOB, "no-permission")]
    floor.flooding.access_changed(AccessChanged(STREAM, CAROL))
    floor.take(BOB, flood())
    assert of_kind(floor.answer(YES), Delivered), "it was never seen: it comes again, and counts"


def test_a_revocation_stops_the_next_message() -> None:
    floor = Floor()
    floor.take(ALICE, flood())
    floor.answer(YES)
    floor.flooding.access_changed(AccessChanged(STREAM, CAROL))
    assert floor.take(ALICE, flood(1)) == [CheckAccess(STREAM, CAROL)]
    assert floor.answer(NO) == [Rejected(ALICE, "no-permission")]


def test_a_permission_that_ends_under_a_signature_check_counts_no_more() -> None:
    floor = Floor()
    floor.take(ALICE, flood())
    floor.answer(YES)
    late = flood(1)
    (check,) = floor.flooding.receive(ALICE, late, floor.now_ns)
    assert isinstance(check, Verify)
    floor.now_ns += 121 * S_NS
    effects = floor.flooding.verified(late.signed, True, floor.now_ns)
    assert effects == [CheckAccess(STREAM, CAROL)]


def test_while_the_chain_is_away_messages_wait_and_nothing_is_lost() -> None:
    floor = Floor()
    floor.take(ALICE, flood())
    timer = SetTimer((ACCESS, STREAM, CAROL), CONFIG.retry_ns)
    assert floor.answer(NOBODY_KNOWS) == [timer]
    assert floor.take(ALICE, flood(1)) == [timer]
    floor.now_ns += CONFIG.retry_ns
    assert floor.flooding.ask_again(STREAM, CAROL) == [CheckAccess(STREAM, CAROL)]
    assert len(of_kind(floor.answer(YES), Delivered)) == 2
    assert floor.flooding.ask_again(STREAM, CAROL) == []


def test_what_waits_becomes_stale_and_is_let_go() -> None:
    floor = Floor()
    floor.take(ALICE, flood())
    floor.now_ns += NodeConfig().freshness_ns + S_NS
    assert floor.answer(NOBODY_KNOWS) == [Rejected(ALICE, "permission-unknown")]
    assert floor.flooding.pending_count() == 0


def test_what_one_link_may_have_us_hold_is_bounded_and_apart_from_checks() -> None:
    floor = Floor(AccessConfig(held_bytes_max=2 * PENDING_BYTES_MIN))
    for number in range(2):
        floor.take(ALICE, flood(number))
    assert reasons(floor.take(ALICE, flood(2))) == ["permission-unknown"]
    floor.answer(YES, EVE)
    assert of_kind(floor.take(ALICE, flood(0, EVE)), Delivered), "the others go on"
    floor.answer(YES)
    floor.flooding.access_changed(AccessChanged())
    assert floor.take(ALICE, flood(3)) == [CheckAccess(STREAM, CAROL)], "there is room again"


def test_one_link_may_ask_for_so_many_strangers() -> None:
    floor = Floor(AccessConfig(strangers_burst=2))
    for number, publisher in enumerate((CAROL, EVE)):
        assert floor.take(ALICE, flood(number, publisher)) == [CheckAccess(STREAM, publisher)]
    assert reasons(floor.take(ALICE, flood(0, DAVE))) == ["too-many-strangers"]
    assert floor.take(BOB, flood(0, DAVE)) == [CheckAccess(STREAM, DAVE)]


def test_a_neighbour_is_blamed_only_for_what_no_honest_one_does() -> None:
    floor = Floor()
    floor.take(ALICE, flood())
    floor.answer(NO)
    apart_ns = 2 * CONFIG.staleness_ns

    def refuse(later_ns: int, number: int) -> None:
        floor.now_ns += later_ns
        id = message_id(number, timestamp_ms=floor.now_ns // 1_000_000)
        floor.take(ALICE, flood_of(body_of(id)))
        floor.answer(NO)

    refuse(S_NS, 1)
    refuse(3 * apart_ns, 2)  # long after: another story
    assert floor.offences == []
    for number in range(3, 8):
        refuse(apart_ns // 3, number)
    assert floor.offences == ["no-permission"], "it goes on for longer than two can disagree"


def test_who_leaves_a_stream_waits_for_nothing() -> None:
    floor = Floor()
    floor.take(ALICE, flood())
    floor.flooding.leave(STREAM)
    assert floor.flooding.pending_count() == 0
    assert floor.answer(YES) == []


class AnyOrder(RuleBasedStateMachine):
    """Messages, verdicts and changes of them in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.floor = Floor(AccessConfig(held_bytes_max=4 * PENDING_BYTES_MIN))
        self.may = {CAROL: True, EVE: False}
        self.asked: list[NodeId] = []
        self.delivered: set[object] = set()
        self.number = 0

    def saw(self, effects: list[Effect]) -> None:
        self.asked += [effect.who for effect in of_kind(effects, CheckAccess)]
        for record in of_kind(effects, Delivered):
            assert record.message not in self.delivered
            self.delivered.add(record.message)
            assert self.may[record.message.publisher]

    @rule(peer=st.sampled_from([ALICE, BOB]), who=st.sampled_from([CAROL, EVE]), old=st.booleans())
    def message(self, peer: NodeId, who: NodeId, old: bool) -> None:
        self.number += not old
        self.saw(self.floor.take(peer, flood(self.number, who)))

    @rule(away=st.booleans())
    def answers(self, away: bool) -> None:
        asked, self.asked = self.asked, []
        for who in asked:
            verdict = NOBODY_KNOWS if away else YES if self.may[who] else NO
            self.saw(self.floor.answer(verdict, who))

    @rule(who=st.sampled_from([CAROL, EVE]))
    def change(self, who: NodeId) -> None:
        self.may[who] = not self.may[who]
        self.floor.flooding.access_changed(AccessChanged(STREAM, who))

    @rule()
    def time_passes(self) -> None:
        self.floor.now_ns += CONFIG.retry_ns
        for who in (CAROL, EVE):
            self.saw(self.floor.flooding.ask_again(STREAM, who))

    @invariant()
    def bounded(self) -> None:
        assert self.floor.flooding.pending_count() <= 2 * 4
        assert len(self.asked) == len(set(self.asked)), "one question for each"


def test_whatever_the_order_nothing_unpermitted_is_delivered() -> None:
    run_state_machine_as_test(AnyOrder, settings=settings(max_examples=60, stateful_step_count=40))
