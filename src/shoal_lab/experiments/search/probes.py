"""Bubbles that the lab has cast in a simulated network, and where they came to."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import msgspec
import numpy as np

from shoal.base.units import seconds
from shoal.kernel.records import BubbleStep
from shoal.protocols.search.bubbles.bubble_size import confidence_of, threshold
from shoal.sim.delays import ConstantDelay
from shoal.sim.trace import Kinds
from shoal_lab.experiments.search.network import SEARCH_SLOT, CastProbe, GrownNetwork, ProbeCast
from shoal_lab.experiments.search.survey import shape_of
from shoal_lab.experiments.search_model.cast import Bubbles, match
from shoal_lab.experiments.search_model.figures import LoadFigures, MatchFigures, StageFigures
from shoal_lab.experiments.search_model.study import CERTAINTIES, hops_bound

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


# Pairs of bubbles in a simulated network: the figures of a stage, as the model has them.


ARRIVED_S = 3.0  # until the last parts of a bubble are where they go: 20 hops around the world


def bare_stage(network: GrownNetwork, stage: str) -> StageFigures:
    """A network as it is, without any bubbles."""
    shape = shape_of(network)
    return StageFigures(
        stage=stage,
        nodes=shape.nodes,
        edges=shape.edges,
        largest_part=shape.largest_part,
        threshold=known_threshold(network),
        matches=(),
        loads=(),
    )


def known_threshold(network: GrownNetwork) -> float:
    """T, as most nodes know it."""
    known = [
        threshold(totals) or 0.0
        for node in network.running()
        if (totals := network.machine(node).parts.totals()) is not None
    ]
    return median(known) if known else 0.0


class Looking:
    """Looks at one network, in one stage after the other."""

    def __init__(self, network: GrownNetwork, bubbles: int) -> None:
        self._network = network
        self._bubbles = bubbles
        self._probes = Probes(network)
        self._old: dict[float, Probe] = {}
        """Data of the first stage."""

    def look(self, stage: str, *, settled: bool) -> StageFigures:
        """Cast queries, and data too if the network is settled; time goes on meanwhile."""
        network = self._network
        data: dict[float, Probe] = {}
        if settled:
            data = {c: self._probes.cast(c, self._bubbles, data=True) for c in CERTAINTIES}
        queries = {c: self._probes.cast(c, self._bubbles, data=False) for c in CERTAINTIES}
        network.simulation.run_for(ARRIVED_S)
        bare = bare_stage(network, stage)
        figures = msgspec.structs.replace(
            bare,
            matches=tuple(
                self._matched(c, name, probe, queries[c], bare.nodes)
                for c in CERTAINTIES
                for name, probe in (("new", data.get(c)), ("old", self._old.get(c)))
                if probe is not None
            ),
            loads=self._loads([*data.values(), *queries.values()]),
        )
        self._probes.forget()
        self._old = self._old or data
        return figures

    def _matched(
        self, certainty: float, name: str, data: Probe, queries: Probe, nodes: int
    ) -> MatchFigures:
        hop_s = hop_time_s(self._network)
        asked = self._probes.gathered(queries, hop_s)
        living = np.array([node.host is not None for node in self._network.nodes])
        matched = match(self._probes.gathered(data, hop_s), asked, living)
        count = len(queries.sizes)
        return MatchFigures(
            certainty=certainty,
            data=name,
            data_size=data.size,
            query_size=queries.size,
            pairs=matched.pairs,
            matched=matched.part,
            error=matched.error,
            theory=confidence_of(certainty),
            reached=len(asked.node) / count,
            messages=asked.messages / count,
            collisions=asked.collisions / count,
            hops_max=int(asked.hops.max(initial=HOPS_UNKNOWN)),
            hops_bound=hops_bound(certainty, nodes),
        )

    def _loads(self, probes: list[Probe]) -> tuple[LoadFigures, ...]:
        degrees = [circle.degree for circle in self._network.circles().values()]
        nodes = np.bincount(degrees)
        load = np.zeros(len(nodes), np.int64)
        for probe in probes:
            some = self._probes.gathered(probe, None).load
            load[: len(some)] += some
        return tuple(
            LoadFigures(degree=degree, nodes=int(nodes[degree]), messages=int(load[degree]))
            for degree in np.flatnonzero(nodes).tolist()
        )
