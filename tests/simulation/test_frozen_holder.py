"""A node that is frozen keeps its links and answers nothing. Who waits until two others hold an
event waits once for as long as it takes to see that it is slow, and then no more."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.machine import Machine
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.machine import DhtNode
from shoal.protocols.dht.wire import DhtCodec
from shoal.protocols.topics.commands import (
    AddTopic,
    AwaitStored,
    EventAccepted,
    EventStored,
    Publish,
)
from shoal.protocols.topics.heads import judge_topics
from shoal.protocols.topics.machine import TopicNode
from shoal.protocols.topics.wire import TopicsCodec
from shoal.sim import ConstantDelay, SimNode, Simulation
from shoal.sim.checkers import MachineInvariants
from shoal.sim.links import Frame, LinkEnd, Shaper
from tests.support.topic_bench import contact_of, id_of, key_of, topic_by

NODES = 8
TOPICS = 1
TOPIC = topic_by(0)
ID = id_of(TOPIC)


class Frozen(Shaper):
    """Nothing that these nodes are sent is taken, and they say nothing."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, None] = {}

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        away = end.peer in self.nodes or end.host.node in self.nodes
        return [] if away else arrivals_ns


class Town:
    """Nodes that know the first one; it is the author."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(
            seed,
            ConstantDelay(3 * MS_NS),
            codecs=[DhtCodec(), TopicsCodec()],
            checkers=[MachineInvariants()],
        )
        self.frozen = Frozen()
        self.simulation.add_shaper(self.frozen)
        self.rng = Random(seed)
        self.told: list[tuple[float, Any]] = []
        self.nodes = [self._add(number) for number in range(NODES)]
        self.nodes[0].listeners.append(lambda event: self.told.append((self.now_s, event)))
        for node in self.nodes:
            node.start()
            self.run(0.5)
        self.run(30)
        self.nodes[0].command(TOPICS, AddTopic(TOPIC))
        self.run(10)

    @property
    def now_s(self) -> float:
        return self.simulation.time_s

    def _add(self, number: int) -> SimNode:
        return self.simulation.add_node(contact_of(number).node, lambda _: self._make(number))

    def _make(self, number: int) -> Sequence[Machine]:
        contact, rng = contact_of(number), Random(number)
        bootstrap = [] if number == 0 else [contact_of(0)]
        config = DhtConfig(prefix_bucket_max=20, prefix_table_max=100)
        dht = DhtNode(contact.node, bootstrap, judge_topics, rng, config, contact.addresses)
        return [dht, TopicNode(key_of(number), rng, None, contact.addresses)]

    def run(self, duration_s: float) -> None:
        self.simulation.run_for(duration_s)

    def stored_s(self, number: int, replicas: int = 2) -> float:
        """How long it takes until so many hold a new event, and a record that leads to it."""
        begun_s = self.now_s
        self.nodes[0].command(TOPICS, Publish(ID, b"%d" % number), number)
        self.run(0.001)
        accepted = [event for _, event in self.told if isinstance(event, EventAccepted)]
        (event,) = [one.id for one in accepted if one.token == number]
        token = ("stored", number)
        self.nodes[0].command(TOPICS, AwaitStored(event, replicas), token)
        while True:
            self.run(0.01)
            for at_s, told in self.told:
                if isinstance(told, EventStored) and told.token == token:
                    assert told.replicas >= replicas
                    return at_s - begun_s
            assert self.now_s - begun_s < 60, "it never came"


@pytest.mark.parametrize("seed", range(5))
def test_two_replicas_are_not_waited_for_longer_because_a_third_node_is_frozen(seed: int) -> None:
    print(f"seed {seed}")
    town = Town(seed)
    quiet = [town.stored_s(number) for number in range(5)]
    assert max(quiet[1:]) < 0.1, quiet
    victim = town.rng.randrange(1, NODES)
    town.frozen.nodes[town.nodes[victim].id] = None
    took = []
    for number in range(5, 25):
        took.append(town.stored_s(number))
        town.run(town.rng.choice([0, 1, 30, 120]))  # also beyond the time that a survey is believed
    slow_s = DhtConfig().slow_ns / S_NS
    assert max(took) < slow_s + 0.5, took
    assert sum(one > 0.1 for one in took) <= 3, took
    town.frozen.nodes.clear()
    town.run(60)
    assert town.stored_s(99, NODES - 1) < 1, "it holds what it is given again"


def test_a_network_that_was_frozen_as_a_whole_is_asked_again() -> None:
    town = Town(1)
    town.stored_s(0)
    for node in town.nodes[1:]:
        town.frozen.nodes[node.id] = None
    begun_s = town.now_s
    town.simulation.at_s(begun_s + 2, town.frozen.nodes.clear)
    assert town.stored_s(1) < 30
