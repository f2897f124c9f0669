"""The tracker machine: who is told what, when, and what is believed of what nodes say."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from shoal.base.ids import INT63_MAX, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.contact import Contact
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.inputs import Started
from shoal.kernel.records import InstructionSent, LinkChanged, MemberChanged, Rejected
from shoal.protocols.streams.config import STORAGE_NODES_MAX, NodeConfig, TrackerConfig
from shoal.protocols.streams.messages import (
    FindStorage,
    Instruction,
    Join,
    Leave,
    Left,
    Report,
    Rtt,
    Status,
    StorageNodes,
)
from shoal.protocols.streams.random_policy import RandomPolicy
from shoal.protocols.streams.topology import LinkChanges, pair_of
from shoal.protocols.streams.tracker import Tracker
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    MALLORY,
    NOW_MS,
    OTHER_STREAM,
    STREAM,
    Bench,
    contact,
    node,
    of_kind,
    reasons,
    sent,
)

CONFIG = TrackerConfig()
MEMBER = "member"


class LoggedPolicy(RandomPolicy):
    """The random policy, with a note of every delay it was told."""

    def __init__(self, degree: int, rng: Random) -> None:
        super().__init__(degree, rng)
        self.delays: list[tuple[NodeId, NodeId, int]] = []

    def delay_learned(self, a: NodeId, b: NodeId, rtt_ns: int) -> LinkChanges:
        self.delays.append((a, b, rtt_ns))
        return super().delay_learned(a, b, rtt_ns)


class Desk(Bench[Tracker]):
    """A tracker that has been started, and nodes that talk to it."""

    def __init__(
        self, config: TrackerConfig = CONFIG, kind: type[LoggedPolicy] = LoggedPolicy
    ) -> None:
        self.policies: dict[StreamId, LoggedPolicy] = {}
        self.kind = kind
        super().__init__(Tracker(self.make_policy, config))
        self.feed(Started())

    def make_policy(self, stream: StreamId) -> LoggedPolicy:
        self.policies[stream] = self.kind(self.machine.config.degree, Random(len(self.policies)))
        return self.policies[stream]

    def join(
        self, peer: NodeId, stream: StreamId = STREAM, epoch: int = 0, counter: int = 0
    ) -> list[Effect]:
        effects = self.receive(peer, Join(stream, contact(peer), epoch, counter, ()))
        self.link_up(peer)
        return effects

    def status(self, peer: NodeId, *missing: NodeId, stream: StreamId = STREAM) -> list[Effect]:
        """Answer the newest instruction, as handled but for the missing ones."""
        neighbours = tuple(n for n in self.neighbours(peer, stream) if n not in missing)
        counter = self.machine.streams[stream].members[peer].version[1]
        return self.receive(peer, Status(stream, self.machine.epoch, counter, neighbours))

    def neighbours(self, peer: NodeId, stream: StreamId = STREAM) -> tuple[NodeId, ...]:
        return self.machine.streams[stream].policy.neighbours(peer)

    def quiet(self, *peers: NodeId, stream: StreamId = STREAM) -> None:
        """Every member has handled its newest instruction."""
        for peer in peers or tuple(self.machine.streams[stream].members):
            self.status(peer, stream=stream)


def instructions(effects: list[Effect]) -> dict[NodeId, Instruction]:
    """The newest instruction for each node."""
    return {peer: message for message, peers in sent(effects, Instruction) for peer in peers}


def cut(a: NodeId, b: NodeId) -> LinkChanged:
    pair = pair_of(a, b)
    return LinkChanged(STREAM, pair.a, pair.b, False)


def crowd(count: int, *, kind: type[LoggedPolicy] = LoggedPolicy) -> tuple[Desk, list[NodeId]]:
    """So many members, all quiet."""
    desk = Desk(kind=kind)
    nodes = [node(100 + number) for number in range(count)]
    for peer in nodes:
        desk.join(peer)
    desk.quiet()
    return desk, nodes


# Joining


def test_a_started_tracker_begins_an_epoch_and_sweeps() -> None:
    tracker = Tracker(lambda stream: RandomPolicy(4, Random(1)))
    bench = Bench(tracker)
    assert bench.feed(Started()) == [SetTimer("sweep", CONFIG.sweep_ns)]
    assert tracker.epoch == NOW_MS


def test_the_first_member_is_told_that_it_is_alone() -> None:
    desk = Desk()
    assert desk.join(ALICE) == [
        OpenLink(Contact(ALICE), MEMBER),
        MemberChanged(STREAM, ALICE, True, "join"),
        Send(Instruction(STREAM, NOW_MS, 1, ()), (ALICE,)),
        InstructionSent(STREAM, ALICE, NOW_MS, 1, 0),
        SetTimer(("resend", STREAM), CONFIG.resend_ns),
    ]


def test_both_ends_of_a_new_link_are_told_of_each_other_in_growing_counters() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert desk.join(BOB) == [
        OpenLink(Contact(BOB), MEMBER),
        MemberChanged(STREAM, BOB, True, "join"),
        LinkChanged(STREAM, ALICE, BOB, True),
        Send(Instruction(STREAM, NOW_MS, 2, (contact(ALICE),)), (BOB,)),
        InstructionSent(STREAM, BOB, NOW_MS, 2, 1),
        Send(Instruction(STREAM, NOW_MS, 3, (contact(BOB),)), (ALICE,)),
        InstructionSent(STREAM, ALICE, NOW_MS, 3, 1),
        SetTimer(("resend", STREAM), CONFIG.resend_ns),
    ]


def test_up_to_the_degree_everybody_is_linked_to_everybody() -> None:
    desk, nodes = crowd(CONFIG.degree + 1)
    for peer in nodes:
        assert set(desk.neighbours(peer)) == set(nodes) - {peer}


def test_only_those_whose_neighbours_changed_are_told() -> None:
    desk, nodes = crowd(40)
    before = {peer: desk.neighbours(peer) for peer in nodes}
    told = instructions(desk.join(EVE))
    changed = {peer for peer in nodes if set(desk.neighbours(peer)) != set(before[peer])}
    assert set(told) == changed | {EVE}
    assert len(told) <= 2 * CONFIG.degree + 1
    for peer, order in told.items():
        assert tuple(c.node for c in order.neighbours) == desk.neighbours(peer)


def test_counters_only_grow_over_all_streams_and_lives() -> None:
    desk = Desk()
    seen: list[int] = []
    for _ in range(3):
        for stream in (STREAM, OTHER_STREAM):
            effects = [*desk.join(ALICE, stream), *desk.join(BOB, stream)]
            effects += desk.receive(ALICE, Leave(stream))
            effects += desk.receive(BOB, Leave(stream))
            assert stream not in desk.machine.streams
            seen += [order.counter for order, _ in sent(effects, Instruction)]
    assert seen == sorted(set(seen))


def test_a_member_that_joins_again_is_told_again() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.join(BOB)
    desk.quiet()
    effects = desk.join(BOB)
    assert of_kind(effects, MemberChanged) == []
    assert of_kind(effects, OpenLink) == []
    assert instructions(effects) == {BOB: Instruction(STREAM, NOW_MS, 4, (contact(ALICE),))}


def test_a_join_with_the_contact_of_another_is_refused() -> None:
    desk = Desk()
    join = Join(STREAM, contact(ALICE), 0, 0, ())
    assert desk.receive(MALLORY, join) == [Rejected(MALLORY, "joins-for-another")]
    assert desk.machine.streams == {}
    assert instructions(desk.join(ALICE))


def test_new_addresses_reach_the_neighbours_with_their_next_instruction() -> None:
    desk = Desk()
    desk.join(ALICE)
    moved = Contact(ALICE, ("ws://moved:1",))
    desk.receive(ALICE, Join(STREAM, moved, 0, 0, ()))
    assert instructions(desk.join(BOB))[BOB].neighbours == (moved,)


# Statuses


def test_a_status_answers_its_instruction() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert desk.status(ALICE) == []
    assert instructions(desk.advance(10 * CONFIG.resend_ns)) == {}


def test_an_unanswered_instruction_is_said_again_with_the_same_counter() -> None:
    desk = Desk()
    first = instructions(desk.join(ALICE))
    for _ in range(3):
        effects = desk.fire(("resend", STREAM))
        assert instructions(effects) == first
        assert of_kind(effects, InstructionSent) == [InstructionSent(STREAM, ALICE, NOW_MS, 1, 0)]
    desk.status(ALICE)
    assert desk.fire(("resend", STREAM)) == []


def test_each_instruction_is_said_again_at_its_own_time() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.now_ns += S_NS
    desk.join(BOB, OTHER_STREAM)
    desk.join(CAROL, OTHER_STREAM)
    desk.status(BOB, stream=OTHER_STREAM)
    assert set(instructions(desk.advance(2 * S_NS))) == {ALICE}
    assert set(instructions(desk.advance(S_NS))) == {CAROL}


def test_an_instruction_that_was_replaced_does_not_delay_another() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.join(BOB)
    desk.now_ns += S_NS
    desk.join(ALICE)
    assert set(instructions(desk.advance(CONFIG.resend_ns - S_NS))) == {BOB}


@pytest.mark.parametrize("off", [(0, -1), (0, 1), (-1, 0), (1, 0)], ids=str)
def test_a_status_of_another_instruction_is_late(off: tuple[int, int]) -> None:
    desk, nodes = crowd(10)
    member = desk.machine.streams[STREAM].members[nodes[0]]
    late = Status(STREAM, desk.machine.epoch + off[0], member.version[1] + off[1], ())
    before = desk.neighbours(nodes[0])
    assert desk.receive(nodes[0], late) == [Rejected(nodes[0], "late-status")]
    assert desk.neighbours(nodes[0]) == before


def test_a_missing_neighbour_is_replaced() -> None:
    desk, nodes = crowd(20)
    peer = nodes[3]
    failed = desk.neighbours(peer)[1]
    effects = desk.status(peer, failed)
    assert cut(peer, failed) in effects
    assert failed not in desk.neighbours(peer)
    assert len(desk.neighbours(peer)) == len(desk.neighbours(failed)) == CONFIG.degree
    told = instructions(effects)
    assert {peer, failed} <= set(told)
    for told_peer, order in told.items():
        assert tuple(c.node for c in order.neighbours) == desk.neighbours(told_peer)


def test_a_status_that_names_strangers_gains_nothing_by_it() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    member = desk.machine.streams[STREAM].members[peer]
    status = Status(STREAM, NOW_MS, member.version[1], (*desk.neighbours(peer), MALLORY, peer))
    assert desk.receive(peer, status) == []


def test_a_later_epoch_of_one_does_not_make_the_statuses_of_others_late() -> None:
    desk, nodes = crowd(20)
    peer = nodes[3]
    failed = desk.neighbours(peer)[1]
    member = desk.machine.streams[STREAM].members[peer]
    handled = Status(STREAM, NOW_MS, member.version[1], ())
    desk.join(EVE, OTHER_STREAM, epoch=NOW_MS + 10)
    assert reasons(desk.receive(peer, handled)) == []
    assert failed not in desk.neighbours(peer)


# Leaving and going


def test_a_leave_is_answered_and_the_overlay_closes_over_the_gap() -> None:
    desk, nodes = crowd(20)
    peer = nodes[7]
    neighbours = desk.neighbours(peer)
    effects = desk.receive(peer, Leave(STREAM))
    assert effects[:3] == [
        Send(Left(STREAM), (peer,)),
        MemberChanged(STREAM, peer, False, "leave"),
        CloseLink(peer, MEMBER),
    ]
    assert peer not in instructions(effects)
    assert set(neighbours) <= set(instructions(effects))
    assert all(len(desk.neighbours(n)) == CONFIG.degree for n in nodes if n != peer)


def test_a_leave_of_a_non_member_is_answered_and_changes_nothing() -> None:
    desk, _ = crowd(3)
    assert desk.receive(MALLORY, Leave(STREAM)) == [Send(Left(STREAM), (MALLORY,))]
    assert desk.receive(MALLORY, Leave(OTHER_STREAM)) == [Send(Left(OTHER_STREAM), (MALLORY,))]


def test_a_stream_without_members_is_forgotten() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert desk.receive(ALICE, Leave(STREAM)) == [
        Send(Left(STREAM), (ALICE,)),
        MemberChanged(STREAM, ALICE, False, "leave"),
        CloseLink(ALICE, MEMBER),
    ]
    assert desk.machine.streams == {}
    assert instructions(desk.advance(CONFIG.resend_ns)) == {}


def test_whoever_left_without_an_answer_is_not_instructed_again() -> None:
    desk = Desk()
    desk.join(ALICE)
    desk.join(BOB)
    desk.receive(BOB, Leave(STREAM))
    assert set(instructions(desk.fire(("resend", STREAM)))) == {ALICE}


def test_whoever_left_is_a_stranger() -> None:
    desk = Desk()
    desk.join(BOB)
    desk.join(ALICE)
    desk.link_down(ALICE)
    desk.receive(ALICE, Leave(STREAM))  # over a new link, which it did not come back on
    assert desk.fire(("gone", ALICE)) == []
    desk.claims[ALICE, MEMBER] = True
    assert desk.link_down(ALICE) == []
    assert OpenLink(Contact(ALICE), MEMBER) in desk.join(ALICE)


def test_the_link_of_a_member_is_kept_while_it_is_in_any_stream() -> None:
    desk = Desk()
    desk.join(ALICE)
    assert of_kind(desk.join(ALICE, OTHER_STREAM), OpenLink) == []
    assert of_kind(desk.receive(ALICE, Leave(STREAM)), CloseLink) == []
    assert of_kind(desk.receive(ALICE, Leave(OTHER_STREAM)), CloseLink) == [
        CloseLink(ALICE, MEMBER)
    ]


def test_a_member_whose_link_broke_has_time_to_come_back() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    assert desk.link_down(peer) == [SetTimer(("gone", peer), CONFIG.gone_ns)]
    desk.advance(CONFIG.gone_ns - 1)
    effects = desk.join(peer)
    assert OpenLink(Contact(peer), MEMBER) in effects
    assert of_kind(effects, MemberChanged) == []
    assert of_kind(desk.advance(CONFIG.gone_ns), MemberChanged) == []


def test_a_member_that_does_not_come_back_is_gone_from_all_its_streams() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    desk.join(peer, OTHER_STREAM)
    desk.link_down(peer)
    effects = desk.fire(("gone", peer))
    assert of_kind(effects, MemberChanged) == [
        MemberChanged(STREAM, peer, False, "gone"),
        MemberChanged(OTHER_STREAM, peer, False, "gone"),
    ]
    assert peer not in desk.machine.streams[STREAM].members
    assert OTHER_STREAM not in desk.machine.streams
    assert all(peer not in desk.neighbours(n) for n in nodes[1:])


def test_a_member_that_two_have_lost_has_crashed() -> None:
    desk, nodes = crowd(10)
    peer = nodes[0]
    witness = desk.neighbours(peer)[0]
    desk.link_down(peer)
    effects = desk.receive(witness, Report(STREAM, (), (peer, peer), ()))
    assert MemberChanged(STREAM, peer, False, "crash") in effects
    assert witness in instructions(effects)
    assert desk.fire(("gone", peer)) == []


def test_a_lost_neighbour_that_the_tracker_still_sees_loses_that_link_only() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    lost = desk.neighbours(peer)[0]
    effects = desk.receive(peer, Report(STREAM, (), (lost,), ()))
    assert of_kind(effects, MemberChanged) == []
    assert lost not in desk.neighbours(peer)
    assert len(desk.neighbours(lost)) == CONFIG.degree


def test_a_stranger_is_not_lost_by_a_report() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    stranger = next(n for n in nodes if n != peer and n not in desk.neighbours(peer))
    before = desk.neighbours(stranger)
    desk.link_down(stranger)
    assert desk.receive(peer, Report(STREAM, (), (stranger, MALLORY), (stranger, peer))) == []
    assert desk.neighbours(stranger) == before


# Reports


def test_an_accusation_costs_the_two_their_link_and_nobody_anything_else() -> None:
    desk, nodes = crowd(20)
    accuser = nodes[0]
    accused = desk.neighbours(accuser)[2]
    effects = desk.receive(accuser, Report(STREAM, (), (), (accused,)))
    assert of_kind(effects, MemberChanged) == []
    assert cut(accuser, accused) in effects
    assert len(desk.neighbours(accused)) == CONFIG.degree
    desk.quiet()
    assert accused not in desk.neighbours(accuser)


def test_round_trips_of_links_are_learned_and_others_are_not() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    neighbour = desk.neighbours(peer)[0]
    stranger = next(n for n in nodes if n != peer and n not in desk.neighbours(peer))
    rtts = (Rtt(neighbour, 1500), Rtt(stranger, 1), Rtt(MALLORY, 2), Rtt(peer, 3))
    assert desk.receive(peer, Report(STREAM, rtts, (), ())) == []
    assert desk.policies[STREAM].delays == [(peer, neighbour, 1500 * 1000)]


def test_a_round_trip_goes_with_its_link() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    neighbour = desk.neighbours(peer)[0]
    desk.receive(peer, Report(STREAM, (Rtt(neighbour, 1500),), (), ()))
    pair = pair_of(peer, neighbour)
    assert desk.machine.streams[STREAM].delays[pair].rtt_us == 1500
    desk.receive(neighbour, Report(STREAM, (Rtt(peer, 1700),), (), ()))
    assert desk.machine.streams[STREAM].delays[pair].rtt_us == 1600  # both ends, not the last
    desk.receive(neighbour, Report(STREAM, (Rtt(peer, 1900),), (), ()))
    assert desk.machine.streams[STREAM].delays[pair].rtt_us == 1700
    desk.receive(peer, Report(STREAM, (), (neighbour,), ()))
    assert desk.machine.streams[STREAM].delays == {}


class CuttingPolicy(LoggedPolicy):
    """Cuts every link whose delay it learns, as a policy that knows delays may."""

    def delay_learned(self, a: NodeId, b: NodeId, rtt_ns: int) -> LinkChanges:
        return self.link_failed(a, b)


def test_a_round_trip_of_a_link_that_the_same_report_cut_is_not_kept() -> None:
    desk, nodes = crowd(10, kind=CuttingPolicy)
    neighbour = desk.neighbours(nodes[0])[0]
    twice = Rtt(neighbour, 1000)
    desk.receive(nodes[0], Report(STREAM, (twice, twice), (), ()))
    assert neighbour not in desk.neighbours(nodes[0])
    assert pair_of(nodes[0], neighbour) not in desk.machine.streams[STREAM].delays


# Bounds


def test_joins_and_leaves_of_one_node_are_rate_limited() -> None:
    desk = Desk()
    desk.join(BOB)
    outcomes = []
    for _ in range(CONFIG.changes_burst):
        outcomes += reasons(desk.join(ALICE)) or ["joined"]
        desk.receive(ALICE, Leave(STREAM))
    assert outcomes.count("joined") == CONFIG.changes_burst // 2
    assert set(outcomes) == {"joined", "too-many-joins"}
    assert instructions(desk.join(CAROL))  # another node is not concerned
    desk.now_ns += CONFIG.changes_refill_ns
    assert instructions(desk.join(ALICE))


def test_a_node_cannot_buy_itself_changes_with_new_names() -> None:
    desk = Desk()
    outcomes = []
    for number in range(1000):
        stream = StreamId(f"s{number}")
        outcomes += reasons(desk.join(MALLORY, stream)) or ["joined"]
        desk.receive(MALLORY, Leave(stream))
    assert outcomes.count("joined") < 1000


def test_a_node_may_be_in_so_many_streams() -> None:
    desk = Desk(TrackerConfig(streams_per_node_max=2))
    for number in range(2):
        assert instructions(desk.join(ALICE, StreamId(f"s{number}")))
    assert desk.join(ALICE, StreamId("s2")) == [Rejected(ALICE, "too-many-streams")]
    assert instructions(desk.join(ALICE, StreamId("s1")))  # in it already
    assert instructions(desk.join(BOB, StreamId("s2")))


def test_a_tracker_has_so_many_streams() -> None:
    desk = Desk(TrackerConfig(streams_max=2))
    for number in range(2):
        assert instructions(desk.join(ALICE, StreamId(f"s{number}")))
    assert desk.join(BOB, StreamId("s2")) == [Rejected(BOB, "too-many-streams")]
    assert set(desk.machine.streams) == {"s0", "s1"}
    assert instructions(desk.join(BOB, StreamId("s1")))
    desk.receive(ALICE, Leave(StreamId("s0")))
    assert instructions(desk.join(BOB, StreamId("s2")))


# Epochs


def test_a_node_that_obeyed_a_later_tracker_is_instructed_beyond_it() -> None:
    desk = Desk()
    desk.join(ALICE)
    later = NOW_MS + 1000
    order = instructions(desk.join(BOB, epoch=later, counter=77))[BOB]
    assert (order.epoch, order.counter) > (later, 77)
    assert instructions(desk.join(CAROL))[CAROL].epoch == order.epoch


def test_a_node_with_a_higher_counter_of_our_epoch_is_instructed_beyond_it() -> None:
    desk = Desk()
    order = instructions(desk.join(BOB, epoch=NOW_MS, counter=77))[BOB]
    assert (order.epoch, order.counter) > (NOW_MS, 77)


def test_a_member_that_comes_back_with_our_newest_instruction_begins_no_epoch() -> None:
    desk = Desk()
    desk.join(ALICE)
    order = instructions(desk.join(ALICE, epoch=NOW_MS, counter=desk.machine.counter))[ALICE]
    assert order.epoch == NOW_MS


def test_an_earlier_epoch_changes_nothing() -> None:
    desk = Desk()
    order = instructions(desk.join(BOB, epoch=NOW_MS - 1, counter=10**9))[BOB]
    assert (order.epoch, order.counter) == (NOW_MS, 1)


@pytest.mark.parametrize("epoch", [INT63_MAX, INT63_MAX - 1], ids=["highest", "last but one"])
def test_no_node_can_use_the_epochs_up(epoch: int) -> None:
    desk, nodes = crowd(10)
    desk.join(MALLORY, OTHER_STREAM, epoch=epoch)
    desk.join(MALLORY, OTHER_STREAM, epoch=INT63_MAX)
    assert desk.machine.epoch < NOW_MS + 400 * 24 * 3600 * 1000
    assert instructions(desk.join(EVE))
    desk.quiet()
    restarted = Desk()
    restarted.now_ns += 60 * S_NS
    for peer in nodes:  # a tracker that begins anew still gets through to all
        assert instructions(restarted.join(peer, epoch=desk.machine.epoch, counter=INT63_MAX))


# Storage nodes


def test_anybody_is_told_who_keeps_a_stream() -> None:
    kept = {STREAM: (contact(CAROL), contact(DAVE))}
    bench = Bench(Tracker(lambda stream: RandomPolicy(4, Random(1)), CONFIG, kept.__getitem__))
    bench.feed(Started())
    answer = Send(StorageNodes(STREAM, kept[STREAM]), (MALLORY,))
    assert bench.receive(MALLORY, FindStorage(STREAM)) == [answer]
    assert bench.machine.streams == {}


def test_a_tracker_that_knows_of_no_storage_says_so() -> None:
    assert Desk().receive(ALICE, FindStorage(STREAM)) == [Send(StorageNodes(STREAM, ()), (ALICE,))]


def test_a_storage_node_is_where_it_says_that_it_is() -> None:
    configured = (contact(CAROL), contact(DAVE), contact(EVE))
    policy = partial(RandomPolicy, 4, Random(1))
    bench = Bench(Tracker(lambda stream: policy(), CONFIG, lambda stream: configured))
    bench.feed(Started())
    moved = Contact(CAROL, ("ws://moved:1",))
    bench.receive(CAROL, Join(STREAM, moved, 0, 0, ()))
    bench.receive(DAVE, Join(STREAM, Contact(DAVE), 0, 0, ()))  # it can only dial out, it says
    bench.receive(EVE, Join(OTHER_STREAM, Contact(EVE, ("ws://elsewhere:1",)), 0, 0, ()))
    [(answer, _)] = sent(bench.receive(ALICE, FindStorage(STREAM)), StorageNodes)
    assert answer.contacts == (moved, contact(DAVE), contact(EVE))


def test_questions_are_rate_limited_and_answers_bounded() -> None:
    everybody = tuple(contact(node(number)) for number in range(100, 200))
    bench = Bench(Tracker(lambda stream: RandomPolicy(4, Random(1)), CONFIG, lambda _: everybody))
    bench.feed(Started())
    answers = []
    for _ in range(2 * CONFIG.questions_burst):
        answers += bench.receive(MALLORY, FindStorage(STREAM))
    assert len(of_kind(answers, Send)) == CONFIG.questions_burst
    assert reasons(answers) == ["too-many-questions"] * CONFIG.questions_burst
    [(answer, _)] = sent(bench.receive(ALICE, FindStorage(STREAM)))
    assert answer.contacts == everybody[:STORAGE_NODES_MAX]


# Sweeps


def test_a_sweep_is_quiet_where_nothing_is_to_be_done_and_comes_again() -> None:
    desk, _ = crowd(20)
    for _ in range(3):
        assert desk.fire("sweep") == [SetTimer("sweep", CONFIG.sweep_ns)]


def test_what_a_sweep_changes_is_instructed() -> None:
    desk, nodes = crowd(20)
    policy = desk.policies[STREAM]
    one, other = nodes[0], desk.neighbours(nodes[0])[0]
    policy._graph.cut(one, other)  # as a sweep finds it
    policy._graph.take_changes()
    told = instructions(desk.fire("sweep"))
    assert {one, other} <= set(told)
    assert len(desk.neighbours(one)) == CONFIG.degree


# Security: what is wrong is counted, and what is right still works after it


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Status(STREAM, NOW_MS, 1, ()), "not-a-member"),
        (Status(OTHER_STREAM, NOW_MS, 1, ()), "not-a-member"),
        (Report(STREAM, (Rtt(BOB, 1),), (BOB,), (CAROL,)), "not-a-member"),
        (Join(STREAM, contact(ALICE), 0, 0, ()), "joins-for-another"),
        (Join(STREAM, contact(ALICE), INT63_MAX, INT63_MAX, ()), "joins-for-another"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_must_not_be_said_is_counted_and_nothing_else_suffers(
    message: object, reason: str
) -> None:
    desk = Desk()
    for peer in (ALICE, BOB, CAROL):
        desk.join(peer)
    desk.quiet()
    effects = desk.receive(MALLORY, message)
    assert reasons(effects) == [reason]
    assert all(peers == (MALLORY,) for _, peers in sent(effects))
    assert set(desk.neighbours(ALICE)) == {BOB, CAROL}
    assert instructions(desk.join(DAVE))[DAVE].epoch == NOW_MS


def test_a_member_speaks_for_itself_only() -> None:
    desk = Desk()
    for peer in (ALICE, BOB, CAROL):
        desk.join(peer)
    desk.join(MALLORY, OTHER_STREAM)
    desk.quiet()
    member = desk.machine.streams[STREAM].members[ALICE]
    theirs = Status(STREAM, NOW_MS, member.version[1], ())
    assert reasons(desk.receive(MALLORY, theirs)) == ["not-a-member"]
    assert desk.receive(MALLORY, Leave(STREAM)) == [Send(Left(STREAM), (MALLORY,))]
    assert set(desk.machine.streams[STREAM].members) == {ALICE, BOB, CAROL}


def test_one_member_cannot_keep_the_whole_overlay_moving() -> None:
    # Each lie cuts four links and instructs a dozen nodes; a new lie needs one round trip.
    desk, nodes = crowd(60)
    peer, told = nodes[0], 0
    for _ in range(200):
        told += len(instructions(desk.status(peer, *desk.neighbours(peer))))
        desk.now_ns += 10 * MS_NS
    assert told < 400


def test_two_nodes_that_lost_each_other_are_relinked_in_all_streams_they_share() -> None:
    desk = Desk()
    streams = [StreamId(f"s{number}") for number in range(100)]
    for stream in streams:
        for peer in (ALICE, BOB, CAROL, DAVE, EVE, MALLORY, node(50)):
            desk.join(peer, stream)
        if BOB in desk.neighbours(ALICE, stream):
            desk.receive(ALICE, Report(stream, (), (BOB,), ()))
    assert [s for s in streams if BOB in desk.neighbours(ALICE, s)] == []


def test_settings_of_node_and_tracker_fit_together() -> None:
    # A tracker that forgets sooner than a node comes back would cut what still works.
    assert TrackerConfig().gone_ns > 2 * NodeConfig().redial_ns
    assert TrackerConfig().resend_ns < NodeConfig().open_timeout_ns
