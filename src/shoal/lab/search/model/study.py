"""Looks at a network in all of its stages: who finds what, who is loaded, what is measured."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

from shoal.base.errors import InvariantViolated
from shoal.lab.search.model.cast import Bubbles, cast
from shoal.lab.search.model.circle import Numbers
from shoal.lab.search.model.figures import LoadFigures, MatchFigures, ModelFigures, StageFigures
from shoal.lab.search.model.gossip import MOST, Step, measure, steps_needed
from shoal.lab.search.model.matching import match
from shoal.lab.search.model.options import ModelOptions
from shoal.lab.search.model.stages import SETTLED, STAGES, Stage, make_stages, stage_random
from shoal.protocols.search.sizes import bubble_size, confidence_of, threshold

CERTAINTIES = (0.5, 1.0, 1.5, 2.0, 3.0)

# What a node costs besides, in positions of bubbles; measured with a million nodes.
BUILD_COST = 10.0
STEP_COST = 2.0
STEPS_EXPECTED = 25.0

Told = Callable[[float, int], None]
"""Hears how much work was done, in positions of bubbles or what takes as long, and how many
messages were sent."""


class Study:
    """One network; `run` is for once."""

    def __init__(self, nodes: int, options: ModelOptions, seed: int, told: Told) -> None:
        self.nodes = nodes
        self.options = options
        self.seed = seed
        self.messages = 0
        self.steps: list[Step] = []
        self._told = told
        self._work = 0.0
        self._digest = hashlib.blake2b(digest_size=16)
        self._old: dict[float, tuple[int, Bubbles]] = {}
        """Data from before the event, and the size it was given, by certainty."""

    @property
    def trace_hash(self) -> str:
        """Of all edges, all nodes that bubbles came to, and all steps of the measurement."""
        return self._digest.hexdigest()

    def run(self) -> ModelFigures:
        """All stages, and the measurement in the last; InvariantViolated if a rule was broken."""
        told, last = [], None
        for last in make_stages(self.nodes, self.options, self.seed):
            self._digest.update(last.links.graph.peer.data)
            self._worked(self.nodes * BUILD_COST)
            told.append(self._look(last))
        assert last is not None  # there is always one
        if self.options.holders and last.largest_part >= MOST:
            self._measure(last)
        return ModelFigures(
            nodes=self.nodes,
            locations=str(self.options.locations),
            event=self.options.event,
            stages=tuple(told),
            repair_rounds=last.repair_rounds,
            splits=last.splits,
            steps=tuple(steps_needed(self.steps, one) for one in range(self.options.holders)),
        )

    def _look(self, stage: Stage) -> StageFigures:
        matches: list[MatchFigures] = []
        load = np.zeros(int(stage.links.graph.degree.max(initial=0)) + 1, np.int64)
        for certainty in CERTAINTIES if self.options.bubbles else ():
            found, bubbles = self._match(stage, certainty)
            matches += found
            for some in bubbles:
                load += some.load
        nodes = np.bincount(stage.links.graph.degree[stage.living], minlength=len(load))
        return StageFigures(
            stage=stage.name,
            nodes=int(stage.living.sum()),
            edges=stage.edges,
            largest_part=stage.largest_part,
            threshold=threshold(stage.totals) or 0.0,
            matches=tuple(matches),
            loads=tuple(
                LoadFigures(degree=degree, nodes=int(nodes[degree]), messages=int(load[degree]))
                for degree in np.flatnonzero(nodes).tolist()
            ),
        )

    def _match(self, stage: Stage, certainty: float) -> tuple[list[MatchFigures], list[Bubbles]]:
        """Queries of this certainty against all data that there is; and the bubbles of both that
        were sent for it."""
        balance = self.options.balance
        data_size, query_size = (
            bubble_size(certainty, of, stage.totals) for of in (balance, 1 / balance)
        )
        queries = self._cast(stage, query_size, certainty, "queries")
        fresh, kinds = [queries], {}
        if stage.name in SETTLED:
            fresh.append(self._cast(stage, data_size, certainty, "data"))
            kinds["new"] = data_size, fresh[-1]
        if stage.name == "before":
            self._old[certainty] = kinds["new"]
        else:
            kinds["old"] = self._old[certainty]
        found, count = [], len(queries.hops)
        for name, (given, data) in kinds.items():
            matched = match(data, queries, stage.living)
            found.append(
                MatchFigures(
                    certainty=certainty,
                    data=name,
                    data_size=given,
                    query_size=query_size,
                    pairs=matched.pairs,
                    matched=matched.part,
                    error=matched.error,
                    theory=confidence_of(certainty),
                    reached=len(queries.node) / count,
                    messages=queries.messages / count,
                    collisions=queries.collisions / count,
                    hops_max=int(queries.hops.max()),
                    hops_bound=hops_bound(certainty, int(stage.living.sum())),
                )
            )
        return found, fresh

    def _cast(self, stage: Stage, size: int, certainty: float, kind: str) -> Bubbles:
        rng = stage_random(self.seed, stage.name, certainty, kind)
        origins = _some(stage, self.options.bubbles, rng)
        bubbles = cast(stage.links, origins, size, int(rng.integers(1 << 62)))
        reached = np.bincount(bubbles.bubble)
        if reached.max() > size:
            raise InvariantViolated(f"a bubble of size {size} came to {reached.max()} nodes")
        self.messages += bubbles.messages
        self._digest.update(bubbles.node.data)
        self._worked(size * self.options.bubbles)
        return bubbles

    def _measure(self, stage: Stage) -> None:
        work = int(stage.living.sum()) * STEP_COST / self.options.holders
        holders = _some(stage, self.options.holders, stage_random(self.seed, "holders"))

        def told(step: Step) -> None:
            self._worked(work)

        self.steps = measure(stage.links.graph, stage.living, holders, told)
        self._digest.update(repr(self.steps).encode())

    def _worked(self, amount: float) -> None:
        self._work += amount
        self._told(self._work, self.messages)


def study_cost(nodes: int, options: ModelOptions) -> float:
    """About how much work a study is, in positions of bubbles."""
    event = options.happening()
    stages = len(STAGES[event.kind])
    cost = nodes * BUILD_COST * stages
    if options.holders:
        cost += nodes * (1 - event.part) * STEP_COST * STEPS_EXPECTED
    return cost + 2 * options.bubbles * stages * sum(CERTAINTIES) * math.sqrt(nodes)


def hops_bound(certainty: float, nodes: int) -> int:
    """The longest way that a bubble has to go, by theory."""
    return math.ceil(math.log2(nodes) + math.log2(certainty) + 1)


def _some(stage: Stage, count: int, rng: np.random.Generator) -> Numbers:
    """Living nodes, drawn with repetition."""
    living = np.flatnonzero(stage.living).astype(np.int32)
    return living[rng.integers(len(living), size=count)]
