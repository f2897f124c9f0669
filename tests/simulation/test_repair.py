"""Links that lose messages, and an overlay that changes: every subscriber that stayed ends with
every message, in order, once."""

from __future__ import annotations

from functools import partial

import pytest

from shoal.base.ids import MessageId, NodeId
from shoal.kernel.records import Delivered, GapFound, Published
from shoal.sim.faults import AnyFault, Crash, Jitter, Loss, Reordering
from shoal.sim.host import SimNode
from shoal.sim.trace import Row
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario

PUBLISHERS = 5
MESSAGES = 150
BEGIN_S, END_S = 20.0, 35.0


class Audience:
    """Who published what, and who was given what, in order."""

    def __init__(self) -> None:
        self.published: list[MessageId] = []
        self.delivered: dict[NodeId, list[MessageId]] = {}
        self.gaps_found = 0

    def __call__(self, rows: list[Row]) -> None:
        for _, node, record in rows:
            if isinstance(record, Published):
                self.published.append(record.message)
            elif isinstance(record, Delivered):
                self.delivered.setdefault(node, []).append(record.message)
            elif isinstance(record, GapFound):
                self.gaps_found += 1

    def check(self, node: SimNode) -> None:
        """Everything, once, and each chain in order."""
        given = self.delivered.get(node.id, [])
        assert len(given) == len(set(given))
        assert set(given) == set(self.published)
        chains: dict[tuple[NodeId, str], list[tuple[int, int]]] = {}
        for id in given:
            chains.setdefault((id.publisher, id.chain), []).append((id.timestamp_ms, id.sequence))
        for positions in chains.values():
            assert positions == sorted(positions)


def _play(seed: int, nodes: int, *faults: AnyFault) -> tuple[StreamsNetwork, Audience]:
    scenario = Scenario(name="repair", network=NetworkSettings(nodes=nodes), faults=faults)
    network = StreamsNetwork(scenario, seed)
    audience = Audience()
    network.simulation.trace.to(audience)
    network.join_all()
    for number in range(MESSAGES):
        publisher = network.nodes[number % PUBLISHERS]
        when_s = BEGIN_S + number * (END_S - BEGIN_S) / MESSAGES
        network.simulation.at_s(when_s, partial(_publish, network, publisher))
    network.simulation.run_until_s(END_S + 30)
    assert len(audience.published) > MESSAGES // 2
    return network, audience


def _publish(network: StreamsNetwork, publisher: SimNode) -> None:
    if publisher.host is not None:
        network.publish(publisher, b"x" * 100)


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.25])
def test_nothing_is_lost_over_links_that_lose_messages(seed: int, probability: float) -> None:
    network, audience = _play(
        seed,
        48,
        Loss(probability=probability, start_s=BEGIN_S, end_s=END_S + 10),
        Jitter(mean_ms=20, start_s=BEGIN_S, end_s=END_S + 10),
        Reordering(probability=0.05, start_s=BEGIN_S, end_s=END_S + 10),
    )
    for node in network.nodes:
        audience.check(node)
    if probability > 0.2:
        assert audience.gaps_found  # or this test shows nothing


def test_nothing_is_lost_for_those_who_stay_while_a_third_crashes(seed: int) -> None:
    network, audience = _play(
        seed,
        60,
        Crash(fraction=0.3, start_s=BEGIN_S + 5, role="node"),
    )
    published = {id.publisher for id in audience.published}
    stayed = network.running()
    assert len(stayed) == 42
    # What a publisher had said before it died is everybody's; it may die with a message unsent.
    unsure = {p for p in published if p not in {node.id for node in stayed}}
    audience.published = [id for id in audience.published if id.publisher not in unsure]
    for node in stayed:
        given = audience.delivered[node.id]
        audience.delivered[node.id] = [id for id in given if id.publisher not in unsure]
        audience.check(node)
