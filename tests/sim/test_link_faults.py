"""Faults of links, each alone on a link between two nodes."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from shoal.base.units import KIB
from shoal.kernel.effects import CloseLink
from shoal.kernel.host import HostLimits
from shoal.kernel.inputs import (
    LinkClosed,
    LinkFailed,
    LinkOpened,
    SendQueueHigh,
    SendQueueLow,
)
from shoal.kernel.records import LinkDown
from shoal.sim.faults import OVERHEAD_BYTES, Bandwidth, Duplication, Fault, Jitter, Loss, Reordering
from tests.support.machines import Note, NoteCodec, peer_id
from tests.support.tiny_network import DELAY_MS, PURPOSE, TinyNetwork

A, B, C = peer_id(0), peer_id(1), peer_id(2)
MANY = 4000


def faulty(*faults: Fault, **options: Any) -> TinyNetwork:
    net = TinyNetwork(**options)
    for fault in faults:
        fault.install(net.simulation)
    net.link()
    return net


# Jitter


def test_jitter_has_its_mean_and_keeps_order() -> None:
    """Messages far apart do not wait for each other, so that each shows its own delay."""
    net = faulty(Jitter(mean_ms=5))
    begin_ms = net.now_ms()
    for number in range(MANY):
        net.send(0, 1, [number])
        net.run(0.1)
    net.run(1)
    extra_ms = [t - begin_ms - 100 * n - DELAY_MS for n, t in enumerate(net.arrivals_ms(1))]
    assert min(extra_ms) >= 0
    # Standard error of the mean of an exponential: mean / sqrt(n) = 0.08 ms.
    assert fmean(extra_ms) == pytest.approx(5, abs=0.32)
    assert fmean(t > 5 for t in extra_ms) == pytest.approx(0.368, abs=0.03), "not exponential"


def test_two_faults_of_a_kind_draw_different_numbers() -> None:
    net = faulty(Jitter(mean_ms=5), Jitter(mean_ms=5))
    begin_ms = net.now_ms()
    for number in range(MANY):
        net.send(0, 1, [number])
        net.run(0.2)
    extra_ms = [t - begin_ms - 200 * n - DELAY_MS for n, t in enumerate(net.arrivals_ms(1))]
    # P(sum > 20 ms) is (1 + 4) e^-4 for two draws, and would be e^-2 for one counted twice.
    assert fmean(t > 20 for t in extra_ms) == pytest.approx(0.0916, abs=0.0183)


def test_jitter_keeps_order_when_messages_are_close() -> None:
    net = faulty(Jitter(mean_ms=50))
    for number in range(200):
        net.send(0, 1, [number])
        net.run(0.001)
    net.run(2)
    assert net.machine(1).notes() == list(range(200))


@pytest.mark.parametrize("fault", [Jitter(mean_ms=500, end_s=3), Bandwidth(mbit_s=0.01, end_s=3)])
def test_order_is_kept_when_the_fault_ends(fault: Fault) -> None:
    """What was sent without the fault must not overtake what it still delays."""
    net = faulty(fault)
    for number in range(200):
        net.send(0, 1, [number])
        net.run(0.02)
    net.run(60)
    assert net.now_ms() > 3000 + 60_000
    assert net.machine(1).notes() == list(range(200))
    assert not net.simulation.slow_path, "the fast path is taken again afterwards"


def test_a_link_closes_behind_what_a_fault_delays() -> None:
    net = faulty(Jitter(mean_ms=500), limits=HostLimits(parked_ns=0))
    net.send(0, 1, range(50))
    net.do(0, CloseLink(B, PURPOSE))
    net.run(10)
    assert net.machine(1).notes() == list(range(50))
    assert net.machine(1).heard()[-1] == LinkClosed(A, PURPOSE, "closed")


# Loss, duplication, reordering


def test_loss_has_its_rate() -> None:
    net = faulty(Loss(probability=0.2))
    net.send(0, 1, range(MANY))
    net.run(1)
    arrived = net.machine(1).notes()
    assert arrived == sorted(arrived)
    assert len(arrived) / MANY == pytest.approx(0.8, abs=0.026)  # four standard errors


def test_a_fault_begins_and_ends_in_time() -> None:
    net = faulty(Loss(probability=1, start_s=2, end_s=3))
    for number in range(30):
        net.send(0, 1, [number])
        net.run(0.1)
    net.run(1)
    # One second goes by before the first message: 1.0, 1.1, ... 3.9 s.
    assert net.machine(1).notes() == [*range(10), *range(20, 30)]


def test_duplication_repeats_at_its_rate_and_later() -> None:
    net = faulty(Duplication(probability=0.25, later_ms=30))
    begin_ms = net.now_ms()
    net.send(0, 1, range(MANY))
    net.run(1)
    notes = net.machine(1).notes()
    assert set(notes) == set(range(MANY))
    assert len(notes) / MANY == pytest.approx(1.25, abs=0.028)
    times = net.arrivals_ms(1)
    assert times[:MANY] == [begin_ms + DELAY_MS] * MANY
    assert times[MANY:] == [begin_ms + DELAY_MS + 30] * (len(notes) - MANY)


def test_reordering_really_reorders_and_loses_nothing() -> None:
    net = faulty(Reordering(probability=0.3, held_ms=25))
    for number in range(500):
        net.send(0, 1, [number])
        net.run(0.01)
    net.run(1)
    notes = net.machine(1).notes()
    assert notes != sorted(notes)
    assert sorted(notes) == list(range(500))
    # A held message is passed by those of the next 25 ms: two, or three that are held themselves.
    assert max(abs(n - at) for at, n in enumerate(notes)) <= 3
    passed = sum(later < n for at, n in enumerate(notes) for later in notes[at + 1 :])
    assert passed > 100


def test_faults_combine() -> None:
    net = faulty(
        Reordering(probability=0.2, held_ms=25),
        Loss(probability=0.1),
        Jitter(mean_ms=5),
        Duplication(probability=0.1, later_ms=40),
        Bandwidth(mbit_s=10),
    )
    for number in range(1000):
        net.send(0, 1, [number])
        net.run(0.01)
    net.run(1)
    notes = net.machine(1).notes()
    assert 800 < len(set(notes)) < 960
    assert len(notes) > len(set(notes))
    assert notes != sorted(notes)


# Bandwidth


def size_bytes(note: Note) -> int:
    return len(NoteCodec().encode(note)) + OVERHEAD_BYTES


def test_an_uplink_sends_one_message_after_the_other() -> None:
    net = faulty(Bandwidth(mbit_s=1))
    begin_ms = net.now_ms()
    net.send(0, 1, range(10), padding=1000)
    net.run(1)
    each_ms = size_bytes(Note(1, bytes(1000))) * 8 / 1e6 * 1000
    expected = [begin_ms + DELAY_MS + each_ms * n for n in range(1, 11)]
    assert net.arrivals_ms(1) == pytest.approx(expected, abs=1e-3)


def test_the_links_of_a_node_share_its_uplink_and_nodes_do_not() -> None:
    net = faulty(Bandwidth(mbit_s=1), nodes=3)
    net.link(0, 2)
    net.link(1, 2)
    begin_ms = net.now_ms()
    each_ms = size_bytes(Note(1, bytes(1000))) * 8 / 1e6 * 1000
    net.send(0, 1, [1], padding=1000)
    net.send(0, 2, [2], padding=1000)
    net.send(1, 2, [3], padding=1000)
    net.run(1)
    assert net.arrivals_ms(1) == pytest.approx([begin_ms + DELAY_MS + each_ms], abs=1e-3)
    assert net.machine(2).notes() == [3, 2]
    assert net.arrivals_ms(2) == pytest.approx(
        [begin_ms + DELAY_MS + each_ms, begin_ms + DELAY_MS + 2 * each_ms], abs=1e-3
    )


def test_a_queue_is_high_above_half_its_bound_and_low_below_a_quarter() -> None:
    net = faulty(Bandwidth(mbit_s=1, queue_kib=100))
    each = size_bytes(Note(1, bytes(1000)))
    high = 50 * KIB // each
    net.send(0, 1, range(high), padding=1000)
    assert net.machine(0).heard() == []
    net.send(0, 1, [high], padding=1000)
    assert net.machine(0).heard() == [SendQueueHigh(B)]
    net.send(0, 1, [high + 1], padding=1000)
    net.run(5)
    assert net.machine(0).heard() == [SendQueueHigh(B), SendQueueLow(B)]
    left_ms = net.machine(0).times_ns[-1] - net.machine(0).times_ns[0]
    drained = round(left_ms / 1e9 * 1e6 / 8 / each)
    assert (high + 2 - drained) * each < 25 * KIB <= (high + 3 - drained) * each
    assert net.machine(1).notes() == list(range(high + 2))


def test_a_link_that_cannot_keep_up_is_given_up_and_what_waits_comes_back() -> None:
    net = faulty(Bandwidth(mbit_s=1, queue_kib=10))
    each = size_bytes(Note(0, bytes(1000)))
    fits = 10 * KIB // each
    net.send(0, 1, range(fits), padding=1000)
    net.run(each * 8 / 1e6 * 2.5)  # two have left, the third is half out
    net.send(0, 1, range(fits, fits + 3), padding=1000)
    net.run(5)
    (failed,) = net.machine(0).heard(LinkFailed, LinkClosed)
    assert isinstance(failed, LinkFailed)
    assert (failed.peer, failed.reason) == (B, "too-slow")
    assert [note.number for note in failed.unsent] == list(range(2, fits + 3))
    assert net.machine(1).notes() == [0, 1], "what came back did not go out as well"
    assert net.machine(1).heard()[-1] == LinkClosed(A, PURPOSE, "too-slow")
    assert net.records(LinkDown) == [LinkDown(B, "too-slow"), LinkDown(A, "too-slow")]


def test_what_waits_comes_back_when_the_peer_closes() -> None:
    net = faulty(Bandwidth(mbit_s=1))
    each_s = size_bytes(Note(0, bytes(1000))) * 8 / 1e6
    net.send(0, 1, range(10), padding=1000)
    net.run(each_s * 2.5 - DELAY_MS / 1000)
    net.nodes[1].crash()
    net.run(1)
    (failed,) = net.machine(0).heard(LinkFailed, LinkClosed)
    assert isinstance(failed, LinkFailed)
    assert [note.number for note in failed.unsent] == list(range(2, 10))


def test_a_new_incarnation_has_an_empty_uplink() -> None:
    net = faulty(Bandwidth(mbit_s=0.01))
    net.send(0, 1, range(10), padding=1000)  # eight seconds
    net.nodes[0].crash()
    net.nodes[0].start()
    net.link()
    net.send(0, 1, [42])
    net.run(1)
    assert net.machine(1).notes() == [42]


def test_a_claimant_may_ask_for_the_link_again_at_once() -> None:
    net = faulty(Bandwidth(mbit_s=1, queue_kib=2))
    net.send(0, 1, range(5), padding=1000)
    net.do(0, net.claim(0, 1))
    net.run(2)
    kinds = [type(event) for event in net.machine(0).heard(LinkFailed, LinkOpened)]
    assert kinds == [LinkFailed, LinkOpened]
