"""A machine that stops reading, and what its peer feels of it."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.kernel.effects import Effect, PauseReading, ResumeReading
from shoal.kernel.inputs import (
    Input,
    LinkClosed,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
)
from shoal.sim.faults import ServiceTime
from shoal.sim.links import UNREAD_HIGH, UNREAD_LOW, UNREAD_MAX
from tests.support.machines import Note, peer_id
from tests.support.tiny_network import DELAY_MS, PURPOSE, TinyNetwork

A, B, C = peer_id(0), peer_id(1), peer_id(2)


def linked(nodes: int = 2) -> TinyNetwork:
    net = TinyNetwork(nodes)
    net.link()
    return net


def test_nothing_is_read_while_paused_and_everything_in_order_afterwards() -> None:
    net = linked()
    net.do(1, PauseReading(A))
    net.send(0, 1, range(5))
    net.run(1)
    assert net.machine(1).notes() == []
    net.do(1, ResumeReading(A))
    net.send(0, 1, range(5, 10))
    net.run(1)
    assert net.machine(1).notes() == list(range(10))


def test_other_peers_are_read_meanwhile() -> None:
    net = linked(3)
    net.link(2, 1)
    net.do(1, PauseReading(A))
    net.send(0, 1, [1])
    net.send(2, 1, [2])
    net.run(1)
    assert net.machine(1).notes() == [2]


def test_a_machine_may_pause_again_after_any_message() -> None:
    def one_at_a_time(event: Input) -> Sequence[Effect]:
        return [PauseReading(A)] if isinstance(event, MessageReceived) else ()

    net = linked()
    net.machine(1).react = one_at_a_time
    net.do(1, PauseReading(A))
    net.send(0, 1, range(5))
    for number in range(5):
        net.run(1)
        assert net.machine(1).notes() == list(range(number))
        net.do(1, ResumeReading(A))
    net.run(1)
    assert net.machine(1).notes() == list(range(5))


def test_pausing_twice_and_resuming_what_was_not_paused_is_harmless() -> None:
    net = linked()
    net.do(1, ResumeReading(A), ResumeReading(C), PauseReading(C))
    net.do(1, PauseReading(A), PauseReading(A), ResumeReading(A), ResumeReading(A))
    net.send(0, 1, range(3))
    net.run(1)
    net.do(1, PauseReading(A), ResumeReading(A), PauseReading(A))
    net.send(0, 1, [3])
    net.run(1)
    assert net.machine(1).notes() == [0, 1, 2]
    net.do(1, ResumeReading(A))
    net.run(1)
    assert net.machine(1).notes() == [0, 1, 2, 3]


def test_the_end_of_a_link_is_read_behind_its_messages() -> None:
    net = linked()
    net.do(1, PauseReading(A))
    net.send(0, 1, [1])
    net.nodes[0].crash()
    net.run(1)
    assert net.machine(1).heard() == []
    net.do(1, ResumeReading(A))
    net.run(1)
    assert net.machine(1).heard() == [
        MessageReceived(A, Note(1)),
        LinkClosed(A, PURPOSE, "crashed"),
    ]


def test_the_queue_of_the_sender_fills() -> None:
    net = linked()
    net.do(1, PauseReading(A))
    net.send(0, 1, range(UNREAD_HIGH - 1))
    net.run(1)
    assert net.machine(0).heard() == []
    net.send(0, 1, [UNREAD_HIGH - 1])
    net.run(2 * DELAY_MS / 1000 - 0.001)
    assert net.machine(0).heard() == [], "the news takes its time"
    net.run(1)
    assert net.machine(0).heard() == [SendQueueHigh(B)]
    net.do(1, ResumeReading(A))
    net.run(1)
    assert net.machine(0).heard() == [SendQueueHigh(B), SendQueueLow(B)]
    assert net.machine(1).notes() == list(range(UNREAD_HIGH))


def test_a_peer_that_never_reads_is_given_up() -> None:
    net = linked()
    net.do(1, PauseReading(A))
    net.send(0, 1, range(UNREAD_MAX))
    net.run(1)
    assert net.machine(0).heard() == [SendQueueHigh(B), LinkClosed(B, PURPOSE, "too-slow")]
    net.do(1, ResumeReading(A))
    net.run(1)
    assert net.machine(1).notes() == list(range(UNREAD_MAX))
    assert net.machine(1).heard()[-1] == LinkClosed(A, PURPOSE, "too-slow")


def test_marks_come_in_turn_however_often_reading_stops() -> None:
    net = linked()
    for _ in range(3):
        net.do(1, PauseReading(A))
        net.send(0, 1, range(UNREAD_HIGH + UNREAD_LOW))
        net.run(1)
        net.do(1, ResumeReading(A))
        net.run(1)
    assert net.machine(0).heard() == [SendQueueHigh(B), SendQueueLow(B)] * 3


def test_a_slow_node_that_pauses_loses_nothing() -> None:
    net = TinyNetwork()
    ServiceTime(per_message_ms=100).install(net.simulation)
    net.link()
    net.send(0, 1, range(5))
    net.run(0.25)
    net.do(1, PauseReading(A))
    net.send(0, 1, range(5, 10))
    net.run(1)
    net.do(1, ResumeReading(A))
    net.run(2)
    assert net.machine(1).notes() == list(range(10))
