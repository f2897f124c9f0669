"""The lab's kind for the model: a network of any size, and what became of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from shoal.base.errors import InvariantViolated
from shoal.lab.kinds import OFF, PASSED, Checks, ExperimentKind, Outcome, RunProgress, RunRequest
from shoal.lab.scenario import Scenario
from shoal.lab.search.model.figures import ModelFigures, StageFigures, model_line, model_rows
from shoal.lab.search.model.options import ModelOptions, options_of
from shoal.lab.search.model.stages import SETTLED
from shoal.lab.search.model.study import Study, study_cost
from shoal.lab.search.model.tables import model_tables
from shoal.sim.simulation import SimulationFailure

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
