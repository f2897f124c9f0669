"""Simulated search networks that a test talks to as applications do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from shoal.base.units import S_NS
from shoal.kernel.machine import Machine
from shoal.kernel.records import BubbleStep, Rejected
from shoal.protocols.search.commands import (
    FindDocuments,
    Found,
    PutDocument,
    SearchOver,
)
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import Life
from shoal.protocols.search.machine import SearchNode
from shoal.sim import ConstantDelay, SimNode
from shoal.sim.checkers import Checker
from shoal.sim.trace import Row
from shoal_lab.experiments.search.network import SearchNetwork

HOUR_NS = 3600 * S_NS
MEASURED_S = 300  # two rounds and more
CALM = SearchConfig(quick_nodes=0)  # small networks ping as seldom as large ones


class Network(SearchNetwork):
    """Nodes that have joined, and what they said; clients are added after them."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        *,
        wire: bool = False,
        clients: int = 0,
        checkers: Sequence[Checker] = (),
    ) -> None:
        self._clients = range(nodes, nodes + clients)
        super().__init__(
            seed,
            nodes + clients,
            CALM,
            delays=ConstantDelay(20_000_000),
            checkers=checkers,
            wire=wire,
        )
        self.told: dict[int, list[Any]] = {node.index: [] for node in self.nodes}
        for node in self.nodes:
            node.listeners.append(partial(self._hear, node.index))
        self.records: Counter[str] = Counter()
        self.simulation.trace.to(self._count)
        self.join_all()
        self.simulation.run_for(0.2 * len(self.nodes) + MEASURED_S)
        assert all(self.machine(node).joined for node in self.nodes)

    def make_machines(self, number: int, node: SimNode) -> Sequence[Machine]:
        if number not in self._clients:
            return super().make_machines(number, node)
        known = [self.contacts[other.index] for other in self.running()[:3]]
        rng = self.simulation.random("client", number, node.incarnation)
        return [SearchNode(self.keys[number], known, rng, self.config, client=True)]

    def _hear(self, index: int, event: Any) -> None:
        self.told[index].append(event)

    def _count(self, rows: list[Row]) -> None:
        for _, _, record in rows:
            if isinstance(record, Rejected):
                self.records[record.reason] += 1
            elif isinstance(record, BubbleStep):
                self.records[record.outcome] += 1

    # What applications do

    def heard(self, node: SimNode, kind: type, token: Any = None) -> list[Any]:
        events: list[Any] = [event for event in self.told[node.index] if type(event) is kind]
        return [event for event in events if token is None or event.token == token]

    def put(
        self,
        node: SimNode,
        name: str,
        content: dict[str, Any] | None,
        life: Life = "fading",
        life_ns: int = HOUR_NS,
    ) -> None:
        node.command(0, PutDocument(name, content, life, life_ns), ("put", name))

    def find(
        self, node: SimNode, text: str, limit: int | None = None, **more: Any
    ) -> tuple[list[str], SearchOver]:
        """The names of what is found, in order, and how the search ended."""
        token = ("find", self.simulation.time_s)
        node.command(0, FindDocuments(text, 0.99, limit, 15 * S_NS, **more), token)
        self.simulation.run_for(16)
        (over,) = self.heard(node, SearchOver, token)
        return [event.document.name for event in self.heard(node, Found, token)], over

    def holders(self, name: str) -> int:
        """How many nodes keep a document that is not deleted."""
        count = 0
        for node in self.running():
            machine = self.machine(node)
            for shelf in (machine.parts.holdings._own, machine.parts.holdings._others):
                count += any(
                    held.document.name == name and not held.document.deleted for held in shelf.all()
                )
        return count


def nodes_of(network: Network, *indexes: int) -> list[SimNode]:
    return [network.nodes[index] for index in indexes]
