"""Faults of nodes: slow ones, dead ones, and ones that come back."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS
from shoal.kernel.effects import Load, SetTimer, Store, Verify
from shoal.kernel.inputs import LinkClosed, Loaded, Started, Stored
from shoal.kernel.records import FaultInjected, LinkUp
from shoal.sim.faults import Churn, Crash, ServiceTime
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


@pytest.mark.parametrize(("fraction", "dead"), [(0.0, 0), (0.001, 1), (0.2, 1), (0.4, 2)])
def test_a_fraction_above_zero_is_at_least_one_node(fraction: float, dead: int) -> None:
    net = TinyNetwork(5)
    Crash(fraction=fraction, start_s=1).install(net.simulation)
    net.run(1.5)
    assert sum(node.host is None for node in net.nodes) == dead


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
