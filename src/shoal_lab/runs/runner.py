"""Runs one scenario with one seed: figures, verdicts, and the command that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import ConfigError
from shoal.kernel.records import RUN_FILE
from shoal_lab.runs.run_files import RunInfo, RunWriter, provenance, run_name
from shoal_lab.scenarios.experiment_kinds import Checks, Progress, RunRequest, find_kind
from shoal_lab.scenarios.scenario import Scenario, pin_files


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `events_per_cpu_second` counts the event loop with all its sinks and checkers."""

    scenario: str
    protocol: str
    experiment: str
    seed: int
    overrides: tuple[str, ...]
    replay: str
    trace_hash: str
    events: int
    records: int
    events_per_cpu_second: float
    cpu_seconds: float
    simulated_seconds: float
    """Of a run over sockets, real ones."""
    checks: Checks
    figures: Any
    on: str = "simulator"

    def as_json(self, **more: Any) -> bytes:
        """One flat JSON object: what the caller adds, the run, then its figures."""
        fields: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        figures = fields.pop("figures")
        return msgspec.json.encode({**more, **fields, **figures})


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
    result, _ = run_and_write(
        scenario,
        scenario.seed if seed is None else seed,
        check=check,
        overrides=overrides,
        replay=replay,
        progress=progress,
        writer=writer,
    )
    return result


def run_and_write(
    scenario: Scenario,
    seed: int,
    *,
    check: bool | None = None,
    overrides: Sequence[str] = (),
    replay: str | None = None,
    progress: Progress | None = None,
    writer: RunWriter | None = None,
) -> tuple[RunResult, Future[Path] | None]:
    """The same; gives also what tells when the tables are on the disk."""
    scenario = pin_files(scenario)
    run = run_name(scenario, seed)
    if replay is None:
        replay = replay_command(scenario.name, seed, overrides, check)
    if writer is not None:
        writer.prepare(run)
    play = find_kind(scenario.protocol, scenario.experiment).runs_on(scenario)
    outcome = play(
        RunRequest(
            scenario=scenario,
            seed=seed,
            check=check,
            replay=replay,
            record=writer is not None,
            progress=progress,
        )
    )
    cpu_s = outcome.cpu_seconds
    result = RunResult(
        scenario=scenario.name,
        protocol=scenario.protocol,
        experiment=scenario.experiment,
        on=scenario.on,
        seed=seed,
        overrides=tuple(overrides),
        replay=replay,
        trace_hash=outcome.trace_hash,
        events=outcome.events,
        records=outcome.records,
        events_per_cpu_second=outcome.events / cpu_s if cpu_s else 0.0,
        cpu_seconds=cpu_s,
        simulated_seconds=outcome.simulated_seconds,
        checks=outcome.checks,
        figures=outcome.figures,
    )
    if writer is None or outcome.tables is None:
        return result, None
    info = RunInfo(run=run, seed=seed, scenario=scenario, result=result, provenance=provenance())
    return result, writer.write(info, outcome.tables(run))


def read_result(folder: Path) -> RunResult:
    """The result of a run that was written; ConfigError if its file is not what it was."""

    class Stored(msgspec.Struct):
        result: msgspec.Raw

    file = folder / RUN_FILE
    try:
        raw = msgspec.json.decode(file.read_bytes(), type=Stored).result
        result = msgspec.json.decode(raw, type=RunResult)
        kind = find_kind(result.protocol, result.experiment)
        figures = msgspec.convert(result.figures, kind.figures, strict=False, str_keys=True)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: no result can be read from it: {error}") from error
    return msgspec.structs.replace(result, figures=figures)


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
