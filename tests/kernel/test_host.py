"""What a Host promises its machines: one input at a time, effects in order, nothing re-entered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import Contact
from shoal.base.units import S_NS
from shoal.kernel.effects import (
    CancelTimer,
    Effect,
    Load,
    Notify,
    OpenLink,
    PauseReading,
    ResumeReading,
    Send,
    SetTimer,
    Store,
    Verify,
)
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkOpened,
    Loaded,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
    Started,
    Stored,
    TimerFired,
    Verified,
)
from shoal.kernel.records import LinkUp, Published, Rejected, Undeliverable
from tests.support.machines import Echo, Note, Other, Scripted, echo, peer_id

ME, PEER, OTHER_PEER = peer_id(1), peer_id(2), peer_id(3)


def host_of(*machines: Scripted) -> FakeHost:
    return FakeHost(ME, machines)


# Routing


def test_a_message_reaches_the_machine_that_accepts_its_type() -> None:
    notes, echoes = Scripted((Note,)), Scripted((Echo,))
    host = host_of(notes, echoes)
    host.received(PEER, Echo(1))
    host.received(PEER, Note(2))
    assert notes.inputs == [MessageReceived(PEER, Note(2))]
    assert echoes.inputs == [MessageReceived(PEER, Echo(1))]


def test_a_message_that_no_machine_accepts_is_counted_and_nothing_else() -> None:
    machine = Scripted((Note,))
    host = host_of(machine)
    host.received(PEER, Other())
    assert host.records == [Rejected(PEER, "no-such-role")]
    assert machine.inputs == []


def test_two_machines_may_not_accept_one_type() -> None:
    with pytest.raises(UsageError, match="two machines of a node accept Note"):
        host_of(Scripted((Note, Echo)), Scripted((Note,)))


def test_commands_reach_the_machine_they_are_for_with_their_token() -> None:
    first, second = Scripted((Note,)), Scripted((Echo,))
    host = host_of(first, second)
    host.command(second, [], token="mine")
    assert first.inputs == []
    assert second.inputs == [CommandIssued([], "mine")]


# Order


def test_every_machine_starts_before_any_hears_of_anothers_effects() -> None:
    def greet(event: Input) -> Sequence[Effect]:
        return [Send(Echo(1), (ME,))] if isinstance(event, Started) else ()

    eager, late = Scripted((Note,), greet), Scripted((Echo,))
    host_of(eager, late).start()
    assert late.inputs == [Started(), MessageReceived(ME, Echo(1))]


def test_inputs_that_effects_cause_come_after_all_effects_and_in_order() -> None:
    """The machine talks to itself: what it sends comes back, but only when it is done."""
    order: list[str] = []

    def react(event: Input) -> Sequence[Effect]:
        match event:
            case Started():
                order.append("started")
                return [Send(Note(1), (ME,)), Notify("after 1"), Send(Note(2), (ME,))]
            case MessageReceived(_, Note(1)):
                order.append("note 1")
                return [Send(Note(3), (ME,)), Notify("after 3")]
            case MessageReceived(_, Note(number)):
                order.append(f"note {number}")
        return ()

    machine = Scripted(react=react)
    host = host_of(machine)
    host.start()
    assert order == ["started", "note 1", "note 2", "note 3"]
    assert host.notified == ["after 1", "after 3"]


def test_nothing_re_enters_even_through_the_application() -> None:
    """A listener that issues a command from inside a Notify waits like everyone else."""
    depth = 0

    class Guarded(Scripted):
        def handle(self, event: Input, now_ns: int) -> Sequence[Effect]:
            nonlocal depth
            assert depth == 0, "handle was re-entered"
            depth += 1
            try:
                return super().handle(event, now_ns)
            finally:
                depth -= 1

    class Impatient(FakeHost):
        def notify(self, slot: int, effect: Notify) -> None:
            super().notify(slot, effect)
            if effect.event == "go":
                self.command(self.machines[0], [Notify("second")])
                self.received(PEER, Note(1))

    machine = Guarded()
    host = Impatient(ME, [machine])
    host.command(machine, [Notify("go"), Notify("first")])
    assert host.notified == ["go", "first", "second"]
    assert machine.notes() == [1]


def test_effects_run_in_the_order_of_the_list() -> None:
    machine = Scripted()
    host = host_of(machine)
    host.link_opened(PEER)
    host.link_opened(OTHER_PEER)
    host.command(machine, [Send(Note(1), (PEER, OTHER_PEER)), Send(Note(2), (PEER,))])
    assert host.sent == [(PEER, Note(1)), (OTHER_PEER, Note(1)), (PEER, Note(2))]


def test_after_a_machine_raised_waiting_inputs_keep_their_order() -> None:
    def react(event: Input) -> Sequence[Effect]:
        match event:
            case Started():
                return [Send(Note(1), (ME,)), Send(Note(2), (ME,))]
            case MessageReceived(_, Note(1)):
                raise UsageError("on purpose")
        return ()

    machine = Scripted(react=react)
    host = host_of(machine)
    with pytest.raises(UsageError, match="on purpose"):
        host.start()
    host.received(PEER, Note(3))
    assert machine.notes() == [1, 2, 3]


def test_steps_are_watched() -> None:
    seen: list[tuple[Input, Sequence[Effect]]] = []
    machine = Scripted(react=echo)
    host = host_of(machine)
    host.watch = lambda event, effects: seen.append((event, effects))
    host.link_opened(PEER)
    host.received(PEER, Note(1))
    assert seen == [(MessageReceived(PEER, Note(1)), [Send(Echo(1), (PEER,))])]


# Timers


def test_a_timer_fires_once() -> None:
    machine = Scripted()
    host = host_of(machine)
    host.command(machine, [SetTimer("tea", 3 * S_NS)])
    host.advance(3 * S_NS - 1)
    assert machine.heard() == []
    host.advance(10 * S_NS)
    assert machine.heard() == [TimerFired("tea")]
    assert machine.times_ns[-1] == 3 * S_NS


def test_a_timer_set_again_fires_at_the_later_time_only() -> None:
    machine = Scripted()
    host = host_of(machine)
    host.command(machine, [SetTimer("tea", 3 * S_NS)])
    host.advance(2 * S_NS)
    host.command(machine, [SetTimer("tea", 3 * S_NS)])
    host.advance(2 * S_NS)
    assert machine.heard() == []
    host.advance(S_NS)
    assert machine.heard() == [TimerFired("tea")]


def test_a_cancelled_timer_never_fires_and_others_do() -> None:
    machine, other = Scripted((Note,)), Scripted((Echo,))
    host = host_of(machine, other)
    host.command(machine, [SetTimer("tea", S_NS), SetTimer("egg", S_NS), CancelTimer("tea")])
    host.command(machine, [CancelTimer("nothing")])
    host.command(other, [SetTimer("tea", S_NS)])
    host.advance(5 * S_NS)
    assert machine.heard() == [TimerFired("egg")]
    assert other.heard() == [TimerFired("tea")], "keys are a machine's own"


def test_a_timer_in_the_past_is_refused() -> None:
    machine = Scripted()
    host = host_of(machine)
    with pytest.raises(UsageError, match="timer 'tea' lies 5 ns in the past"):
        host.command(machine, [SetTimer("tea", -5)])


# Slow work


def test_results_of_slow_work_come_back_as_inputs() -> None:
    machine = Scripted()
    host = host_of(machine)
    host.command(
        machine, [Store(b"k", b"v", 1), Load(b"k", 2), Store(b"k", None, 3), Load(b"k", 4)]
    )
    host.command(machine, [Verify(PEER, b"signature and body", 5)])
    host.finish_all(valid=False)
    assert machine.heard() == [
        Stored(1),
        Loaded(2, b"v"),
        Stored(3),
        Loaded(4, None),
        Verified(5, False),
    ]


# The node's link to itself


def test_a_link_to_oneself_needs_no_wire() -> None:
    machine = Scripted(react=echo)
    host = host_of(machine)
    host.command(machine, [OpenLink(Contact(ME), "own"), Send(Note(1), (ME,))])
    assert machine.heard() == [
        LinkOpened(ME, "own"),
        MessageReceived(ME, Note(1)),
        MessageReceived(ME, Echo(1)),
    ]
    assert host.dialled == []
    assert host.records == []


# The rest


def test_a_message_to_a_peer_without_a_link_is_dropped_and_counted() -> None:
    machine = Scripted()
    host = host_of(machine)
    host.command(machine, [Send(Note(1), (PEER,))])
    assert host.sent == []
    assert host.records == [Undeliverable(PEER)]


def test_queue_marks_reach_every_claimant_once_and_nobody_else() -> None:
    first, second, stranger = Scripted((Note,)), Scripted((Echo,)), Scripted((Other,))
    host = host_of(first, second, stranger)
    host.command(first, [OpenLink(Contact(PEER), "a"), OpenLink(Contact(PEER), "b")])
    host.command(second, [OpenLink(Contact(PEER), "c")])
    host.link_opened(PEER)
    host.queue_changed(PEER, high=True)
    host.queue_changed(PEER, high=False)
    marks = [SendQueueHigh(PEER), SendQueueLow(PEER)]
    assert first.heard(SendQueueHigh, SendQueueLow) == marks
    assert second.heard(SendQueueHigh, SendQueueLow) == marks
    assert stranger.inputs == []


def test_a_link_is_read_again_when_all_machines_that_paused_it_have_resumed() -> None:
    first, second = Scripted((Note,)), Scripted((Echo,))
    host = host_of(first, second)
    host.link_opened(PEER)
    host.command(first, [PauseReading(PEER), PauseReading(PEER)])
    host.command(second, [PauseReading(PEER)])
    host.command(first, [ResumeReading(PEER), ResumeReading(PEER)])
    assert list(host.paused) == [PEER], "the second one cannot take more"
    host.command(second, [ResumeReading(PEER)])
    assert not host.paused


def test_a_pause_ends_with_its_link() -> None:
    first, second = Scripted((Note,)), Scripted((Echo,))
    host = host_of(first, second)
    host.command(first, [PauseReading(PEER)])
    assert not host.paused, "there is no link yet"
    host.link_opened(PEER)
    host.command(first, [PauseReading(PEER)])
    host.link_closed(PEER, "lost")
    host.link_opened(PEER)
    host.command(second, [PauseReading(PEER)])
    host.command(first, [ResumeReading(PEER)])
    assert list(host.paused) == [PEER], "of the link before"
    host.command(second, [ResumeReading(PEER)])
    assert not host.paused


def test_records_of_machines_and_of_the_host_end_up_in_one_place() -> None:
    machine = Scripted()
    host = host_of(machine)
    host.link_opened(PEER)
    host.rejected(PEER, "malformed")
    assert host.records == [LinkUp(PEER), Rejected(PEER, "malformed")]
    assert Published in FakeHost._effects
