"""Pairs of bubbles in a simulated network: the figures of a stage, as the model has them."""

from __future__ import annotations

from statistics import median

import msgspec
import numpy as np

from shoal.lab.search.grown import GrownNetwork
from shoal.lab.search.model.figures import LoadFigures, MatchFigures, StageFigures
from shoal.lab.search.model.matching import match
from shoal.lab.search.model.study import CERTAINTIES, hops_bound
from shoal.lab.search.moments import shape_of
from shoal.lab.search.probes import HOPS_UNKNOWN, Probe, Probes, hop_time_s
from shoal.protocols.search.sizes import confidence_of, threshold

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
