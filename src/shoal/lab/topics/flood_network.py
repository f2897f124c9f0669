"""The workload over Floodsub: a random graph of nodes that does not mend itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from shoal.kernel.machine import Machine
from shoal.lab.scenario import Scenario
from shoal.lab.topics.floodsub import (
    Connect,
    FloodArrived,
    Flooded,
    FloodSent,
    FloodsubCodec,
    FloodsubNode,
    PublishIn,
    SubscribeTo,
)
from shoal.lab.topics.ledger import event_of
from shoal.lab.topics.network import WorkloadNetwork
from shoal.sim.checkers import Checker
from shoal.sim.simulation import SimNode


class FloodsubNetwork(WorkloadNetwork):
    """Half of its neighbours each node draws itself, and is drawn by as many in the mean."""

    event_kind = "rpc/Flooded"

    def __init__(
        self, scenario: Scenario, seed: int, *, checkers: Sequence[Checker] = (), replay: str = ""
    ) -> None:
        super().__init__(scenario, seed, [FloodsubCodec()], checkers=checkers, replay=replay)
        self.neighbours = self._draw_graph()

    def make_machines(self, number: int, node: SimNode) -> Sequence[Machine]:
        return [FloodsubNode(node.id)]

    def create_topics(self) -> None:
        """A topic of Floodsub is a name: there is nothing to make. Nodes connect instead."""
        for number in self.running():
            contacts = [self.contacts[peer] for peer in sorted(self.neighbours[number])]
            self.nodes[number].command(0, Connect(tuple(contacts)))

    def begin_reading(self) -> None:
        for number in self.running():
            read = [str(n) for n, t in enumerate(self.workload.topics) if number in t.readers]
            self.nodes[number].command(0, SubscribeTo(tuple(read)))

    def publish(self, node: SimNode, topic: int, payload: bytes, event: int) -> None:
        node.command(0, PublishIn(str(topic), payload), event)

    def told(self, number: int, event: Any) -> None:
        now_ns = self.simulation.scheduler.now_ns
        match event:
            case FloodSent(_, token):
                self.ledger.accept(cast(int, token), now_ns)
            case FloodArrived(message):
                id = message.author + message.number.to_bytes(8, "big")
                self.ledger.arrive(number, event_of(message.payload), id, None, now_ns)

    def sort_message(self, message: Any) -> Mapping[str, int]:
        if type(message) is Flooded:
            return {"rpc": 1, "rpc/Flooded": 1, f"topic {message.topic}": 1}
        return {"rpc": 1, "rpc/Interests": 1}

    def state_bytes(self, node: SimNode) -> tuple[int, int]:
        return cast(FloodsubNode, node.machines[0]).state_bytes(), 0

    def _draw_graph(self) -> list[set[int]]:
        rng = self.simulation.random("neighbours")
        count = len(self.nodes)
        drawn: list[set[int]] = [set() for _ in range(count)]
        # One edge for every two ends that are wanted; the graph is drawn among all that have so
        # many edges.
        edges = min(count * (count - 1) // 2, round(count * self.options.neighbours / 2))
        for edge in rng.sample(range(count * (count - 1) // 2), edges):
            a, b = _pair(edge)
            drawn[a].add(b)
            drawn[b].add(a)
        return drawn


def _pair(edge: int) -> tuple[int, int]:
    """The number of an edge as its ends: 0 is (1, 0), 1 and 2 are (2, 0) and (2, 1), ..."""
    a = 1
    while (a + 1) * a // 2 <= edge:
        a += 1
    return a, edge - a * (a - 1) // 2
