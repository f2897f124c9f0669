"""An application that cannot make up its mind: joins, leaves, crashes and publishes at random."""

from __future__ import annotations

from random import Random

from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.sim.checkers import Checker
from shoal.sim.faults import AnyFault, Duplication, Jitter, Loss, Reordering
from shoal.sim.host import SimNode
from shoal_lab.experiments.streams.simulated_network import STREAMS_SLOT, StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario

JOIN_S = 0.001
QUIET_S = 40.0  # crash detection, resends and retries, several times over


class Churn:
    """`operations` random ones under loss, jitter, reordering and duplication; then quiet."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        degree: int,
        operations: int,
        joined: bool,
        checkers: list[Checker],
        replay: str,
    ) -> None:
        self._rng = Random(seed)
        self._times_s = self._draw_times(operations, first_s=nodes * JOIN_S if joined else 0.0)
        self._faults_end_s = self._times_s[-1] + 0.1
        scenario = Scenario(
            name="churn",
            network=NetworkSettings(nodes=nodes, degree=degree, join_interval_ms=1000 * JOIN_S),
            faults=self._faults(),
        )
        self.network = StreamsNetwork(scenario, seed, checkers=checkers, replay=replay)
        self._joined = joined
        self.crashes = self.leaves = 0

    def run(self) -> None:
        """The whole story; the network is quiet afterwards."""
        simulation = self.network.simulation
        if self._joined:
            self.network.join_all()
        else:
            self.network.tracker.start()
        for when_s in self._times_s:
            simulation.at_s(when_s, self._operate)
        simulation.run_until_s(self._faults_end_s + QUIET_S)
        for node in self.network.running():
            if self.network.stream not in self.network.machine(node).streams:
                node.crash()  # out of the stream for good: whoever runs now is a member
        simulation.run_for(QUIET_S)

    def _draw_times(self, operations: int, first_s: float) -> list[float]:
        """Mostly one at a time, now and then several in the same instant."""
        times_s, now_s = [], first_s
        for _ in range(operations):
            now_s += self._rng.expovariate(20.0) if self._rng.random() < 0.9 else 0.0
            times_s.append(now_s)
        return times_s

    def _faults(self) -> tuple[AnyFault, ...]:
        """Instructions get lost, statuses come late, and nothing arrives in order."""
        end_s = self._faults_end_s
        return (
            Loss(probability=0.05, end_s=end_s),
            Jitter(mean_ms=50, end_s=end_s),
            Reordering(probability=0.1, held_ms=300, end_s=end_s),
            Duplication(probability=0.05, end_s=end_s),
        )

    def _operate(self) -> None:
        rng, nodes = self._rng, self.network.nodes
        choice, node = rng.random(), rng.choice(nodes)
        if choice < 0.45:
            for newcomer in rng.sample(nodes, 1 + len(nodes) // 50):
                self._join(newcomer)
        elif choice < 0.60:
            self._leave(node)
        elif choice < 0.70:
            self._crash(node, detect_ns=rng.choice([0, 0, 2_000_000_000]))
        elif choice < 0.71:
            for victim in rng.sample(nodes, max(1, len(nodes) // 3)):
                self._crash(victim, detect_ns=0)
        elif choice < 0.712:
            self.network.tracker.crash()
            self.network.tracker.start()
        elif self._is_member(node):
            self.network.publish(node, b"hello")

    def _is_member(self, node: SimNode) -> bool:
        return node.host is not None and self.network.stream in self.network.machine(node).streams

    def _join(self, node: SimNode) -> None:
        if node.host is None:
            node.start()
        elif not self._is_member(node):
            node.command(STREAMS_SLOT, JoinStream(self.network.stream))

    def _leave(self, node: SimNode) -> None:
        if self._is_member(node):
            self.leaves += 1
            node.command(STREAMS_SLOT, LeaveStream(self.network.stream))

    def _crash(self, node: SimNode, detect_ns: int) -> None:
        if node.host is not None:
            self.crashes += 1
            node.crash(detect_ns)
