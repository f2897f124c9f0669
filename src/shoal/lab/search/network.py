"""Search networks under virtual time: nodes that come, leave in good order, crash and return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from shoal.base.ids import NodeId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.contact import Contact
from shoal.kernel.machine import Machine
from shoal.protocols.search.commands import Leave, Left
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.node import SearchNode
from shoal.protocols.search.topology.circle import Circle
from shoal.protocols.search.wire.codec import SearchCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import Checker
from shoal.sim.delays import DelayModel
from shoal.sim.simulation import CRASH_DETECT_NS

BOOTSTRAPS = 8  # contacts that a node is given when it starts, as from a web cache
JOIN_INTERVAL_S = 0.2
SEARCH_SLOT = 0


class SearchNetwork:
    """Nodes with a search machine each, over the AWS delay table unless told otherwise. The first
    that starts makes a circle of its own; whoever starts later knows some that run then."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        config: SearchConfig | None = None,
        *,
        delays: DelayModel | None = None,
        checkers: Sequence[Checker] = (),
        wire: bool = False,
        replay: str = "",
    ) -> None:
        self.config = config or SearchConfig()
        self.simulation = Simulation(
            seed,
            delays or RegionDelay(load_table("aws")),
            codecs=[SearchCodec()],
            checkers=checkers,
            wire=wire,
            replay=replay,
        )
        self.nodes: list[SimNode] = []
        self.keys: list[PrivateKey] = []
        self.contacts: list[Contact] = []
        self.counts: Counter[str] = Counter()
        """How many have started, left and crashed."""
        self._leaving: dict[NodeId, int] = {}
        self._past_races: Counter[str] = Counter()
        self._rng = self.simulation.random("search network")
        for _ in range(nodes):
            self.add()

    # Who takes part

    def add(self) -> SimNode:
        """One more node, which does not run yet."""
        number = len(self.nodes)
        key = PrivateKey.generate(SeededEntropy(f"search {self.simulation.seed} {number}"))
        address = f"ws://10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:7700"
        node = self.simulation.add_node(key.address, partial(self.make_machines, number))
        node.listeners.append(partial(self._told, node))
        self.keys.append(key)
        self.contacts.append(Contact(key.address, (address,)))
        self.nodes.append(node)
        return node

    def make_machines(self, number: int, node: SimNode) -> Sequence[Machine]:
        """The machines of a new incarnation; its place in `machines` is SEARCH_SLOT."""
        known = [self.contacts[other.index] for other in self.some_known()]
        return [self.make_node(number, known, node.incarnation)]

    def make_node(self, number: int, bootstrap: Sequence[Contact], incarnation: int) -> SearchNode:
        """The search machine of a new incarnation."""
        return SearchNode(
            self.keys[number],
            bootstrap,
            self.simulation.random("search", number, incarnation),
            self.config,
            self.contacts[number].addresses,
        )

    def some_known(self) -> list[SimNode]:
        """Whom a newcomer hears of."""
        others = self.running()
        self._rng.shuffle(others)
        # Those that have a place and keep it come first, and a cache forgets the rest.
        others.sort(key=lambda other: not self._placed(other))
        return others[:BOOTSTRAPS]

    def _placed(self, node: SimNode) -> bool:
        return self.stays(node) and self.circle(node).joined

    def running(self) -> list[SimNode]:
        """Nodes that run, those that are about to leave among them."""
        return [node for node in self.nodes if node.host is not None]

    def staying(self) -> list[SimNode]:
        """Nodes that run and were not told to leave."""
        return [node for node in self.running() if self.stays(node)]

    def stays(self, node: SimNode) -> bool:
        """Whether a node that runs was not told to leave."""
        return node.id not in self._leaving

    def machine(self, node: SimNode) -> SearchNode:
        """The search machine of a node that runs."""
        return cast(SearchNode, node.machines[SEARCH_SLOT])

    def circle(self, node: SimNode) -> Circle:
        """What a node that runs knows of the circle."""
        return self.machine(node).parts.circle

    def circles(self) -> dict[NodeId, Circle]:
        """What the nodes that run know of the circle, for a survey."""
        return {node.id: self.circle(node) for node in self.running()}

    @property
    def races(self) -> Counter[str]:
        """Neighbours that changed the same edge at once, over all nodes that ever ran."""
        total = self._past_races.copy()
        for node in self.running():
            total.update(self.circle(node).ring.races)
        return total

    # What happens to them

    def join_all(self, interval_s: float = JOIN_INTERVAL_S) -> None:
        """Nodes that do not run start one after the other, from now on."""
        idle = [node for node in self.nodes if node.host is None]
        for number, node in enumerate(idle):
            when_s = self.simulation.time_s + number * interval_s
            self.simulation.at_s(when_s, partial(self.start, node))

    def start(self, node: SimNode) -> None:
        """A node comes, or comes back."""
        self.counts["starts"] += 1
        node.start()

    def leave(self, node: SimNode) -> None:
        """A node leaves in good order, and ends when it has; again is once."""
        if node.id not in self._leaving:
            self._leaving[node.id] = node.incarnation
            node.command(SEARCH_SLOT, Leave())

    def crash(self, node: SimNode, detect_ns: int = CRASH_DETECT_NS) -> None:
        """A node ends without a word; its neighbours' links notice after that time."""
        self.counts["crashes"] += 1
        self._end(node, detect_ns)

    def _told(self, node: SimNode, event: Any) -> None:
        if type(event) is Left and self._leaving.get(node.id) == node.incarnation:
            # It is still within its step: its last words have to leave first.
            ended = partial(self._left, node, node.incarnation)
            self.simulation.scheduler.after(0, lambda _: ended(), None)

    def _left(self, node: SimNode, incarnation: int) -> None:
        if node.host is not None and node.incarnation == incarnation:
            self.counts["leaves"] += 1
            self._end(node)

    def _end(self, node: SimNode, detect_ns: int = CRASH_DETECT_NS) -> None:
        self._past_races.update(self.circle(node).ring.races)
        self._leaving.pop(node.id, None)
        node.crash(detect_ns)
