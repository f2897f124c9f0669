"""All runs of a plan: those that are there are read, the others done, wherever that may be."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import msgspec

from shoal.base.errors import ConfigError, ShoalError
from shoal.kernel.records import RUN_FILE
from shoal.sim.simulation import SimulationFailure
from shoal_lab.runs.places import RunPlace, RunTask
from shoal_lab.runs.plan import Plan, PlannedRun
from shoal_lab.runs.run_files import AlreadyThere
from shoal_lab.runs.runner import RunResult, read_result
from shoal_lab.scenarios.experiment_kinds import find_kind


class SweepFailed(ShoalError):
    """Checks failed in some runs; says in which, and how to see it again."""


class NotUsable(ShoalError):
    """A run that is there, and is not what is asked for."""


class SweepProgress(msgspec.Struct, frozen=True):
    """How far a sweep is."""

    done: int
    runs: int
    fraction: float
    """Of the work that this command has to do, by what runs are expected to cost."""

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.done} of {self.runs} runs done"


class SweptRun(msgspec.Struct, frozen=True):
    """A run of a plan that is over."""

    planned: PlannedRun
    result: RunResult | None
    skipped: bool = False
    """It was there already."""
    failure: str = ""
    """Why there is no result."""


def is_there(folder: Path, run: str) -> bool:
    """Whether a run was finished before: its folder appears when all of it is on the disk."""
    return (folder / run / RUN_FILE).is_file()


def run_plan(
    plan: Plan,
    place: RunPlace,
    *,
    folder: Path | None = None,
    again: bool = False,
    check: bool | None = None,
    progress: Callable[[SweepProgress], None] = lambda progress: None,
    notice: Callable[[str], None] = lambda text: None,
) -> Generator[SweptRun, None, None]:
    """Give every run of a plan as soon as it is over; those that are there come first.

    A failed check is given and the other runs go on; any other error stops everything. `notice`
    hears which runs are there and are done again all the same, and why.
    """
    planned = {run.run: run for run in plan.runs}
    there: dict[str, RunResult] = {}
    replaced = set(planned) if again else set()
    if folder is not None and not again:
        there, replaced = _look(plan, folder, check, notice)
    for name, result in there.items():
        yield SweptRun(planned[name], result, skipped=True)
    costs = {name: _cost(run) for name, run in planned.items() if name not in there}
    # Long ones first: a long one that begins last has all but one processor wait for it.
    order = sorted(costs, key=lambda run: -costs[run])
    tasks = [_task(planned[run], folder, run in replaced, check) for run in order]
    parts: dict[str, float] = {}
    finished, done_cost, all_cost = 0, 0.0, sum(costs.values())

    def told(run: str, part: float) -> None:
        nonlocal done_cost
        done_cost += costs[run] * (part - parts.get(run, 0.0))
        parts[run] = part
        fraction = min(done_cost / all_cost, 0.999)
        progress(SweepProgress(len(there) + finished, len(plan.runs), fraction))

    # Closed by hand, so that nothing goes on when whoever listens does not.
    with closing(place.run(tasks, told)) as ending:
        for done in ending:
            error, outcome = done.error, done.result
            meanwhile = isinstance(error, AlreadyThere) and folder is not None
            if meanwhile:
                # By another sweep, or by an executor that was lost before it could say so.
                assert folder is not None
                outcome = _stored(folder / done.run, check)
            if outcome is None and not isinstance(error, SimulationFailure):
                assert error is not None
                raise error
            finished += 1
            told(done.run, 1.0)
            failure = "" if outcome else str(error)
            yield SweptRun(planned[done.run], outcome, skipped=meanwhile, failure=failure)


def _look(
    plan: Plan, folder: Path, check: bool | None, notice: Callable[[str], None]
) -> tuple[dict[str, RunResult], set[str]]:
    """The results of the runs that are there, and the names of those that will not do."""
    there: dict[str, RunResult] = {}
    replaced: set[str] = set()
    for run in plan.runs:
        try:
            result = _stored(folder / run.run, check)
        except NotUsable as error:
            notice(f"{error}: it is run again")
            replaced.add(run.run)
        else:
            if result is not None:
                there[run.run] = result
    return there, replaced


def _stored(folder: Path, check: bool | None) -> RunResult | None:
    """What was found when a run was done before, if it was; NotUsable if that will not do."""
    if not os.path.isdir(folder):  # also if nobody may look there, which is told when it is written
        return None
    try:
        result = read_result(folder)
    except ConfigError as error:
        raise NotUsable(str(error)) from error
    if check and not result.checks.complete:
        raise NotUsable(f"{folder} is there, and was not checked")
    return result


def _cost(run: PlannedRun) -> float:
    kind = find_kind(run.scenario.protocol, run.scenario.experiment)
    return max(1.0, kind.cost(run.scenario))


def _task(run: PlannedRun, folder: Path | None, again: bool, check: bool | None) -> RunTask:
    return RunTask(
        run=run.run,
        scenario=run.scenario,
        seed=run.seed,
        check=check,
        overrides=run.overrides,
        replay=run.replay,
        folder=folder,
        again=again,
    )
