"""Trackers die, come back and are cut off, nodes too, at random; then all is quiet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from shoal.base.units import S_NS, ns_of_seconds
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Input
from shoal.kernel.records import GapAbandoned
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.sim.checkers import DeliveredOnce, MachineInvariants
from shoal.sim.faults import AnyFault, Duplication, Jitter, Loss, Reordering, _Cut
from shoal.sim.host import SimNode
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.streams.network_view import check_overlay
from shoal_lab.experiments.streams.simulated_network import STREAMS_SLOT, StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario
from tests.simulation.failover import TrackerCut

BEGIN_S = 15.0  # everybody has joined by then
DETECT_NS = 2 * S_NS  # until both ends of a silent link give it up
CUT_MAX_S = 10.0
TRACKERS_BACK_S = CUT_MAX_S + 3  # after the storm
ALL_BACK_S = 20.0  # after that
QUIET_S = 60.0


class GapsToldOf:
    """Which chains somebody gave up a message of."""

    def __init__(self) -> None:
        self.told: dict[tuple[bytes, bytes], None] = {}

    def step(self, node: SimNode, event: Input, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is GapAbandoned:
                self.told[node.id, effect.publisher] = None

    def quiet(self, simulation: Simulation) -> None:
        """Nothing to add."""


class Storm:
    """Two thirds of the nodes stay; trackers, and the others, come and go. With `lossy`, links
    lose, hold up and repeat messages as well."""

    def __init__(self, seed: int, *, lossy: bool) -> None:
        self._rng = Random(seed)
        self._lossy = lossy
        self._end_s = BEGIN_S + self._rng.choice([20.0, 40.0])
        self.once, self.gaps = DeliveredOnce(), GapsToldOf()
        nodes = self._rng.choice([2, 3, 5, 6, 8, 12, 20])
        settings = NetworkSettings(
            nodes=nodes,
            trackers=self._rng.choice([1, 2, 3, 4]),
            degree=self._rng.choice([3, 4]),
        )
        self.network = StreamsNetwork(
            Scenario(name="storm", network=settings, faults=self._faults() if lossy else ()),
            seed,
            checkers=[self.once, self.gaps, MachineInvariants()],
            replay=f"./test tests/simulation/test_tracker_storms.py --seed {seed}",
        )
        stay = max(2, nodes * 2 // 3)
        self.stayed, self._others = self.network.nodes[:stay], self.network.nodes[stay:]

    def run(self) -> None:
        """The whole story."""
        network, simulation = self.network, self.network.simulation
        for tracker in network.trackers:
            tracker.start()
        for number, node in enumerate(network.nodes):
            simulation.at_s(number * 0.05, node.start)
        self._often(1.0, self._end_s, self._strike)
        self._often(4.0, self._end_s + 5, self._publish)
        simulation.run_until_s(self._end_s + TRACKERS_BACK_S)
        for tracker in network.trackers:
            # The others may stay dead: the best one is there, and that is enough.
            if tracker.host is None and (tracker is network.tracker or self._rng.random() < 0.7):
                tracker.start()
        simulation.run_for(ALL_BACK_S)
        for node in network.nodes:
            if node.host is None:
                node.start()
        simulation.run_for(QUIET_S)

    def check(self) -> None:
        """One overlay at the best tracker, and nobody who stayed misses what it was not told of."""
        network = self.network
        network.simulation.check_quiet()
        check_overlay(network)
        for node in network.running():
            assert network.machine(node).trackers.at(network.stream) == network.tracker.id
        for tracker in network.trackers[1:]:
            if tracker.host is not None:
                machine = tracker.machines[STREAMS_SLOT]
                assert isinstance(machine, Tracker)
                assert network.stream not in machine.streams
        ids = {node.id for node in self.stayed}
        for node in self.stayed:
            missed = [
                message
                for message in self.once.published
                if message.publisher in ids and message not in self.once.delivered(node)
            ]
            # A node may be away from all who have a message for longer than gaps are kept open;
            # it is told, then.
            missed = [m for m in missed if (node.id, m.publisher) not in self.gaps.told]
            assert not missed, f"node {node.index} misses {missed}"

    def _faults(self) -> tuple[AnyFault, ...]:
        end_s = self._end_s
        return (
            Loss(probability=self._rng.choice([0.02, 0.1, 0.25]), end_s=end_s),
            Jitter(mean_ms=50, end_s=end_s),
            Reordering(probability=0.1, held_ms=300, end_s=end_s),
            Duplication(probability=0.05, end_s=end_s),
        )

    def _often(self, rate: float, end_s: float, action: Callable[[], None]) -> None:
        when_s = BEGIN_S
        while when_s < end_s:
            self.network.simulation.at_s(when_s, action)
            when_s += self._rng.expovariate(rate)

    def _strike(self) -> None:
        rng, network = self._rng, self.network
        choice = rng.random()
        if choice < 0.4:
            self._toggle(rng.choice(network.trackers))
        elif choice < 0.6:
            away = [node for node in network.nodes if rng.random() < 0.5]
            self._cut(TrackerCut(network.simulation, rng.choice(network.trackers), away))
        elif choice < 0.7 and self._lossy:
            everybody = network.simulation.nodes
            away_ids = dict.fromkeys(id for id in everybody if rng.random() < 0.4)
            self._cut(_Cut(network.simulation, away_ids))
        elif self._others:
            self._toggle(rng.choice(self._others))

    def _toggle(self, node: SimNode) -> None:
        if node.host is None:
            node.start()
        else:
            node.crash(self._rng.choice([0, 0, DETECT_NS]))

    def _cut(self, cut: _Cut) -> None:
        simulation = self.network.simulation
        simulation.add_shaper(cut)
        simulation.scheduler.after(DETECT_NS, cut.time_out)
        healed_ns = ns_of_seconds(self._rng.uniform(0.1, CUT_MAX_S))
        simulation.scheduler.after(healed_ns, lambda _: cut.heal())

    def _publish(self) -> None:
        node = self._rng.choice(self.network.nodes)
        if node.host is not None and self.network.stream in self.network.machine(node).streams:
            self.network.publish(node, b"busy")
