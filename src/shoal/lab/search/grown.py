"""A search network as a scenario describes it, grown by the real protocol."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.units import seconds
from shoal.kernel.contact import Contact
from shoal.lab.kinds import JOINING
from shoal.lab.scenario import Scenario, delay_model
from shoal.lab.search.network import BOOTSTRAPS, SearchNetwork
from shoal.lab.search.probing import ProbingNode
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import Totals
from shoal.protocols.search.node import SearchNode
from shoal.sim.checkers import Checker
from shoal.sim.simulation import SimNode

PRECISION = 0.05  # what sizes of bubbles and walks need
MOST = 0.99
GROWN_S_MAX = 3600.0  # rounds of the slowest networks take five minutes, and four are enough
TRIES = 64

GROWN_SETTINGS = JOINING | {"wire"} | {"messages", "settle_s", "drain_s"}
"""That experiments with these networks go by. How long a run takes is up to its options: the last
three say it about, for whoever waits."""


class GrownNetwork(SearchNetwork):
    """Nodes of a fixed number of locations, or of one that is drawn for each from a range. Their
    machines can be asked to cast bubbles for the lab (probing.py)."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        locations: tuple[int, int],
        config: SearchConfig | None = None,
        *,
        checkers: Sequence[Checker] = (),
        replay: str = "",
    ) -> None:
        self._locations = locations
        super().__init__(
            seed,
            scenario.network.nodes,
            config,
            delays=delay_model(scenario.network.delays),
            checkers=checkers,
            wire=scenario.network.wire,
            replay=replay,
        )
        self._interval_s = scenario.network.join_interval_ms / 1000
        self._draws = self.simulation.random("who is known")

    # Who takes part

    def make_node(self, number: int, bootstrap: Sequence[Contact], incarnation: int) -> SearchNode:
        """The machine of a new incarnation; its node has the same locations in all of them."""
        locations = self.simulation.random("locations", number).randint(*self._locations)
        return ProbingNode(
            self.keys[number],
            bootstrap,
            self.simulation.random("search", number, incarnation),
            msgspec.structs.replace(self.config, locations=locations),
            self.contacts[number].addresses,
        )

    def some_known(self) -> list[SimNode]:
        """The same as of every search network, but by lot if that is easy: to sort all nodes for
        each newcomer would take most of the time at 10,000 nodes."""
        known: dict[int, SimNode] = {}
        begun = min(self.counts["starts"], len(self.nodes))  # at first they start in order
        for _ in range(TRIES):
            node = self.nodes[self._draws.randrange(begun)]
            if node.host is not None and self._placed(node):
                known[node.index] = node
            if len(known) == BOOTSTRAPS:
                return list(known.values())
        return super().some_known()

    def draw_ready(self, rng: Random) -> SimNode | None:
        """A node by lot that stays and takes part; None if there is hardly one."""
        for _ in range(TRIES * TRIES):
            node = rng.choice(self.nodes)
            if node.host is not None and self.stays(node) and self.machine(node).joined:
                return node
        return None

    # How it grows

    def grow(self) -> None:
        """Everybody joins; done when most know how large the network is."""
        self.join_all(self._interval_s)
        self.simulation.run_for(len(self.nodes) * self._interval_s)
        if not self.run_until_known(GROWN_S_MAX):
            raise InvariantViolated(
                f"{GROWN_S_MAX:g} s after the last node came, {self.known_part():.2%} of the nodes "
                "know the size of the network"
            )

    def run_until_known(self, within_s: float) -> bool:
        """Let time pass until most nodes know the network as it is, or for so long."""
        end_s = self.simulation.time_s + within_s
        while self.known_part() < MOST:
            if self.simulation.time_s >= end_s:
                return False
            self.simulation.run_for(seconds(self.config.beat_ns))
        return True

    # What nodes know

    def true_totals(self) -> Totals:
        """What a measurement should find."""
        degrees = [self.circle(node).degree for node in self.running()]
        squares = sum(degree * degree for degree in degrees)
        return Totals(float(len(degrees)), float(sum(degrees)), float(squares))

    def known_part(self) -> float:
        """What part of the nodes has all three sums within 5 %, as they use them."""
        true, running = self.true_totals(), self.running()
        near = (is_near(self.machine(node).parts.measurement.known, true) for node in running)
        return sum(near) / len(running) if running else 0.0


def is_near(known: Totals | None, true: Totals) -> bool:
    """Whether all three sums are within 5 %."""
    return known is not None and off_by(known, true) <= PRECISION


def off_by(known: Totals, true: Totals) -> float:
    """How far the worst of the three sums is off, as a part of it."""
    return max(
        abs(known.nodes / true.nodes - 1),
        abs(known.degrees / true.degrees - 1),
        abs(known.squares / true.squares - 1),
    )
