"""Faults of nodes: slow ones, dead ones, and ones whose clocks are wrong."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import Load, SetTimer, Store, Verify
from shoal.kernel.inputs import (
    LinkClosed,
    LinkFailed,
    Loaded,
    Started,
    Stored,
    TimerFired,
)
from shoal.kernel.records import FaultInjected, LinkUp
from shoal.sim import RegionDelay, SimulationFailure
from shoal.sim.clocks import DriftingClock
from shoal.sim.delays import parse_table
from shoal.sim.faults import Churn, ClockDrift, Crash, Partition, ServiceTime
from shoal.sim.simulation import START_NS
from tests.support.machines import echo, peer_id
from tests.support.tiny_network import DELAY_MS, PURPOSE, TinyNetwork

A, B = peer_id(0), peer_id(1)


# Service time


def test_messages_queue_behind_one_core() -> None:
    net = TinyNetwork(3)
    ServiceTime(per_message_ms=5).install(net.simulation)
    net.link(0, 1)
    net.link(2, 1)
    net.machine(1).forget()
    begin_ms = net.now_ms()
    net.send(0, 1, [1, 2])
    net.send(2, 1, [3])
    net.run(1)
    assert net.machine(1).notes() == [1, 2, 3]
    assert net.arrivals_ms(1) == [begin_ms + DELAY_MS + 5 * n for n in (1, 2, 3)]


def test_an_idle_core_takes_a_message_at_once() -> None:
    net = TinyNetwork(react=echo)
    ServiceTime(per_message_ms=5).install(net.simulation)
    net.link()
    for number in range(3):
        begin_ms = net.now_ms()
        net.send(0, 1, [number])
        net.run(1)
        assert net.arrivals_ms(0)[-1] == begin_ms + 2 * (DELAY_MS + 5)


def test_order_is_kept_when_nodes_become_fast_again() -> None:
    net = TinyNetwork()
    ServiceTime(per_message_ms=100, end_s=2).install(net.simulation)
    net.link()
    for number in range(100):
        net.send(0, 1, [number])
        net.run(0.015)
    net.run(20)
    assert net.machine(1).notes() == list(range(100))
    begin_ms = net.now_ms()
    net.send(0, 1, [100])
    net.run(1)
    assert net.arrivals_ms(1)[-1] == begin_ms + DELAY_MS


def test_a_busy_node_learns_of_a_closed_link_after_its_messages() -> None:
    net = TinyNetwork()
    ServiceTime(per_message_ms=100).install(net.simulation)
    net.link()
    net.send(0, 1, range(5))
    net.run(0.001)
    net.nodes[0].crash()
    net.run(2)
    assert net.machine(1).notes() == list(range(5))
    assert net.machine(1).heard()[-1] == LinkClosed(A, PURPOSE, "crashed")


def test_service_time_holds_for_the_next_incarnation() -> None:
    net = TinyNetwork()
    ServiceTime(per_message_ms=5).install(net.simulation)
    net.run(0.1)
    net.nodes[1].crash()
    net.nodes[1].start()
    net.link()
    begin_ms = net.now_ms()
    net.send(0, 1, [1])
    net.run(1)
    assert net.arrivals_ms(1) == [begin_ms + DELAY_MS + 5]


# Crash and restart


def test_peers_of_a_dead_process_learn_of_it_at_once() -> None:
    net = TinyNetwork()
    net.link()
    net.nodes[1].crash()
    net.run(DELAY_MS / 1000)
    assert net.machine(0).heard() == [LinkClosed(B, PURPOSE, "crashed")]


def test_peers_of_a_dead_machine_take_their_time() -> None:
    net = TinyNetwork()
    Crash(fraction=1.0, role="victim", start_s=2, detect_s=3).install(net.simulation)
    net.nodes[1].role = "victim"
    net.link()
    net.run(3.9)
    assert net.machine(0).heard() == []
    net.send(0, 1, [1])
    net.run(0.2)
    assert net.machine(0).heard() == [LinkClosed(B, PURPOSE, "crashed")]


def test_a_fraction_of_the_running_nodes_dies_and_comes_back() -> None:
    net = TinyNetwork(20)
    net.nodes[0].crash()
    Crash(fraction=0.5, start_s=1, end_s=2).install(net.simulation)
    net.run(1.5)
    dead = [node.index for node in net.nodes if node.host is None]
    assert len(dead) == 11  # half of nineteen, to the even, and the one that was dead before
    net.run(1)
    assert [node.incarnation for node in net.nodes] == [
        1 + (node.index in dead and node.index > 0) for node in net.nodes
    ]
    assert net.nodes[0].host is None, "whoever was dead before stays dead"
    assert net.records(FaultInjected) == [
        FaultInjected("crash", "10 nodes"),
        FaultInjected("crash", "10 nodes start again"),
    ]


# Churn


def test_nodes_go_and_come_back_at_the_rate_that_is_asked_for() -> None:
    net = TinyNetwork(50)
    Churn(per_minute=0.5, away_s=12, start_s=60, end_s=660).install(net.simulation)
    net.run(59)
    assert all(node.host is not None for node in net.nodes)
    away = []
    for _ in range(60):
        net.run(10)
        away.append(sum(node.host is None for node in net.nodes))
    # 25 a minute, each away for a fifth of one: five at a time.
    assert 3 < sum(away) / len(away) < 7
    net.run(2)
    assert all(node.host is not None for node in net.nodes), "the end brings everybody back"
    deaths = sum(node.incarnation - 1 for node in net.nodes)
    assert 200 < deaths < 300
    assert net.records(FaultInjected) == [
        FaultInjected("churn", "0.5 of all a minute"),
        FaultInjected("churn", f"{deaths} deaths"),
    ]
    net.run(120)
    assert sum(node.incarnation - 1 for node in net.nodes) == deaths


def test_churn_leaves_one_alive_and_others_alone() -> None:
    net = TinyNetwork(4)
    for node in net.nodes[:2]:
        node.role = "victim"
    Churn(per_minute=10, away_s=1e6, role="victim").install(net.simulation)
    Churn(per_minute=10, role="nobody").install(net.simulation)
    net.run(600)
    assert sum(node.host is None for node in net.nodes[:2]) == 1
    assert [node.incarnation for node in net.nodes[2:]] == [1, 1]


def test_peers_notice_who_goes() -> None:
    net = TinyNetwork()
    Churn(per_minute=10, away_s=1e6, start_s=1, detect_s=3).install(net.simulation)
    net.link()
    died_s = None
    while died_s is None:
        net.run(0.1)
        died_s = net.simulation.time_s if any(n.host is None for n in net.nodes) else None
    (left,) = [number for number, node in enumerate(net.nodes) if node.host is not None]
    net.run(2.8)
    assert net.machine(left).heard() == []
    net.run(0.2)
    assert net.machine(left).heard() == [LinkClosed((B, A)[left], PURPOSE, "crashed")]


def test_a_node_that_runs_cannot_start_and_a_dead_one_takes_no_commands() -> None:
    net = TinyNetwork()
    with pytest.raises(UsageError, match="runs already"):
        net.nodes[0].start()
    net.nodes[0].crash()
    with pytest.raises(UsageError, match="does not run: start it"):
        net.do(0)


@pytest.mark.parametrize("lose_disk", [False, True])
def test_a_new_incarnation_finds_the_disk_or_not(lose_disk: bool) -> None:
    net = TinyNetwork()
    net.do(0, Store(b"key", b"value", 1))
    net.run(1)
    assert net.machine(0).heard(Stored) == [Stored(1)]
    net.nodes[0].crash(lose_disk=lose_disk)
    net.nodes[0].start()
    net.do(0, Load(b"key", 2))
    net.run(1)
    assert net.nodes[0].incarnation == 2
    assert net.machine(0).heard() == [Started(), Loaded(2, None if lose_disk else b"value")]


def test_a_write_that_was_not_acknowledged_is_lost_by_a_crash() -> None:
    net = TinyNetwork()
    net.do(0, Store(b"key", b"old", 1))
    net.run(1)
    net.do(0, Store(b"key", b"new", 2))
    net.nodes[0].crash()
    net.nodes[0].start()
    net.do(0, Load(b"key", 3))
    net.run(1)
    assert net.machine(0).heard() == [Started(), Loaded(3, b"old")]


def test_nothing_of_an_old_incarnation_reaches_the_new_one() -> None:
    net = TinyNetwork()
    net.link()
    net.send(1, 0, [1])
    net.do(
        0,
        SetTimer("tea", 5 * MS_NS),
        Store(b"key", b"value", 1),
        Load(b"key", 2),
        Verify(A, b"signature and body", 3),
        net.claim(0, 1),
    )
    old = net.machine(0)
    old.forget()
    net.nodes[0].crash()
    net.nodes[0].start()
    net.run(20)
    assert net.machine(0).heard() == [Started()]
    assert old.inputs == []


def test_a_dial_of_an_old_incarnation_comes_to_nothing() -> None:
    net = TinyNetwork()
    net.do(0, net.claim(0, 1))
    net.nodes[0].crash()
    net.nodes[0].start()
    net.run(5)
    assert net.records(LinkUp) == []
    assert net.machine(0).heard() == net.machine(1).heard() == [Started()]


# Clocks


@given(
    st.integers(-(10**12), 10**12),
    st.floats(-500_000, 500_000),
    st.lists(st.integers(0, 10**11), max_size=20),
)
def test_a_drifting_clock_never_goes_back(offset_ns: int, ppm: float, steps: list[int]) -> None:
    clock = DriftingClock(0, offset_ns, ppm, shown_ns=17)
    now_ns, shown = 0, [17]
    for number, step_ns in enumerate(steps):
        now_ns += step_ns
        shown.append(clock.read(now_ns))
        if number == len(steps) // 2:
            clock.mend()
    assert shown == sorted(shown)


def test_a_clock_that_turns_late_while_a_node_runs_never_goes_back() -> None:
    net = TinyNetwork()
    for when_ms in range(0, 16_000, 100):
        net.at(when_ms / 1000, 0)
    for when_s, offset_s in [(2, -3), (6, 2), (8, -2), (9, 0)]:
        net.simulation.at_s(when_s, partial(net.nodes[0].set_clock, offset_s * S_NS, 0))
    net.run(20)
    times_ns = net.machine(0).times_ns
    assert times_ns == sorted(times_ns)
    assert times_ns[-1] - START_NS == 15_900 * MS_NS


def test_clocks_are_off_within_bounds_and_right_again_after_the_fault() -> None:
    net = TinyNetwork(50)
    ClockDrift(offset_ms=500, end_s=10).install(net.simulation)
    net.run(5)
    now_ns = net.simulation.scheduler.now_ns
    errors_ms = [(node.host.now_ns() - now_ns) / MS_NS for node in net.nodes if node.host]
    assert max(errors_ms) <= 500
    assert min(errors_ms) >= -500
    assert max(errors_ms) > 300
    assert min(errors_ms) < -300
    net.run(6)
    now_ns = net.simulation.scheduler.now_ns
    assert all(node.host.now_ns() == now_ns for node in net.nodes if node.host)


def test_a_node_times_by_its_own_clock() -> None:
    net = TinyNetwork()
    net.nodes[0].set_clock(0, 100_000)  # a tenth fast
    net.nodes[1].set_clock(0, -100_000)
    for number in (0, 1):
        net.do(number, SetTimer("tea", S_NS))
    fired_s = []
    for number in (0, 1):
        while not net.machine(number).heard(TimerFired):
            net.run(0.001)
        fired_s.append(net.simulation.time_s)
        started_ns, rang_ns = net.machine(number).times_ns[-2:]
        assert rang_ns - started_ns == pytest.approx(S_NS, abs=2)
    assert fired_s == pytest.approx([1 / 1.1, 1 / 0.9], abs=0.002)


def test_records_keep_true_time() -> None:
    """Whoever analyses a run wants to compare nodes."""
    net = TinyNetwork()
    net.nodes[0].set_clock(10 * S_NS, 0)
    net.link()
    times = {row[0] for row in net.rows if isinstance(row[2], LinkUp)}
    assert len(times) == 1


# Partition


def test_a_partition_loses_messages_then_links_and_heals() -> None:
    net = TinyNetwork(4)
    for node in net.nodes[2:]:
        node.role = "island"
    Partition(fraction=0.5, role="island", start_s=5, end_s=20).install(net.simulation)
    net.link(0, 1)
    net.link(2, 3)
    net.link(1, 2)
    net.link(1, 3)
    net.simulation.run_until_s(5.1)
    (away,) = [n for n in (2, 3) if not net.simulation.reachable(A, peer_id(n))]
    stays = 5 - away
    for number in range(4):
        net.machine(number).forget()

    net.send(1, away, [1])
    net.send(1, stays, [2])
    net.send(1, 0, [3])
    net.send(2, 3, [4])
    net.run(1)
    assert net.machine(away).notes() == []
    assert net.machine(stays).notes() == [2]
    assert net.machine(0).notes() == [3]
    assert net.machine(1).heard() == []

    net.run(1)
    assert net.machine(1).heard() == [LinkClosed(peer_id(away), PURPOSE, "timeout")]
    assert LinkClosed(B, PURPOSE, "timeout") in net.machine(away).heard()

    net.do(1, net.claim(1, away))
    net.run(4)
    assert net.machine(1).heard(LinkFailed) == [LinkFailed(peer_id(away), PURPOSE, "timeout")]

    net.simulation.run_until_s(20.1)
    net.link(1, away)
    net.send(1, away, [5])
    net.run(1)
    assert net.machine(away).notes() == [5]
    assert net.records(FaultInjected) == [
        FaultInjected("partition", "1 nodes cut off"),
        FaultInjected("partition", "heals"),
    ]


def test_a_partition_cuts_off_regions() -> None:
    table = parse_table("from\there\tthere\nhere\t1\t2\nthere\t2\t1\n", "two")
    net = TinyNetwork(4, delays=RegionDelay(table))
    Partition(regions=("there",), start_s=1, end_s=2).install(net.simulation)
    net.run(1.5)
    cut = [(a, b) for a in range(4) for b in range(4) if not reach(net, a, b)]
    assert cut == [(a, b) for a in range(4) for b in range(4) if a % 2 != b % 2]
    net.run(1)
    assert reach(net, 0, 1)


def reach(net: TinyNetwork, a: int, b: int) -> bool:
    return net.simulation.reachable(peer_id(a), peer_id(b))


def test_a_partition_of_regions_where_nobody_is_is_refused() -> None:
    net = TinyNetwork()
    Partition(regions=("mars",), start_s=1, end_s=2).install(net.simulation)
    with pytest.raises(SimulationFailure, match="no node is in these regions"):
        net.run(2)


def test_a_short_partition_keeps_the_links() -> None:
    net = TinyNetwork()
    net.nodes[1].role = "island"
    cut = Partition(fraction=0.9, role="island", start_s=2, end_s=3, detect_s=2)
    cut.install(net.simulation)
    net.link()
    net.simulation.run_until_s(2.5)
    net.send(0, 1, [1])
    net.simulation.run_until_s(3.5)
    net.send(0, 1, [2])
    net.run(5)
    assert net.machine(1).notes() == [2]
    assert net.machine(0).heard() == []


@pytest.mark.parametrize(("end_s", "told"), [(4, "closed"), (20, "timeout")])
def test_nothing_passes_a_cut_not_even_the_end_of_a_link(end_s: float, told: str) -> None:
    """A node that dies behind the cut is not missed before the cut heals, or is noticed."""
    net = TinyNetwork()
    net.nodes[1].role = "island"
    cut = Partition(fraction=0.9, role="island", start_s=2, end_s=end_s, detect_s=5)
    cut.install(net.simulation)
    net.link()
    net.simulation.run_until_s(3)
    net.nodes[1].crash()
    net.simulation.run_until_s(3.9)
    assert net.machine(0).heard() == []
    net.simulation.run_until_s(8)
    assert net.machine(0).heard() == [LinkClosed(B, PURPOSE, told)]
