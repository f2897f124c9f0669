"""Search networks under virtual time: nodes that come, leave in good order, crash and return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS, seconds
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.inputs import CommandIssued, Input
from shoal.kernel.machine import Machine
from shoal.protocols.search.bubbles.bubble_size import bubble_size
from shoal.protocols.search.circle.circle import Circle
from shoal.protocols.search.commands import Leave, Left
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import sign_document
from shoal.protocols.search.machine import SearchNode
from shoal.protocols.search.messages import Totals
from shoal.protocols.search.payloads import Payload, Put, Search
from shoal.protocols.search.spaces import DocumentSpace
from shoal.protocols.search.wire import SearchCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import Checker
from shoal.sim.delays import DelayModel
from shoal.sim.host import CRASH_DETECT_NS
from shoal_lab.scenarios.experiment_kinds import JOINING
from shoal_lab.scenarios.scenario import Scenario, delay_model

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


# A search node that casts bubbles of a given certainty when the lab asks it to.
#
# Everything else is the machine as it is: sizes come from what this node has measured, and bubbles
# go the way of all bubbles. Applications cannot choose the size of a document's bubble; a study of
# sizes has to.


class CastProbe(msgspec.Struct, frozen=True, gc=False):
    """Cast a bubble of c * sqrt(T): a document, or a question that nobody can answer."""

    certainty: float
    data: bool
    number: int


class ProbeCast(msgspec.Struct, frozen=True, gc=False):
    """Told: it is on its way."""

    bubble: bytes
    size: int
    token: Hashable


class ProbingNode(SearchNode):
    """A search node with one more command."""

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """Take one fact."""
        if type(event) is CommandIssued and type(event.command) is CastProbe:
            return self.parts.uplink.pass_on(
                self._probe(event.command, event.token, now_ns), now_ns
            )
        return super().handle(event, now_ns)

    def _probe(self, probe: CastProbe, token: Hashable, now_ns: int) -> list[Effect]:
        parts = self.parts
        totals = parts.totals()
        if totals is None:
            return []  # it came a moment ago, and would not be asked by anybody
        size, life_ns = bubble_size(probe.certainty, 1.0, totals), self.config.bubble_ns
        payload: Payload = Search("nothing", 1)
        if probe.data:
            document = sign_document(
                self._key,
                "probe",
                {"probe": probe.number},
                version=now_ns // MS_NS,
                life="instant",
                expires_ms=(now_ns + life_ns) // MS_NS,
            )
            payload = Put(document.signed)
        bubble = parts.bubbles.make(DocumentSpace(), payload, size, life_ns, now_ns)
        cast = parts.bubbles.cast(bubble, size, now_ns)
        return [Notify(ProbeCast(bubble.id, size, token)), *cast]


# A search network as a scenario describes it, grown by the real protocol.


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
