"""A busy stream with several trackers, some of which go away."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shoal.base.errors import InvariantViolated
from shoal.base.ids import MessageId, NodeId
from shoal.base.units import S_NS, seconds
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Input
from shoal.kernel.records import Delivered, GapAbandoned
from shoal.protocols.streams.commands import StreamReady
from shoal.protocols.streams.topology.policy import Pair, pair_of
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.sim.checkers import Checker, DeliveredOnce, MachineInvariants
from shoal.sim.faults import _Cut
from shoal.sim.host import SimNode
from shoal.sim.links import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.streams.network_view import check_overlay
from shoal_lab.experiments.streams.simulated_network import STREAMS_SLOT, StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario

BUSY_S = 15.0  # everybody has joined by then, and messages begin
INTERVAL_S = 0.1
DETECT_NS = 2 * S_NS  # until both ends of a silent link give it up


class InOrder:
    """Every chain comes to every node in order, without a gap given up."""

    def __init__(self) -> None:
        self._newest: dict[tuple[NodeId, int, NodeId, str], MessageId] = {}

    def step(self, node: SimNode, event: Input, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is GapAbandoned:
                raise InvariantViolated(f"given up: {effect}")
            if type(effect) is Delivered:
                id = effect.message
                chain = (node.id, node.incarnation, id.publisher, id.chain)
                before = self._newest.get(chain)
                at = (id.timestamp_ms, id.sequence)
                if before is not None and at <= (before.timestamp_ms, before.sequence):
                    raise InvariantViolated(f"{id} came after {before}")
                self._newest[chain] = id

    def quiet(self, simulation: Simulation) -> None:
        """Nothing to add."""


class TrackerCut(_Cut):
    """Nothing passes between a tracker and some nodes."""

    def __init__(self, simulation: Simulation, tracker: SimNode, nodes: Sequence[SimNode]) -> None:
        super().__init__(simulation, dict.fromkeys(node.id for node in nodes))
        self._tracker = tracker.id

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        return (a == self._tracker and b in self._away) or (b == self._tracker and a in self._away)


class Mute(Shaper):
    """Some nodes hear nothing of a tracker; their links to it are made, and stay."""

    def __init__(self, tracker: SimNode, nodes: Sequence[SimNode]) -> None:
        self._tracker = tracker.id
        self._deaf = {node.id for node in nodes}

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        mute = end.host.node == self._tracker and end.peer in self._deaf
        return [] if mute else arrivals_ns


class Failover:
    """`nodes` of them are in the stream and publish in turn; `spare` ones may come later."""

    def __init__(
        self, seed: int, *, nodes: int = 40, spare: int = 6, trackers: int = 3, check: bool = True
    ) -> None:
        self.once = DeliveredOnce()
        checkers: list[Checker] = [self.once, InOrder()]
        if check:
            checkers.append(MachineInvariants())
        settings = NetworkSettings(nodes=nodes + spare, trackers=trackers)
        scenario = Scenario(name="failover", network=settings)
        self.network = StreamsNetwork(scenario, seed, checkers=checkers, replay=f"--seed {seed}")
        self.simulation = self.network.simulation
        self.trackers = self.network.trackers
        self.stayed = self.network.nodes[:nodes]
        self.spare = self.network.nodes[nodes:]
        self.ready_s: dict[NodeId, float] = {}
        """How long each node took from its start until it had its place."""
        for node in self.network.nodes:
            node.listeners.append(partial(self._heard, node))
        for tracker in self.trackers:
            tracker.start()
        for number, node in enumerate(self.stayed):
            self.simulation.at_s(number * 0.01, node.start)

    def busy(self, until_s: float) -> None:
        """Messages, one after the other, from everybody in turn."""
        for number in range(int((until_s - BUSY_S) / INTERVAL_S)):
            publisher = self.stayed[number % len(self.stayed)]
            publish = partial(self._publish, publisher)
            self.simulation.at_s(BUSY_S + number * INTERVAL_S, publish)

    def run_until(self, when_s: float) -> None:
        self.simulation.run_until_s(when_s)

    def crash(self, when_s: float, *trackers: SimNode) -> None:
        for tracker in trackers:
            self.simulation.at_s(when_s, tracker.crash)

    def start(self, when_s: float, *nodes: SimNode) -> None:
        for node in nodes:
            self.simulation.at_s(when_s, node.start)

    def cut(self, begin_s: float, end_s: float, tracker: SimNode, nodes: list[SimNode]) -> None:
        """A tracker and some nodes do not reach each other for a while."""
        cut = TrackerCut(self.simulation, tracker, nodes)

        def begin() -> None:
            self.simulation.add_shaper(cut)
            self.simulation.scheduler.after(DETECT_NS, cut.time_out)

        self.simulation.at_s(begin_s, begin)
        self.simulation.at_s(end_s, cut.heal)

    def mute(self, begin_s: float, end_s: float, tracker: SimNode, nodes: list[SimNode]) -> None:
        """A tracker says nothing to some nodes for a while."""
        mute = Mute(tracker, nodes)
        self.simulation.at_s(begin_s, partial(self.simulation.add_shaper, mute))
        self.simulation.at_s(end_s, partial(self.simulation.remove_shaper, mute))

    # Looking into it

    def links(self, nodes: Sequence[SimNode]) -> dict[Pair, None]:
        """The links that carry data between some nodes."""
        ids = {node.id for node in nodes}
        return {
            pair_of(node.id, peer): None
            for node in nodes
            for peer in self.network.active(node)
            if peer in ids
        }

    def kept(self, before: dict[Pair, None]) -> float:
        """The part of these links that carries data now."""
        now = self.links(self.network.running())
        return sum(pair in now for pair in before) / len(before)

    def at(self, node: SimNode) -> NodeId | None:
        """The tracker that a node is with."""
        return self.network.machine(node).trackers.at(self.network.stream)

    def members(self, tracker: SimNode) -> int:
        """How many nodes are with a tracker."""
        if tracker.host is None:
            return 0
        machine = tracker.machines[STREAMS_SLOT]
        assert isinstance(machine, Tracker)
        state = machine.streams.get(self.network.stream)
        return 0 if state is None else len(state.members)

    def check(self) -> None:
        """Everybody who stayed has everything, once and in order; the overlay is as it should be,
        and known to the best tracker there is."""
        self.simulation.check_quiet()
        check_overlay(self.network)
        published = set(self.once.published)
        assert published
        for node in self.stayed:
            if node.host is not None and node.incarnation == 1:
                assert self.once.delivered(node) == published
        best = next(tracker for tracker in self.trackers if tracker.host is not None)
        assert self.members(best) == len(self.network.running())
        assert all(self.members(other) == 0 for other in self.trackers if other is not best)

    def _publish(self, node: SimNode) -> None:
        if node.host is not None:
            self.network.publish(node, b"busy")

    def _heard(self, node: SimNode, event: object) -> None:
        if isinstance(event, StreamReady):
            now_ns = self.simulation.scheduler.now_ns
            self.ready_s[node.id] = seconds(now_ns - self.network.started_ns[node.id])
