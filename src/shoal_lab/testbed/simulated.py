"""Plays an experiment under virtual time: figures, verdicts, a hash of everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.sim.checkers import Checker, DeliveredOnce, MachineInvariants
from shoal.sim.simulation import Simulation
from shoal.sim.trace import TraceHash
from shoal_lab.scenarios.experiment_kinds import (
    OFF,
    PASSED,
    Checks,
    Outcome,
    Progress,
    RunProgress,
    RunRequest,
    Tables,
)
from shoal_lab.scenarios.scenario import Scenario
from shoal_lab.testbed.process_memory import LargePages, quiet_collector

SAFETY_NODES_MAX = 200  # above it, checks after every step take most of the time


class Experiment(Protocol):
    """A scenario, built and ready to run."""

    @property
    def simulation(self) -> Simulation:
        """The world it runs in."""
        ...

    def expected_events(self) -> int:
        """About how many events it takes."""
        ...

    def run(self) -> None:
        """Play the scenario to its end."""
        ...

    def record(self) -> Callable[[str], Tables]:
        """Gather its tables from now on. When it is over, the function that this gives takes the
        name of the run and all that must be taken at once; making the tables is left to what it
        gives in turn, which any thread may do."""
        ...

    def figures(self) -> msgspec.Struct:
        """What it gave."""
        ...

    def unhealed(self) -> str:
        """Why liveness cannot be asked for; empty if it can."""
        ...

    def check_liveness(self, figures: Any) -> None:
        """Raise InvariantViolated if something that must be true by now is not."""
        ...


MakeExperiment = Callable[[Scenario, int, Sequence[Checker], str], Experiment]


def simulated(
    make: MakeExperiment, safety_nodes_max: int = SAFETY_NODES_MAX
) -> Callable[[RunRequest], Outcome]:
    """The `run` of a kind whose experiments are simulations. Up to so many nodes, safety is
    checked after every step unless a request says otherwise."""
    return partial(_run, make, safety_nodes_max)


def safety_checkers() -> list[Checker]:
    """What is checked after every step of every machine."""
    return [MachineInvariants(), DeliveredOnce()]


def _run(make: MakeExperiment, safety_nodes_max: int, request: RunRequest) -> Outcome:
    scenario, check = request.scenario, request.check
    safety = scenario.network.nodes <= safety_nodes_max if check is None else check
    checkers: Sequence[Checker] = safety_checkers() if safety else ()
    experiment = make(scenario, request.seed, checkers, request.replay)
    simulation = experiment.simulation
    trace_hash = TraceHash()
    simulation.trace.to(trace_hash)
    tables = experiment.record() if request.record else None
    simulation.progress = _told(experiment, scenario.end_s, request.progress)
    with quiet_collector():
        begin_s = time.process_time()
        try:
            experiment.run()
        except InvariantViolated as error:  # between steps: those of steps say where it was
            raise simulation.failure(error) from error
        cpu_s = time.process_time() - begin_s
    figures = experiment.figures()
    liveness = experiment.unhealed() or PASSED if check is not False else OFF
    if safety:
        simulation.check_quiet()
    if liveness is PASSED:
        _check_liveness(experiment, figures)
    return Outcome(
        figures=figures,
        trace_hash=trace_hash.hexdigest(),
        events=simulation.scheduler.happened,
        records=simulation.trace.rows,
        cpu_seconds=cpu_s,
        simulated_seconds=simulation.time_s,
        checks=Checks(PASSED if safety else OFF, liveness),
        tables=tables,
    )


def _check_liveness(experiment: Experiment, figures: msgspec.Struct) -> None:
    try:
        experiment.check_liveness(figures)
    except Exception as error:
        raise experiment.simulation.failure(error) from error


def _told(
    experiment: Experiment, end_s: float, progress: Progress | None
) -> Callable[[Simulation], None]:
    expected, large_pages = max(1, experiment.expected_events()), LargePages()

    def tell(simulation: Simulation) -> None:
        large_pages()
        if progress is None:
            return
        events = simulation.scheduler.happened
        fraction = min(events / expected, 0.99)
        progress(RunProgress(simulation.time_s, end_s, events, fraction))

    return tell
