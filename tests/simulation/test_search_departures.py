"""Search networks whose nodes leave or die: what they held, and what they were given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.base.units import S_NS
from shoal.sim import SimNode
from tests.support.search_networks import MEASURED_S, Network


def _mass(network: Network, round: int) -> float:
    lakes = [network.machine(node).parts.measurement._lake for node in network.running()]
    return sum(lake.all().totals.nodes for lake in lakes if lake.number == round)


def test_who_leaves_hands_over_what_it_holds_of_the_measurement() -> None:
    network = Network(11, 30)
    machine = network.machine(network.nodes[0])
    before = machine.parts.measurement.round
    while machine.parts.measurement.round == before:
        network.simulation.run_for(1)
    network.simulation.run_for(20)  # everybody has heard of it
    round = machine.parts.measurement.round

    def most() -> float:
        """The mass when none of it is on its way."""
        seen = []
        for _ in range(60):
            network.simulation.run_for(0.05)
            seen.append(_mass(network, round))
        return max(seen)

    assert most() == pytest.approx(30)
    for node in network.nodes[10:15]:
        network.leave(node)
    network.simulation.run_for(5)
    assert network.counts["leaves"] == 5
    assert machine.parts.measurement.round == round
    assert most() == pytest.approx(30)
    network.simulation.run_for(2 * MEASURED_S)
    known = machine.parts.measurement.known
    assert known is not None
    assert known.nodes == pytest.approx(25, rel=0.05)


@pytest.mark.parametrize("crash", [False, True])
def test_a_client_finds_another_host(crash: bool) -> None:
    network = Network(12, 20, clients=1)
    client = network.nodes[20]
    hosting = network.machine(client).parts.hosting
    first = next(node for node in network.nodes if node.id == hosting.host)
    owner = next(node for node in network.nodes[:20] if node is not first)
    network.put(owner, "doc", {"title": "bridge"}, "managed")
    network.simulation.run_for(2)
    assert network.find(client, "bridge")[0] == ["doc"]
    end: Callable[[SimNode], None] = network.crash if crash else network.leave
    end(first)
    network.simulation.run_for(20)
    assert hosting.host not in (None, first.id)
    assert network.find(client, "bridge")[0] == ["doc"]


def test_parts_for_the_dead_go_to_others() -> None:
    """Half of the nodes die, and nobody notices for a while: bubbles that are cast meanwhile reach
    as many nodes as they should once that is over."""
    network = Network(13, 100)
    dead = network.nodes[50:]
    size = network.machine(network.nodes[0]).parts.bubbles.data_size()
    for node in dead:
        node.crash(10 * S_NS)
    network.simulation.run_for(1)
    for number in range(25):
        network.put(network.nodes[number], f"doc{number}", {"title": f"word{number}"})
    network.simulation.run_for(5)
    unnoticed = [network.holders(f"doc{number}") for number in range(25)]
    network.simulation.run_for(10)
    noticed = [network.holders(f"doc{number}") for number in range(25)]
    assert sum(unnoticed) / 25 < 0.6 * size
    assert sum(noticed) / 25 > 0.75 * size  # 0.76 to 1.0 with three seeds
    found = 0
    for number in range(25):
        names, _ = network.find(network.nodes[49 - number], f"word{number}")
        found += names == [f"doc{number}"]
    assert found >= 24


def test_the_dead_are_missed_even_if_their_links_stay() -> None:
    network = Network(14, 60)
    size = network.machine(network.nodes[0]).parts.bubbles.data_size()
    for node in network.nodes[30:]:
        node.crash(120 * S_NS)  # as if a cable were cut
    for number in range(20):
        network.put(network.nodes[number], f"doc{number}", {"title": f"word{number}"})
    network.simulation.run_for(5)
    unnoticed = sum(network.holders(f"doc{number}") for number in range(20)) / 20
    network.simulation.run_for(30)
    noticed = sum(network.holders(f"doc{number}") for number in range(20)) / 20
    assert unnoticed < 0.6 * size
    assert noticed > 0.75 * size
