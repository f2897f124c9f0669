"""A node's side of one overlay: all effects of an instruction, an Open, a Close and a timer."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.records import InstructionHandled
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Status
from tests.support.overlay_desk import (
    ANSWER,
    CLOSE,
    CLOSE_ANSWER,
    OPEN,
    Desk,
    active,
    closing,
    down,
    opening,
    statuses,
)
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

CONFIG = NodeConfig()

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
