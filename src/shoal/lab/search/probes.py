"""Bubbles that the lab has cast in a simulated network, and where they came to."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from shoal.base.units import seconds
from shoal.kernel.records import BubbleStep
from shoal.lab.search.grown import GrownNetwork
from shoal.lab.search.model.cast import Bubbles
from shoal.lab.search.network import SEARCH_SLOT
from shoal.lab.search.probing import CastProbe, ProbeCast
from shoal.sim.delays import ConstantDelay
from shoal.sim.trace import Kinds

INTERVAL_S = 0.005
"""Between two bubbles: in 10,000 nodes at once every node would have hundreds to check."""
HOPS_UNKNOWN = -1


class Probe:
    """Bubbles of one certainty, as far as they have come."""

    def __init__(self, certainty: float) -> None:
        self.certainty = certainty
        self.sizes: list[int] = []
        self.started_ns: list[int] = []
        self.bubble: list[int] = []
        """With `node` and `time_ns`: a bubble's number and a node that handled it, and when."""
        self.node: list[int] = []
        self.time_ns: list[int] = []
        self.received: list[int] = []
        """Nodes that a message of a bubble came to, once for each."""
        self.collisions = 0

    @property
    def size(self) -> int:
        """In the mean: nodes differ a little in what they measured."""
        return round(sum(self.sizes) / len(self.sizes)) if self.sizes else 0


class Probes:
    """Casts them, and watches them on the trace."""

    def __init__(self, network: GrownNetwork) -> None:
        self._network = network
        self._rng = network.simulation.random("probes")
        self._numbers = {node.id: node.index for node in network.nodes}
        self._known: dict[bytes, tuple[Probe, int]] = {}
        self._count = 0
        network.simulation.trace.to_kinds(self._take)
        for node in network.nodes:
            node.listeners.append(self._told)

    def cast(self, certainty: float, count: int, *, data: bool) -> Probe:
        """So many bubbles, one after the other, from nodes that are drawn by lot. Time goes on
        until the last one is under way."""
        probe, simulation = Probe(certainty), self._network.simulation
        for number in range(count):
            when_s = simulation.time_s + number * INTERVAL_S
            simulation.at_s(when_s, partial(self._cast, probe, data))
        simulation.run_for(count * INTERVAL_S)
        return probe

    def forget(self) -> None:
        """Watch the bubbles that were cast no longer: whatever comes of them now is too late."""
        self._known.clear()

    def gathered(self, probe: Probe, hop_s: float | None) -> Bubbles:
        """Where they are now; if every hop takes the same time, also how many there were."""
        self._network.simulation.trace.flush()
        count = len(probe.sizes)
        bubble = np.array(probe.bubble, np.int32)
        hops = np.full(count, HOPS_UNKNOWN, np.int64)
        if hop_s is not None:
            # What nodes do between two hops takes a small part of one.
            took_ns = np.array(probe.time_ns, np.int64) - np.array(probe.started_ns)[bubble]
            np.maximum.at(hops, bubble, (took_ns / 1e9 // hop_s).astype(np.int64))
        degrees = self._degrees(probe.received)
        return Bubbles(
            bubble=bubble,
            node=np.array(probe.node, np.int32),
            hops=hops,
            messages=len(probe.received),
            collisions=probe.collisions,
            load=np.bincount(degrees).astype(np.int64),
        )

    def _degrees(self, received: list[int]) -> list[int]:
        nodes, circle = self._network.nodes, self._network.circle
        degrees = {
            number: circle(nodes[number]).degree
            for number in dict.fromkeys(received)
            if nodes[number].host is not None
        }
        return [degrees[number] for number in received if number in degrees]

    def _cast(self, probe: Probe, data: bool) -> None:
        node = self._network.draw_ready(self._rng)
        if node is not None:
            self._count += 1
            node.command(SEARCH_SLOT, CastProbe(probe.certainty, data, self._count), probe)

    def _told(self, event: Any) -> None:
        if type(event) is ProbeCast and isinstance(probe := event.token, Probe):
            self._known[event.bubble] = probe, len(probe.sizes)
            probe.sizes.append(event.size)
            probe.started_ns.append(self._network.simulation.scheduler.now_ns)

    def _take(self, kinds: Kinds) -> None:
        for time_ns, node, record in kinds.get(BubbleStep, ()):
            assert type(record) is BubbleStep
            found = self._known.get(record.bubble)
            if found is None or record.outcome == "congested":
                continue
            probe, number = found
            here = self._numbers[node]
            if time_ns > probe.started_ns[number]:
                probe.received.append(here)  # at the origin nothing had to come
            if record.outcome == "handled":
                probe.bubble.append(number)
                probe.node.append(here)
                probe.time_ns.append(time_ns)
            elif record.outcome == "collision":
                probe.collisions += 1


def hop_time_s(network: GrownNetwork) -> float | None:
    """How long every hop takes, if all take the same."""
    delays = network.simulation.delays
    return seconds(delays.one_way_ns(0, 1)) if isinstance(delays, ConstantDelay) else None
