"""A tracker whose policy improves: when rounds come, who is asked to probe, what is believed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS, US_NS
from shoal.kernel.effects import Effect, SetTimer
from shoal.kernel.inputs import TimerFired
from shoal.protocols.streams.config import PROBES_MAX
from shoal.protocols.streams.messages import Join, Leave, Left, Probe, Probed, Rtt
from shoal.protocols.streams.topology.policy import Improvement, LinkChanges, Pair
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.stream_record import LinkDelay, TrackedStream
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    MALLORY,
    OTHER_STREAM,
    STREAM,
    contact,
    node,
    reasons,
    sent,
)
from tests.support.tracker_desk import Desk, LoggedPolicy, instructions

IMPROVE = ("improve", STREAM)
PAUSE_NS = 10 * S_NS


class ScriptedPolicy(LoggedPolicy):
    """Does in its next round what it is told, and remembers who was settled."""

    def __init__(self, degree: int, rng: Random) -> None:
        super().__init__(degree, rng)
        self.pause: int | None = PAUSE_NS
        self.hurry_ns: int | None = None
        self.next = Improvement()
        self.rounds: list[tuple[int, list[NodeId]]] = []

    @property
    def pause_ns(self) -> int | None:
        return self.pause

    def join(self, node: NodeId) -> LinkChanges:
        self.pause = self.hurry_ns or self.pause
        return super().join(node)

    def leave(self, node: NodeId) -> LinkChanges:
        self.pause = self.hurry_ns or self.pause
        return super().leave(node)

    def improve(self, settled: Callable[[NodeId], bool], now_ns: int) -> Improvement:
        self.rounds.append((now_ns, [member for member in self.nodes if settled(member)]))
        done, self.next = self.next, Improvement()
        return done


def desk_with(*members: NodeId) -> tuple[Desk, ScriptedPolicy]:
    """A tracker with these members, all quiet, and the policy of their stream."""
    desk = Desk(kind=ScriptedPolicy)
    for member in members:
        desk.join(member)
    desk.quiet()
    return desk, policy_of(desk)


def policy_of(desk: Desk, stream: StreamId = STREAM) -> ScriptedPolicy:
    policy = desk.policies[stream]
    assert isinstance(policy, ScriptedPolicy)
    return policy


def ask(desk: Desk, policy: ScriptedPolicy, member: NodeId, *others: NodeId) -> list[Effect]:
    policy.next = Improvement(probes=((member, others),))
    return desk.fire(IMPROVE)


# When


def test_the_first_join_sets_the_timer_and_each_round_the_next() -> None:
    desk = Desk(kind=ScriptedPolicy)
    assert SetTimer(IMPROVE, PAUSE_NS) in desk.join(ALICE)
    begun_ns = desk.now_ns
    policy = policy_of(desk)
    policy.pause = 3 * S_NS
    assert desk.fire(IMPROVE) == [SetTimer(IMPROVE, 3 * S_NS)]
    assert [at_ns for at_ns, _ in policy.rounds] == [begun_ns + PAUSE_NS]


def test_a_policy_without_rounds_has_no_timer() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert not [key for key in desk.timers if key[0] == "improve"]  # type: ignore[index]


def test_joins_do_not_put_the_next_round_off() -> None:
    desk, policy = desk_with(ALICE)
    due_ns = desk.timers[IMPROVE]
    for number in range(20):
        desk.advance(S_NS // 4)
        assert SetTimer(IMPROVE, PAUSE_NS) not in desk.join(node(100 + number))
    assert desk.timers[IMPROVE] == due_ns
    desk.advance(PAUSE_NS)
    assert policy.rounds[0][0] == due_ns


def test_who_comes_or_goes_brings_the_next_round_forward_if_the_policy_wants_that() -> None:
    desk, policy = desk_with(ALICE, CAROL)
    policy.hurry_ns = 2 * S_NS
    assert SetTimer(IMPROVE, 2 * S_NS) in desk.join(BOB)
    policy.hurry_ns = S_NS
    assert SetTimer(IMPROVE, S_NS) in desk.receive(CAROL, Leave(STREAM))
    assert desk.timers[IMPROVE] == desk.now_ns + S_NS


def test_each_stream_has_rounds_of_its_own() -> None:
    desk, policy = desk_with(ALICE)
    desk.advance(S_NS)
    desk.join(BOB, OTHER_STREAM)
    assert desk.timers["improve", OTHER_STREAM] == desk.timers[IMPROVE] + S_NS
    desk.fire(IMPROVE)
    assert len(policy.rounds) == 1
    assert policy_of(desk, OTHER_STREAM).rounds == []


def test_a_stream_that_emptied_has_no_more_rounds() -> None:
    desk, policy = desk_with(ALICE)
    desk.receive(ALICE, Leave(STREAM))
    assert desk.feed(TimerFired(IMPROVE)) == []
    assert policy.rounds == []


def test_a_takeover_comes_first() -> None:
    desk, policy = desk_with(ALICE)
    desk.receive(BOB, Join(STREAM, contact(BOB), 0, 0, (CAROL, DAVE)))
    policy.pause = S_NS // 2
    assert desk.feed(TimerFired(IMPROVE)) == [SetTimer(IMPROVE, S_NS // 2)], "later, and again"
    assert policy.rounds == []
    desk.fire(("settle", STREAM))
    desk.fire(IMPROVE)
    assert len(policy.rounds) == 1


# What


def test_only_those_who_did_what_they_were_told_last_are_settled() -> None:
    desk, policy = desk_with(ALICE, BOB, CAROL)
    desk.join(DAVE)  # everybody has a new neighbour
    desk.status(BOB)
    desk.status(DAVE)
    desk.feed(TimerFired(IMPROVE))
    assert policy.rounds[0][1] == [BOB, DAVE]


def test_links_that_are_exchanged_are_told_to_all_four() -> None:
    members = [node(number) for number in range(100, 112)]
    desk, policy = desk_with(*members)
    graph = policy._graph
    a, b = graph.links[0]
    c, e = next(
        (c, e)
        for c, e in graph.links
        if not {a, b} & {c, e} and not (graph.linked(a, c) or graph.linked(b, e))
    )
    for cut in ((a, b), (c, e)):
        graph.cut(*cut)
    for made in ((a, c), (b, e)):
        graph.link(*made)
    policy.next = Improvement(graph.take_changes())
    orders = instructions(desk.fire(IMPROVE))
    assert set(orders) == {a, b, c, e}
    named = {contact.node for contact in orders[a].neighbours}
    assert c in named
    assert b not in named
    assert not any(desk.machine.streams[STREAM].is_settled(member) for member in (a, b, c, e))


def test_whom_the_policy_wants_measured_is_asked_for() -> None:
    desk, policy = desk_with(ALICE, BOB, CAROL)
    effects = ask(desk, policy, ALICE, BOB, CAROL)
    assert sent(effects, Probe) == [(Probe(STREAM, (contact(BOB), contact(CAROL))), (ALICE,))]
    assert SetTimer(IMPROVE, PAUSE_NS) in effects


# What is believed


def test_what_was_asked_for_is_learned() -> None:
    desk, policy = desk_with(ALICE, BOB, CAROL)
    ask(desk, policy, ALICE, BOB, CAROL)
    policy.delays.clear()
    assert desk.receive(ALICE, Probed(STREAM, (Rtt(CAROL, 700), Rtt(BOB, 900)))) == []
    assert policy.delays == [(ALICE, CAROL, 700 * US_NS), (ALICE, BOB, 900 * US_NS)]
    state = desk.machine.streams[STREAM]
    assert state.delays == {}, "they are no links"


def test_a_member_that_measured_nothing_says_so() -> None:
    desk, policy = desk_with(ALICE, BOB)
    ask(desk, policy, ALICE, BOB)
    assert desk.receive(ALICE, Probed(STREAM, ())) == []
    assert policy.delays == []


@pytest.mark.parametrize("rtts", [(Rtt(DAVE, 1),), (Rtt(BOB, 1), Rtt(DAVE, 1)), (Rtt(ALICE, 1),)])
def test_more_than_was_asked_for_is_refused_as_a_whole(rtts: tuple[Rtt, ...]) -> None:
    desk, policy = desk_with(ALICE, BOB, CAROL, DAVE)
    ask(desk, policy, ALICE, BOB, CAROL)
    policy.delays.clear()
    assert reasons(desk.receive(ALICE, Probed(STREAM, rtts))) == ["unasked-probe"]
    assert policy.delays == []


def test_nobody_answers_twice_or_for_another() -> None:
    desk, policy = desk_with(ALICE, BOB, CAROL)
    ask(desk, policy, ALICE, BOB)
    policy.delays.clear()
    word = Probed(STREAM, (Rtt(BOB, 900),))
    assert reasons(desk.receive(CAROL, word)) == ["unasked-probe"]
    assert desk.receive(ALICE, word) == []
    assert reasons(desk.receive(ALICE, word)) == ["unasked-probe"]
    assert len(policy.delays) == 1


def test_an_answer_may_cross_the_next_question() -> None:
    desk, policy = desk_with(ALICE, BOB, CAROL)
    ask(desk, policy, ALICE, BOB)
    ask(desk, policy, ALICE, CAROL)
    policy.delays.clear()
    assert desk.receive(ALICE, Probed(STREAM, (Rtt(BOB, 900),))) == []
    assert desk.receive(ALICE, Probed(STREAM, (Rtt(CAROL, 700),))) == []
    assert [delay[1] for delay in policy.delays] == [BOB, CAROL]


def test_questions_that_stay_open_are_not_kept_for_ever() -> None:
    strangers = [node(number) for number in range(100, 200)]
    desk, policy = desk_with(ALICE, *strangers)
    for stranger in strangers:
        ask(desk, policy, ALICE, stranger)
    assert len(desk.machine.streams[STREAM].members[ALICE].probing) == 2 * PROBES_MAX


def test_of_whom_has_left_meanwhile_nothing_is_learned() -> None:
    desk, policy = desk_with(ALICE, BOB, CAROL)
    ask(desk, policy, ALICE, BOB, CAROL)
    desk.receive(BOB, Leave(STREAM))
    policy.delays.clear()
    assert desk.receive(ALICE, Probed(STREAM, (Rtt(BOB, 900), Rtt(CAROL, 700)))) == []
    assert policy.delays == [(ALICE, CAROL, 700 * US_NS)]


def test_strangers_are_told_that_they_are_none_of_us() -> None:
    desk, policy = desk_with(ALICE, BOB)
    for stream in (STREAM, OTHER_STREAM):
        effects = desk.receive(MALLORY, Probed(stream, (Rtt(BOB, 1),)))
        assert reasons(effects) == ["not-a-member"]
        assert sent(effects) == [(Left(stream), (MALLORY,))]
    assert policy.delays == []


def test_who_left_and_came_back_was_not_asked() -> None:
    desk, policy = desk_with(ALICE, BOB)
    ask(desk, policy, ALICE, BOB)
    desk.receive(ALICE, Leave(STREAM))
    desk.join(ALICE)
    assert reasons(desk.receive(ALICE, Probed(STREAM, (Rtt(BOB, 900),)))) == ["unasked-probe"]


# Impossible state


def test_impossible_state_is_noticed() -> None:
    desk, _ = desk_with(ALICE, BOB, CAROL)
    state = desk.machine.streams[STREAM]
    newest = (desk.machine.epoch, desk.machine.counter)
    state.check_invariants(STREAM, newest)
    with pytest.raises(InvariantViolated, match="future"):
        state.check_invariants(STREAM, (0, 0))
    state.delays[Pair(ALICE, MALLORY)] = LinkDelay(Rtt(MALLORY, 1))
    with pytest.raises(InvariantViolated, match="without a link"):
        state.check_invariants(STREAM, newest)
    state.delays.clear()
    state.members[ALICE].acknowledged = False
    with pytest.raises(InvariantViolated, match="unanswered"):
        state.check_invariants(STREAM, newest)
    state.members[ALICE].acknowledged = True
    del state.members[BOB]
    with pytest.raises(InvariantViolated, match="members and topology"):
        state.check_invariants(STREAM, newest)


def test_a_round_that_comes_soon_enough_is_left_alone() -> None:
    policy = ScriptedPolicy(4, Random(1))
    state = TrackedStream(policy, since_ns=0)
    assert state.next_round(STREAM, 100) == [SetTimer(IMPROVE, PAUSE_NS)]
    assert state.next_round(STREAM, 200) == []
    policy.pause = S_NS
    assert state.next_round(STREAM, 300) == [SetTimer(IMPROVE, S_NS)]
    policy.pause = PAUSE_NS
    assert state.next_round(STREAM, 400) == []
    idle = TrackedStream(RandomPolicy(4, Random(1)), since_ns=0)
    assert idle.next_round(STREAM, 100) == []
