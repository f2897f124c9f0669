"""Runs one scenario with one seed: figures, verdicts, and the command that repeats it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shoal.lab.collector import quiet_collector
from shoal.lab.experiment import EXPERIMENTS, Experiment, safety_checkers
from shoal.lab.run_files import RunInfo, RunWriter, provenance, run_name
from shoal.lab.scenario import Scenario
from shoal.sim.checkers import Checker
from shoal.sim.simulation import Simulation
from shoal.sim.trace import TraceHash

SAFETY_NODES_MAX = 200  # above it, checks after every step take most of the time

PASSED = "passed"
OFF = "off"

Progress = Callable[["RunProgress"], None]


class RunProgress(msgspec.Struct, frozen=True):
    """How far a run is."""

    time_s: float
    end_s: float
    events: int
    fraction: float
    """An estimate, below 1 while the run goes on."""


class Checks(msgspec.Struct, frozen=True):
    """What was checked: "passed", "off", or why not. A failed check is a SimulationFailure."""

    safety: str
    liveness: str


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `events_per_cpu_second` counts the event loop with all its sinks and checkers."""

    scenario: str
    protocol: str
    seed: int
    overrides: tuple[str, ...]
    replay: str
    trace_hash: str
    events: int
    records: int
    events_per_cpu_second: float
    cpu_seconds: float
    simulated_seconds: float
    checks: Checks
    figures: Any

    def as_json(self) -> bytes:
        """One flat JSON object: the run, then its figures."""
        fields: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        figures = fields.pop("figures")
        return msgspec.json.encode({**fields, **figures})


def run_scenario(
    scenario: Scenario,
    seed: int | None = None,
    *,
    check: bool | None = None,
    overrides: Sequence[str] = (),
    replay: str | None = None,
    progress: Progress | None = None,
    writer: RunWriter | None = None,
) -> RunResult:
    """Run to the end; SimulationFailure, with seed and replay command, if a check fails.

    `check`: safety and liveness, or neither; None stands for liveness always, and safety where
    the network is small. `writer` gets the tables of a run whose checks passed.
    """
    seed = scenario.seed if seed is None else seed
    if replay is None:
        replay = replay_command(scenario.name, seed, overrides, check)
    if writer is not None:
        writer.refuse_again(run_name(scenario, seed))
    safety = scenario.network.nodes <= SAFETY_NODES_MAX if check is None else check
    checkers: Sequence[Checker] = safety_checkers() if safety else ()
    experiment = EXPERIMENTS[scenario.protocol](scenario, seed, checkers, replay)
    simulation = experiment.simulation
    trace_hash = TraceHash()
    simulation.trace.to(trace_hash)
    recorded = experiment.record() if writer is not None else None
    if progress is not None:
        simulation.progress = _told(experiment, scenario.end_s, progress)
    with quiet_collector():
        begin_s = time.process_time()
        experiment.run()
        cpu_s = time.process_time() - begin_s
    figures = experiment.figures()
    liveness = experiment.unhealed() or PASSED if check is not False else OFF
    if safety:
        simulation.check_quiet()
    if liveness is PASSED:
        _check_liveness(experiment, figures)
    events = simulation.scheduler.happened
    result = RunResult(
        scenario=scenario.name,
        protocol=scenario.protocol,
        seed=seed,
        overrides=tuple(overrides),
        replay=replay,
        trace_hash=trace_hash.hexdigest(),
        events=events,
        records=simulation.trace.rows,
        events_per_cpu_second=events / cpu_s if cpu_s else 0.0,
        cpu_seconds=cpu_s,
        simulated_seconds=simulation.time_s,
        checks=Checks(PASSED if safety else OFF, liveness),
        figures=figures,
    )
    if writer is not None and recorded is not None:
        run = run_name(scenario, seed)
        info = RunInfo(
            run=run, seed=seed, scenario=scenario, result=result, provenance=provenance()
        )
        writer.write(info, recorded(run))
    return result


def replay_command(
    name: str, seed: int, overrides: Sequence[str] = (), check: bool | None = None
) -> str:
    """The one command that repeats a run."""
    words = ["shoal", "lab", "run", name, "--seed", str(seed)]
    for override in overrides:
        words += ["--set", override]
    if check is not None:
        words.append("--check" if check else "--no-check")
    return shlex.join(words)


def _check_liveness(experiment: Experiment, figures: msgspec.Struct) -> None:
    try:
        experiment.check_liveness(figures)
    except Exception as error:
        raise experiment.simulation.failure(error) from error


def _told(experiment: Experiment, end_s: float, progress: Progress) -> Callable[[Simulation], None]:
    expected = max(1, experiment.expected_events())

    def tell(simulation: Simulation) -> None:
        events = simulation.scheduler.happened
        fraction = min(events / expected, 0.99)
        progress(RunProgress(simulation.time_s, end_s, events, fraction))

    return tell
