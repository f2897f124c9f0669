"""Partitions: what is cut off, what is lost, and what heals."""

from __future__ import annotations

import pytest

from shoal.kernel.inputs import LinkClosed, LinkFailed
from shoal.kernel.records import FaultInjected
from shoal.sim import RegionDelay, SimulationFailure
from shoal.sim.delays import parse_table
from shoal.sim.faults import Partition
from tests.support.machines import peer_id
from tests.support.tiny_network import PURPOSE, TinyNetwork

A, B = peer_id(0), peer_id(1)


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
