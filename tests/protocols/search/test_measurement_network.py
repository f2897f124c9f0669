"""Push-sum with fish in whole networks: random circles, everybody beating at its own time."""

from __future__ import annotations

from collections import deque
from random import Random
from statistics import mean

import pytest

from shoal.protocols.search.measuring.measurement import Measurement
from shoal.protocols.search.messages import Ping, Totals

LATENCY = 0.02  # of a beat: a tenth of a second


class Network:
    """Time counts in beats."""

    def __init__(self, locations: list[int], seed: int) -> None:
        self.rng = Random(seed)
        circle = [node for node, places in enumerate(locations) for _ in range(places)]
        self.rng.shuffle(circle)
        self.neighbours: list[list[int]] = [[] for _ in locations]
        for one, other in zip(circle, [*circle[1:], circle[0]], strict=True):
            self.neighbours[one].append(other)
            self.neighbours[other].append(one)
        degrees = [len(peers) for peers in self.neighbours]
        self.truth = Totals(len(degrees), sum(degrees), sum(degree**2 for degree in degrees))
        self.nodes = [Measurement(Random(self.rng.random())) for _ in locations]
        self.phases = sorted((self.rng.random(), node) for node in range(len(locations)))
        self.now = 0.0
        self.under_way: deque[tuple[float, int, Ping]] = deque()

    def begin(self) -> None:
        """As if the network had doubled since the last round; one begins a round, others follow."""
        before = Totals(self.truth.nodes / 2, self.truth.degrees / 2, self.truth.squares / 2)
        for node, peers in zip(self.nodes, self.neighbours, strict=True):
            node.found(len(peers))
            node.known = before
        first = self.nodes[0]
        second = Measurement(Random(0)).share(1)._replace(round=2).ping(None)
        assert first.received(second, len(self.neighbours[0]))

    def beat(self) -> None:
        """Everybody beats once."""
        start = self.now
        for phase, node in self.phases:
            self.now = start + phase
            while self.under_way and self.under_way[0][0] <= self.now:
                _, to, ping = self.under_way.popleft()
                assert self.nodes[to].received(ping, len(self.neighbours[to]))
            peers = self.neighbours[node]
            ping = self.nodes[node].share(len(peers)).ping(None)
            self.under_way.extend((self.now + LATENCY, peer, ping) for peer in peers)
        self.now = start + 1

    def error(self, totals: Totals | None) -> float:
        if totals is None:
            return 1.0
        truth = self.truth
        return max(
            abs(totals.nodes / truth.nodes - 1),
            abs(totals.degrees / truth.degrees - 1),
            abs(totals.squares / truth.squares - 1),
        )

    def right(self, round_: int) -> float:
        """Which part of the nodes is in this round, and right within 5 %."""
        good = [n for n in self.nodes if n.round == round_ and self.error(n.estimate) <= 0.05]
        return len(good) / len(self.nodes)

    def knowing(self) -> float:
        """Which part of the nodes has a result that is right within 5 %."""
        return mean(self.error(node.known) <= 0.05 for node in self.nodes)


@pytest.mark.parametrize(("locations", "beats_max"), [(3, 32), (5, 20)])
def test_a_thousand_nodes_find_out_in_time(locations: int, beats_max: int) -> None:
    network = Network([locations] * 1000, seed=locations)
    network.begin()
    assert network.knowing() == 0
    while network.right(2) < 0.99:
        network.beat()
        assert network.now <= beats_max
    # The round goes on until somebody is sure, and no longer than needed.
    while all(node.round == 2 for node in network.nodes):
        network.beat()
        assert network.now <= beats_max
    while any(node.round == 2 for node in network.nodes):
        network.beat()
    assert network.knowing() >= 0.99


def test_rounds_follow_each_other_where_degrees_differ() -> None:
    rng = Random(7)
    network = Network([rng.randint(2, 10) for _ in range(200)], seed=7)
    network.begin()
    while any(node.round < 4 for node in network.nodes):
        network.beat()
        assert network.now < 40
    assert network.knowing() >= 0.99


def test_mass_is_kept_while_newcomers_join_and_leavers_leave() -> None:
    network = Network([3] * 60, seed=3)
    network.begin()
    for beat in range(9):
        network.beat()
        if beat == 5:  # leave: all goes to a neighbour, and a newcomer takes the place
            peer = next(peer for peer in network.neighbours[11] if peer != 11)
            mass = network.nodes[11].hand_over().ping(None)
            network.nodes[peer].received(mass, 6)
            network.nodes[11] = Measurement(Random(1))
    held = [node.hand_over() for node in network.nodes]
    moving = [ping for _, _, ping in network.under_way]
    assert {share.round for share in held} == {2}
    nodes = sum(share.totals.nodes for share in held) + sum(ping.totals.nodes for ping in moving)
    largest = max(share.fish_size for share in held)
    fish = sum(share.fish for share in held if share.fish_size == largest)
    fish += sum(ping.fish for ping in moving if ping.fish_size == largest)
    assert nodes == pytest.approx(60)
    assert fish == pytest.approx(1)


def test_users_measure_sums_and_extremes() -> None:
    network = Network([4] * 100, seed=4)
    for number, node in enumerate(network.nodes[:50]):
        node.put("s:files", number)
        node.put("max:files", number)
        node.put("min:files", -number)
    network.begin()
    while any(node.round < 4 for node in network.nodes):
        network.beat()
    for node in network.nodes:
        assert node.extras["s:files"] == pytest.approx(sum(range(50)), rel=0.05)
        assert node.extras["max:files"] == 49
        assert node.extras["min:files"] == -49
