"""Looks at a network in all of its stages: who finds what, who is loaded, what is measured."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from shoal.base.errors import InvariantViolated
from shoal.protocols.search.bubbles.bubble_size import bubble_size, confidence_of, threshold
from shoal.sim.simulation import SimulationFailure
from shoal_lab.experiments.search_model.cast import Bubbles, cast
from shoal_lab.experiments.search_model.cast import match as match_bubbles
from shoal_lab.experiments.search_model.circle import Numbers
from shoal_lab.experiments.search_model.figures import (
    LoadFigures,
    MatchFigures,
    ModelFigures,
    StageFigures,
    model_line,
    model_rows,
    model_tables,
)
from shoal_lab.experiments.search_model.gossip import MOST, Step, measure, steps_needed
from shoal_lab.experiments.search_model.options import ModelOptions, options_of
from shoal_lab.experiments.search_model.stages import (
    SETTLED,
    STAGES,
    Stage,
    make_stages,
    stage_random,
)
from shoal_lab.scenarios.experiment_kinds import (
    OFF,
    PASSED,
    Checks,
    ExperimentKind,
    Outcome,
    RunProgress,
    RunRequest,
)
from shoal_lab.scenarios.scenario import Scenario

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
            matched = match_bubbles(data, queries, stage.living)
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


# The lab's kind for the model: a network of any size, and what became of it.


# Theory is for networks so large that bubbles are a small part of them, and in one piece.
THEORY_NODES_MIN = 1_000
THEORY_PART_MIN = 0.9999
BELOW_MAX, ABOVE_MAX = 0.01, 0.03  # from theory; rerouted collisions find a little more
ERRORS_MAX = 4.0  # and so many standard errors besides


def check_theory(stages: Sequence[StageFigures]) -> None:
    """InvariantViolated if settled networks do not find what they should."""
    for stage in stages:
        if (
            stage.stage not in SETTLED
            or stage.nodes < THEORY_NODES_MIN
            or stage.largest_part < THEORY_PART_MIN
        ):
            continue
        for match in stage.matches:
            if match.data != "new":
                continue
            # The error that was seen is none where few pairs all met.
            blind = math.sqrt(match.theory * (1 - match.theory) / match.pairs)
            off, noise = match.matched - match.theory, ERRORS_MAX * max(match.error, blind)
            if not -BELOW_MAX - noise <= off <= ABOVE_MAX + noise:
                raise InvariantViolated(
                    f"{stage.stage}, c = {match.certainty:g}: {match.matched:.4f} of the pairs "
                    f"met, theory says {match.theory:.4f}"
                )


def _run(request: RunRequest) -> Outcome:
    nodes, options = request.scenario.network.nodes, options_of(request.scenario)
    check = request.check is not False
    study = Study(nodes, options, request.seed, _told(request, study_cost(nodes, options)))
    begin_s = time.process_time()
    try:
        figures = study.run()
        if check:
            check_theory(figures.stages)
    except InvariantViolated as error:
        raise SimulationFailure(
            f"seed {request.seed}: InvariantViolated: {error}\nreplay: {request.replay}"
        ) from error
    return Outcome(
        figures=figures,
        trace_hash=study.trace_hash,
        events=study.messages,
        records=0,
        cpu_seconds=time.process_time() - begin_s,
        simulated_seconds=0.0,
        checks=Checks(PASSED, PASSED if check else OFF),
        tables=(lambda run: partial(model_tables, run, figures.stages, study.steps))
        if request.record
        else None,
    )


def _told(request: RunRequest, cost: float) -> Callable[[float, int], None]:
    def told(work: float, messages: int) -> None:
        if request.progress is not None:
            part = min(work / cost, 0.99)
            request.progress(RunProgress(100 * part, 100, messages, part, "per cent"))

    return told


def _cost(scenario: Scenario) -> float:
    return study_cost(scenario.network.nodes, options_of(scenario))


MODEL = ExperimentKind(
    name="search/model",
    run=_run,
    figures=ModelFigures,
    rows=model_rows,
    line=model_line,
    cost=_cost,
    reads=frozenset({"nodes"}),
    options=ModelOptions,
)
