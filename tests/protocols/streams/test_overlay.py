"""A node's side of one overlay: the life of a neighbour, state by state, and then two sides of it.

The table below is the contract: what each event does to a neighbour in each state, what is said to
it, and what becomes of the link. The tests after it spell out whole effects, and the last ones
join two nodes by a link that loses and delays what Hypothesis likes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.records import (
    Delivered,
    InstructionHandled,
    Published,
    ReceivedFirst,
    Rejected,
    Sent,
)
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Close, Open, Status
from shoal.protocols.streams.overlay import Overlay, State
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    ME,
    NOW_NS,
    STREAM,
    TRACKER,
    contact,
    instruction,
    node,
    of_kind,
    sent,
)
from tests.support.streams_pair import End, Pair

CONFIG = NodeConfig()


class Desk:
    """An overlay and the effects of its last step."""

    def __init__(self, config: NodeConfig = CONFIG) -> None:
        self.overlay = Overlay(STREAM, ME, config)
        self.overlay.tracker = TRACKER
        self.now_ns = NOW_NS
        self.counter = 0
        self.last: list[Effect] = []

    def instruct(self, *peers: NodeId) -> list[Effect]:
        self.counter += 1
        return self.done(self.overlay.instruct(instruction(self.counter, *peers), self.now_ns))

    def done(self, effects: list[Effect]) -> list[Effect]:
        self.overlay.check_invariants()
        self.last = effects
        return effects

    def link_up(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.link_opened(peer))

    def link_lost(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.link_lost(peer))

    def open(self, peer: NodeId = ALICE, answered: bool = False) -> list[Effect]:
        return self.done(self.overlay.peer_opened(peer, Open(STREAM, answered), self.now_ns))

    def close(self, peer: NodeId = ALICE, answer: bool = False) -> list[Effect]:
        return self.done(self.overlay.peer_closed(peer, Close(STREAM, answer)))

    def open_timeout(self) -> list[Effect]:
        self.now_ns += CONFIG.open_timeout_ns
        return self.done(self.overlay.open_timed_out(self.now_ns))

    def closing_timeout(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.closing_timed_out(peer))

    def drop(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.drop(peer))

    def retry(self) -> list[Effect]:
        return self.done(self.overlay.retry(self.now_ns))

    def connect(self, *peers: NodeId) -> None:
        """Be instructed, dial, and be answered by all."""
        self.instruct(*peers)
        for peer in peers:
            self.link_up(peer)
            self.open(peer, answered=True)
        assert self.overlay.active() == list(peers)

    def state(self, peer: NodeId = ALICE) -> str:
        """The state in one word: the overlay's own, told apart where it matters."""
        neighbour = self.overlay.neighbours.get(peer)
        if neighbour is None:
            return "absent"
        name = neighbour.state.name.lower()
        if neighbour.state is State.DIALLING and neighbour.peer_opened:
            return "dialling-opened"
        if neighbour.state is State.ACTIVE and not neighbour.wanted:
            return "kept"
        return name


def statuses(effects: list[Effect]) -> list[Status]:
    return [message for message, peers in sent(effects, Status) if peers == (TRACKER,)]


# The table. A desk in each state:


def absent() -> Desk:
    desk = Desk()
    desk.instruct()
    return desk


def dialling() -> Desk:
    desk = Desk()
    desk.instruct(ALICE)
    return desk


def dialling_opened() -> Desk:
    desk = dialling()
    desk.open()
    return desk


def opening() -> Desk:
    desk = dialling()
    desk.link_up()
    return desk


def active() -> Desk:
    desk = Desk()
    desk.connect(ALICE)
    return desk


def kept() -> Desk:
    """Alice is not wanted any more, but Bob, who is, has not answered yet."""
    desk = active()
    desk.instruct(BOB)
    return desk


def closing() -> Desk:
    desk = active()
    desk.instruct()
    return desk


def down() -> Desk:
    desk = dialling()
    desk.open_timeout()
    return desk


STATES = {
    "absent": absent,
    "dialling": dialling,
    "dialling-opened": dialling_opened,
    "opening": opening,
    "active": active,
    "kept": kept,
    "closing": closing,
    "down": down,
}
EVENTS: dict[str, Callable[[Desk], object]] = {
    "wanted": lambda desk: desk.instruct(ALICE, *([BOB] if BOB in desk.overlay.neighbours else [])),
    "unwanted": lambda desk: desk.instruct(),
    "link up": Desk.link_up,
    "link lost": Desk.link_lost,
    "Open": lambda desk: desk.open(answered=False),
    "Open answered": lambda desk: desk.open(answered=True),
    "Close": lambda desk: desk.close(answer=False),
    "Close answer": lambda desk: desk.close(answer=True),
    "open timeout": Desk.open_timeout,
    "closing timeout": Desk.closing_timeout,
    "retry": Desk.retry,
    "drop": Desk.drop,
}

# state, event: next state, what Alice is told, what is done with the link, statuses.
# Where nothing is written for a pair, nothing happens.
OPEN, ANSWER = Open(STREAM, False), Open(STREAM, True)
CLOSE, CLOSE_ANSWER = Close(STREAM, False), Close(STREAM, True)
TABLE: dict[tuple[str, str], tuple[str, list[object], str, int]] = {
    ("absent", "wanted"): ("dialling", [], "claim", 0),
    ("absent", "unwanted"): ("absent", [], "", 1),
    ("absent", "link up"): ("absent", [], "release", 0),
    ("dialling", "unwanted"): ("absent", [], "release", 1),
    ("dialling", "link up"): ("opening", [OPEN], "", 0),
    ("dialling", "link lost"): ("down", [], "", 1),
    ("dialling", "Open"): ("dialling-opened", [], "", 0),
    ("dialling", "Open answered"): ("dialling-opened", [], "", 0),
    ("dialling", "open timeout"): ("down", [], "release", 1),
    ("dialling", "drop"): ("down", [CLOSE], "release", 1),
    ("dialling-opened", "unwanted"): ("absent", [], "release", 1),
    ("dialling-opened", "link up"): ("active", [ANSWER], "", 1),
    ("dialling-opened", "link lost"): ("down", [], "", 1),
    ("dialling-opened", "Close"): ("dialling", [], "", 0),
    ("dialling-opened", "open timeout"): ("down", [], "release", 1),
    ("dialling-opened", "drop"): ("down", [CLOSE], "release", 1),
    ("opening", "unwanted"): ("closing", [CLOSE], "", 1),
    ("opening", "link lost"): ("down", [], "", 1),
    ("opening", "Open"): ("active", [ANSWER], "", 1),
    ("opening", "Open answered"): ("active", [], "", 1),
    ("opening", "Close"): ("down", [CLOSE_ANSWER], "release", 1),
    ("opening", "open timeout"): ("down", [], "release", 1),
    ("opening", "drop"): ("down", [CLOSE], "release", 1),
    ("active", "wanted"): ("active", [], "", 1),
    ("active", "unwanted"): ("closing", [CLOSE], "", 1),
    ("active", "link lost"): ("down", [], "", 0),
    ("active", "Open"): ("active", [ANSWER], "", 0),
    ("active", "Close"): ("down", [CLOSE_ANSWER], "release", 0),
    ("active", "drop"): ("down", [CLOSE], "release", 0),
    ("kept", "wanted"): ("active", [], "", 0),
    ("kept", "unwanted"): ("closing", [CLOSE], "", 1),
    ("kept", "link lost"): ("absent", [], "", 0),
    ("kept", "Open"): ("kept", [ANSWER], "", 0),
    ("kept", "Close"): ("absent", [CLOSE_ANSWER], "release", 0),
    ("kept", "open timeout"): ("closing", [CLOSE], "", 1),
    ("kept", "drop"): ("absent", [CLOSE], "release", 0),
    ("closing", "wanted"): ("dialling", [], "claim", 0),
    ("closing", "unwanted"): ("closing", [], "", 1),
    ("closing", "link lost"): ("absent", [], "", 0),
    ("closing", "Close"): ("absent", [], "release", 0),
    ("closing", "Close answer"): ("absent", [], "release", 0),
    ("closing", "closing timeout"): ("absent", [], "release", 0),
    ("closing", "drop"): ("absent", [CLOSE], "release", 0),
    ("down", "wanted"): ("dialling", [], "claim", 0),
    ("down", "unwanted"): ("absent", [], "", 1),
    ("down", "Open"): ("dialling-opened", [], "claim", 0),
    ("down", "Open answered"): ("dialling-opened", [], "claim", 0),
    ("down", "retry"): ("dialling", [], "claim", 0),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_the_life_of_a_neighbour(state: str, event: str) -> None:
    desk = STATES[state]()
    assert desk.state() == state
    EVENTS[event](desk)
    links = {OpenLink(contact(ALICE), STREAM): "claim", CloseLink(ALICE, STREAM): "release"}
    done = (
        desk.state(),
        [message for message, peers in sent(desk.last) if ALICE in peers],
        "".join(links[e] for e in desk.last if isinstance(e, OpenLink | CloseLink) and e in links),
        len(statuses(desk.last)),
    )
    assert done == TABLE.get((state, event), (state, [], "", 0))


# Whole effects


OPEN_TIMEOUT = SetTimer(("open-timeout", STREAM), CONFIG.open_timeout_ns)
OPEN_RETRY = SetTimer(("open-retry", STREAM), CONFIG.open_retry_ns)
RETRY = SetTimer(("retry", STREAM), CONFIG.retry_ns)


def settled(
    counter: int, wanted: int, *connected: NodeId, closed: tuple[NodeId, ...] = ()
) -> list[Effect]:
    """All that follows once every wanted neighbour is active or down."""
    effects: list[Effect] = [CancelTimer(("open-timeout", STREAM)), RETRY]
    for peer in closed:
        effects.append(Send(CLOSE, (peer,)))
        effects.append(SetTimer(("closing", STREAM, peer), CONFIG.close_timeout_ns))
    return [
        *effects,
        Send(Status(STREAM, 1, counter, connected), (TRACKER,)),
        InstructionHandled(STREAM, 1, counter, wanted, len(connected)),
    ]


def dial(peer: NodeId) -> list[Effect]:
    return [CancelTimer(("closing", STREAM, peer)), OpenLink(contact(peer), STREAM)]


def test_an_instruction_is_dialled_opened_and_answered_by_one_status() -> None:
    desk = Desk()
    assert desk.instruct(ALICE, BOB) == [*dial(ALICE), *dial(BOB), OPEN_TIMEOUT]
    assert desk.link_up(ALICE) == [Send(OPEN, (ALICE,)), OPEN_RETRY]
    assert desk.link_up(BOB) == [Send(OPEN, (BOB,)), OPEN_RETRY]
    assert desk.open(BOB) == [Send(ANSWER, (BOB,))]
    assert desk.open(ALICE, answered=True) == settled(1, 2, ALICE, BOB)
    assert desk.overlay.active() == [ALICE, BOB]


def test_the_first_instruction_of_a_lonely_node_is_handled_at_once() -> None:
    assert Desk().instruct() == settled(1, 0)


def test_a_node_is_not_its_own_neighbour() -> None:
    desk = Desk()
    assert desk.instruct(ME, ALICE) == [*dial(ALICE), OPEN_TIMEOUT]


def test_old_links_are_broken_after_the_new_ones_are_made() -> None:
    desk = Desk()
    desk.connect(ALICE, BOB)
    assert desk.instruct(BOB, CAROL) == [*dial(CAROL), OPEN_TIMEOUT]
    assert desk.overlay.active() == [ALICE, BOB]
    assert desk.link_up(CAROL) == [Send(OPEN, (CAROL,)), OPEN_RETRY]
    assert desk.overlay.active() == [ALICE, BOB]
    assert desk.open(CAROL, answered=True) == settled(2, 2, BOB, CAROL, closed=(ALICE,))
    assert desk.overlay.active() == [BOB, CAROL]
    assert desk.state(ALICE) == "closing"
    assert desk.close(ALICE, answer=True) == [
        CancelTimer(("closing", STREAM, ALICE)),
        CloseLink(ALICE, STREAM),
    ]


def test_a_new_link_that_fails_breaks_the_old_one_all_the_same() -> None:
    desk = Desk()
    desk.connect(ALICE)
    desk.instruct(BOB)
    assert desk.link_lost(BOB) == [
        CancelTimer(("closing", STREAM, BOB)),
        *settled(2, 1, closed=(ALICE,)),
    ]


def test_an_older_instruction_is_ignored() -> None:
    desk = Desk()
    desk.counter = 4
    desk.connect(ALICE)
    for old in (instruction(4, BOB), instruction(9, BOB, epoch=0)):
        assert desk.done(desk.overlay.instruct(old, NOW_NS)) == []
    assert desk.overlay.active() == [ALICE]
    assert desk.state(BOB) == "absent"


def test_a_later_epoch_begins_its_counters_anew() -> None:
    desk = Desk()
    desk.counter = 99
    desk.connect(ALICE)
    assert desk.overlay.instruct(instruction(1, ALICE, epoch=2), NOW_NS)[-2] == Send(
        Status(STREAM, 2, 1, (ALICE,)), (TRACKER,)
    )
    assert desk.overlay.instruct(instruction(100, BOB, epoch=1), NOW_NS) == []


def test_the_same_instruction_again_is_answered_again_once_it_was_handled() -> None:
    desk = Desk()
    desk.instruct(ALICE)
    assert desk.overlay.instruct(instruction(1, ALICE), NOW_NS) == []  # still at it
    desk.link_up()
    desk.open(answered=True)
    assert desk.overlay.instruct(instruction(1, ALICE), NOW_NS) == [
        Send(Status(STREAM, 1, 1, (ALICE,)), (TRACKER,))
    ]


def test_of_instructions_that_come_fast_only_the_newest_is_answered() -> None:
    desk = Desk()
    assert statuses(desk.instruct(ALICE)) == []
    assert statuses(desk.instruct(ALICE, BOB)) == []
    desk.link_up(ALICE)
    desk.link_up(BOB)
    assert statuses(desk.open(ALICE, answered=True)) == []
    assert statuses(desk.open(BOB, answered=True)) == [Status(STREAM, 1, 2, (ALICE, BOB))]


def test_an_early_open_is_taken_up_when_the_instruction_comes() -> None:
    desk = Desk()
    desk.instruct()
    assert desk.open(ALICE) == []
    assert desk.overlay.active() == []  # it carries nothing before
    assert desk.instruct(ALICE) == [*dial(ALICE), OPEN_TIMEOUT]
    assert desk.link_up(ALICE) == [Send(ANSWER, (ALICE,)), *settled(2, 1, ALICE)]


def test_an_early_open_counts_only_for_a_while() -> None:
    desk = Desk()
    desk.open(ALICE)
    desk.now_ns += CONFIG.open_timeout_ns
    desk.instruct(ALICE)
    assert desk.link_up(ALICE) == [Send(OPEN, (ALICE,)), OPEN_RETRY]


def test_an_early_open_is_taken_back_by_a_close() -> None:
    desk = Desk()
    desk.open(ALICE)
    assert desk.close(ALICE) == []
    desk.instruct(ALICE)
    assert desk.link_up(ALICE) == [Send(OPEN, (ALICE,)), OPEN_RETRY]


def test_an_open_that_came_while_closing_is_taken_back_by_a_close() -> None:
    desk = closing()
    desk.open(ALICE)
    desk.close(ALICE, answer=True)
    desk.instruct(ALICE)
    assert desk.link_up(ALICE) == [Send(OPEN, (ALICE,)), OPEN_RETRY]


def test_early_opens_are_bounded_and_the_oldest_makes_room() -> None:
    desk = Desk(NodeConfig(early_opens_max=3))
    for number in range(100, 110):
        desk.open(node(number))
    desk.instruct(*(node(number) for number in range(100, 110)))
    at_once = [n for n in range(100, 110) if desk.state(node(n)) == "dialling-opened"]
    assert at_once == [107, 108, 109]


def test_a_lost_open_is_said_again() -> None:
    desk = opening()
    assert desk.done(desk.overlay.say_open_again()) == [Send(OPEN, (ALICE,)), OPEN_RETRY]
    desk.open()
    assert desk.done(desk.overlay.say_open_again()) == []


def test_a_peer_that_says_open_again_missed_our_answer() -> None:
    assert active().open(answered=False) == [Send(ANSWER, (ALICE,))]
    assert active().open(answered=True) == []


def test_what_is_not_open_in_time_is_down_and_said_to_be_missing() -> None:
    desk = Desk()
    desk.instruct(ALICE, BOB, CAROL)
    desk.link_up(ALICE)
    desk.open(ALICE)
    desk.link_up(BOB)
    assert desk.open_timeout() == [
        CloseLink(BOB, STREAM),
        CloseLink(CAROL, STREAM),
        *settled(1, 3, ALICE),
    ]
    assert (desk.state(BOB), desk.state(CAROL)) == ("down", "down")


def test_a_missing_neighbour_is_tried_again_and_told_of_again() -> None:
    desk = down()
    assert desk.retry() == [*dial(ALICE), OPEN_TIMEOUT, RETRY]
    desk.link_up()
    assert desk.open(answered=True) == settled(1, 1, ALICE)
    assert desk.retry() == [RETRY]  # nothing is missing


def test_a_peer_that_closes_is_answered_and_let_go() -> None:
    assert active().close() == [
        CancelTimer(("closing", STREAM, ALICE)),
        Send(CLOSE_ANSWER, (ALICE,)),
        CloseLink(ALICE, STREAM),
    ]


def test_a_close_without_answer_ends_by_itself() -> None:
    desk = closing()
    assert desk.closing_timeout() == [
        CancelTimer(("closing", STREAM, ALICE)),
        CloseLink(ALICE, STREAM),
    ]
    assert desk.closing_timeout() == []


def test_a_neighbour_that_is_wanted_again_while_closing_begins_anew() -> None:
    desk = closing()
    assert desk.instruct(ALICE) == [*dial(ALICE), OPEN_TIMEOUT]
    assert desk.overlay.active() == []
    assert desk.link_up() == [Send(OPEN, (ALICE,)), OPEN_RETRY]
    assert desk.close(answer=True) == []  # to the Close we took back
    assert desk.open(answered=True) == settled(3, 1, ALICE)


def test_both_sides_may_close_at_once() -> None:
    desk = closing()
    assert desk.close(answer=False) == [
        CancelTimer(("closing", STREAM, ALICE)),
        CloseLink(ALICE, STREAM),
    ]


def test_leaving_closes_every_link_and_cancels_every_timer() -> None:
    desk = Desk()
    desk.connect(ALICE, BOB)
    desk.instruct(BOB, CAROL)
    desk.link_lost(CAROL)
    assert [desk.state(p) for p in (ALICE, BOB, CAROL)] == ["closing", "active", "down"]
    effects = desk.done(desk.overlay.leave())
    assert sent(effects) == [(CLOSE, (BOB,))]
    assert of_kind(effects, CloseLink) == [CloseLink(ALICE, STREAM), CloseLink(BOB, STREAM)]
    cancelled = [effect.key for effect in of_kind(effects, CancelTimer)]
    assert {("closing", STREAM, ALICE), ("open-timeout", STREAM)} <= set(cancelled)
    assert {("open-retry", STREAM), ("retry", STREAM)} <= set(cancelled)
    assert desk.overlay.neighbours == {}


def test_leaving_tells_a_neighbour_that_may_have_our_open() -> None:
    # Otherwise it goes on sending us what we refuse, until its own instruction changes.
    assert sent(opening().overlay.leave()) == [(CLOSE, (ALICE,))]


def test_a_dead_neighbour_that_was_replaced_does_not_hold_up_the_others() -> None:
    desk = Desk()
    desk.instruct(ALICE, BOB)  # Bob is dead: his link will never come up
    desk.link_up(ALICE)
    desk.open(ALICE)
    desk.instruct(ALICE, CAROL)
    desk.link_up(CAROL)
    assert statuses(desk.open(CAROL)) == [Status(STREAM, 1, 2, (ALICE, CAROL))]


def test_instructions_that_keep_coming_do_not_keep_a_dead_neighbour_alive() -> None:
    desk = Desk()
    desk.instruct(ALICE)  # dead
    set_ns, due_ns = desk.now_ns, None
    for number in range(100, 110):
        desk.now_ns += 4 * S_NS
        for timer in of_kind(desk.instruct(ALICE, node(number)), SetTimer):
            if timer.key == ("open-timeout", STREAM):
                due_ns = desk.now_ns + timer.delay_ns
        if due_ns is None or due_ns - set_ns <= CONFIG.open_timeout_ns:
            desk.open_timeout()
            break
    assert desk.state(ALICE) == "down"


# Two sides of one link


def linked(pair: Pair) -> tuple[bool, bool]:
    return pair.alice.state is State.ACTIVE, pair.bob.state is State.ACTIVE


def test_two_nodes_link_whoever_is_told_first() -> None:
    pair = Pair()
    pair.instruct(pair.alice, linked=True)
    pair.settle(2 * S_NS)
    assert linked(pair) == (False, False)  # Bob has not been told: nothing is sent to him
    pair.instruct(pair.bob, linked=True)
    pair.settle(2 * S_NS)
    assert linked(pair) == (True, True)


# What may happen, in any order. Whatever does not fit the moment does nothing.
OPS: dict[str, Callable[[Pair, End], object]] = {
    "link": lambda pair, end: pair.instruct(end, linked=True),
    "unlink": lambda pair, end: pair.instruct(end, linked=False),
    "deliver": Pair.deliver,
    "deliver twice": lambda pair, end: pair.deliver(end) and pair.deliver(end),
    "lose": Pair.lose,
    "connect": Pair.connect,
    "refuse": Pair.refuse,
    "hang up": Pair.hang_up,
    "tick": lambda pair, end: pair.tick(),
    "publish": Pair.publish,
    "leave and join": Pair.leave_and_join,
}
ops = st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.booleans()), max_size=60)
AGREED_NS = CONFIG.open_timeout_ns + CONFIG.retry_ns + CONFIG.open_timeout_ns


def apply(pair: Pair, steps: list[tuple[str, bool]]) -> None:
    for name, is_alice in steps:
        OPS[name](pair, pair.alice if is_alice else pair.bob)


@given(ops, st.booleans())
@settings(max_examples=1000)
def test_after_one_last_word_from_the_tracker_both_sides_agree(
    steps: list[tuple[str, bool]], last: bool
) -> None:
    pair = Pair()
    apply(pair, steps)
    pair.instruct(pair.alice, linked=last)
    pair.instruct(pair.bob, linked=last)
    pair.settle(AGREED_NS)
    if last:
        assert linked(pair) == (True, True)
    else:
        assert (pair.alice.state, pair.bob.state) == (None, None)


lossless_ops = st.lists(
    st.tuples(
        st.sampled_from(["link", "unlink", "deliver", "deliver twice", "connect", "publish"]),
        st.booleans(),
    ),
    max_size=60,
)


@given(lossless_ops, st.booleans())
@settings(max_examples=500)
def test_without_losses_it_takes_no_timer_to_agree_on_a_link(
    steps: list[tuple[str, bool]], alice_first: bool
) -> None:
    pair = Pair()
    apply(pair, steps)
    ends = (pair.alice, pair.bob) if alice_first else (pair.bob, pair.alice)
    for end in ends:
        pair.instruct(end, linked=True)
    pair.drain()
    assert linked(pair) == (True, True)


@given(st.lists(st.tuples(st.sampled_from(["deliver", "connect", "publish"]), st.booleans())))
@settings(max_examples=500)
def test_all_that_was_sent_is_taken_though_the_tracker_ends_the_link_at_any_moment(
    steps: list[tuple[str, bool]],
) -> None:
    pair = Pair()
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=True)
    apply(pair, steps)
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=False)
    pair.drain()
    for end, other in ((pair.alice, pair.bob), (pair.bob, pair.alice)):
        arrived = {record.message for record in of_kind(other.records, ReceivedFirst)}
        assert {record.message for record in of_kind(end.records, Sent)} == arrived
        assert not of_kind(other.records, Rejected)


def test_a_publisher_that_leaves_at_once_is_heard_though_the_tracker_was_faster() -> None:
    pair = Pair()
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=True)
    pair.connect(pair.alice)
    pair.deliver(pair.alice)  # Bob's Open; hers is on its way to him
    assert linked(pair) == (True, False)
    pair.publish(pair.alice)
    pair.leave_and_join(pair.alice)
    pair.instruct(pair.bob, linked=False)
    pair.drain()
    (published,) = of_kind(pair.alice.records, Published)
    assert [d.message for d in of_kind(pair.bob.records, Delivered)] == [published.message]
    assert pair.bob.state is None, "and let go: she has said Close"


@given(ops)
def test_what_flows_after_the_last_word_arrives(steps: list[tuple[str, bool]]) -> None:
    pair = Pair()
    apply(pair, steps)
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=True)
    pair.settle(AGREED_NS)
    for end, other in ((pair.alice, pair.bob), (pair.bob, pair.alice)):
        end.records.clear()
        other.records.clear()
        pair.publish(end)
        # What a publisher lost by leaving is asked for first, and then given up: these nodes have
        # no machine to ask storage with, and wait for it all the same.
        pair.settle(5 * S_NS + CONFIG.storage_wait_ns)
        (published,) = of_kind(end.records, Published)
        assert [d.message for d in of_kind(other.records, Delivered)] == [published.message]
