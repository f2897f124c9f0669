"""A tracker that is gone does not stop data: links stay, joins wait, and its return heals all."""

from __future__ import annotations

from functools import partial

from shoal.sim.checkers import DeliveredOnce, MachineInvariants
from shoal.sim.host import SimNode
from shoal_lab.experiments.streams.network_view import check_overlay
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario

NODES = 32
DOWN_S, UP_S = 30.0, 60.0
HEALED_S = UP_S + 40.0  # backoffs up to 20 s, then gone members, resends and a sweep


class Outage:
    """A network whose tracker crashes and comes back, with a message every so often."""

    def __init__(self, seed: int) -> None:
        self.once = DeliveredOnce()
        self.network = StreamsNetwork(
            Scenario(name="tracker-outage", network=NetworkSettings(nodes=NODES)),
            seed,
            checkers=[self.once, MachineInvariants()],
            replay=f"./test tests/simulation/test_tracker_outage.py --seed {seed}",
        )
        self.simulation = self.network.simulation
        self.simulation.at_s(DOWN_S, self.network.tracker.crash)
        self.simulation.at_s(UP_S, self.network.tracker.start)

    def publish_between(self, begin_s: float, end_s: float, publishers: list[SimNode]) -> None:
        """One message a second, from each in turn."""
        for number in range(int(end_s - begin_s)):
            publisher = publishers[number % len(publishers)]
            publish = partial(self.network.publish, publisher, b"meanwhile")
            self.simulation.at_s(begin_s + number, publish)

    def check_deliveries(self, nodes: list[SimNode]) -> None:
        """Everybody has everything."""
        published = set(self.once.published)
        assert published
        for node in nodes:
            assert self.once.delivered(node) == published

    def finish(self) -> None:
        self.simulation.run_until_s(HEALED_S + 10)
        self.simulation.check_quiet()
        check_overlay(self.network)


def test_data_flows_while_the_tracker_is_away_and_after(seed: int) -> None:
    outage = Outage(seed)
    network = outage.network
    network.join_all()
    outage.publish_between(DOWN_S - 5, HEALED_S, network.nodes)
    outage.simulation.run_until_s(DOWN_S)
    before = [network.active(node) for node in network.nodes]
    outage.simulation.run_until_s(UP_S - 0.5)
    assert network.tracker.host is None
    assert [network.active(node) for node in network.nodes] == before, "not a link was lost"
    outage.finish()
    assert network.tracker.incarnation == 2
    outage.check_deliveries(network.nodes)


def test_whoever_comes_meanwhile_waits_for_the_tracker(seed: int) -> None:
    outage = Outage(seed)
    network = outage.network
    stayed, late = network.nodes[:-4], network.nodes[-4:]
    network.tracker.start()
    for number, node in enumerate(stayed):
        outage.simulation.at_s(number * 0.01, node.start)
    for node in late:
        outage.simulation.at_s(DOWN_S + 10, node.start)
    outage.publish_between(DOWN_S + 1, UP_S - 1, stayed)
    outage.simulation.run_until_s(UP_S - 0.5)
    assert not any(network.active(node) for node in late)
    outage.check_deliveries(stayed)
    outage.finish()
    assert all(len(network.active(node)) == 4 for node in late)
    said = set(outage.once.published)
    network.publish(late[0], b"hello")
    outage.simulation.run_for(5)
    (hello,) = set(outage.once.published) - said
    assert all(hello in outage.once.delivered(node) for node in network.nodes)


def test_crashes_meanwhile_cost_nobody_else_a_message(seed: int) -> None:
    outage = Outage(seed)
    network = outage.network
    network.join_all()
    crashed, stayed = network.nodes[:4], network.nodes[4:]
    for number, node in enumerate(crashed):
        outage.simulation.at_s(DOWN_S + 5 + number, node.crash)
    outage.publish_between(DOWN_S - 5, HEALED_S, stayed)
    outage.simulation.run_until_s(UP_S - 0.5)
    # Nobody closes the holes now: 28 nodes with four neighbours each hang together all the same.
    assert network.is_connected()
    outage.finish()
    assert {len(network.active(node)) for node in stayed} == {4}
    outage.check_deliveries(stayed)
