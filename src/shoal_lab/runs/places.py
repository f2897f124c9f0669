"""Where runs take place: a port, and the simplest place of all.

A task says everything about a run and can be pickled, so that a place may be anywhere: processes
of this machine (processes.py), or executors of a cluster (executors.py). Whatever the place, a run
ends up as a folder, whole or not at all.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from shoal.base.errors import ShoalError
from shoal_lab.runs.run_files import RunWriter
from shoal_lab.runs.runner import RunResult, run_and_write
from shoal_lab.scenarios.experiment_kinds import Progress, RunProgress
from shoal_lab.scenarios.scenario import Scenario

Told = Callable[[str, float], None]
"""Called with the name of a run, and the part of it that is done."""


class RunTask(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is to be done."""

    run: str
    scenario: Scenario
    seed: int
    check: bool | None
    overrides: tuple[str, ...]
    replay: str
    folder: Path | None
    """Where its tables go; None: nowhere."""
    again: bool = False
    """Whether it takes the place of one that is there."""


class RunDone(msgspec.Struct, frozen=True):
    """A run that is over, and on the disk if its task says where; or what went wrong."""

    run: str
    result: RunResult | None = None
    error: Exception | None = None


class WorkerLost(ShoalError):
    """A process ended in the middle of a run; killed for want of memory, most likely."""


class RunPlace(Protocol):
    """Somewhere to run."""

    def run(self, tasks: Sequence[RunTask], told: Told) -> Generator[RunDone, None, None]:
        """Do all tasks, beginning them in this order; gives each when it is over.

        A task that fails is given with its error, and the others go on. Closing the generator
        stops everything that is under way.
        """
        ...


class ThisProcess:
    """One run after the other, here. `progress` hears of each in its own words."""

    def __init__(self, progress: Progress = lambda now: None) -> None:
        self._progress = progress

    def run(self, tasks: Sequence[RunTask], told: Told) -> Generator[RunDone, None, None]:
        """Do all tasks."""
        for task in tasks:
            try:
                with nullcontext() if task.folder is None else task_writer(task) as writer:
                    result, _ = perform(task, writer, partial(self._tell, task.run, told))
            except Exception as error:
                yield RunDone(task.run, error=error)
            else:
                yield RunDone(task.run, result)

    def _tell(self, run: str, told: Told, now: RunProgress) -> None:
        told(run, now.fraction)
        self._progress(now)


def task_writer(task: RunTask) -> RunWriter:
    """What writes the tables of a task that says where."""
    assert task.folder is not None
    return RunWriter(task.folder, again=task.again)


def perform(
    task: RunTask, writer: RunWriter | None, progress: Progress
) -> tuple[RunResult, Future[Path] | None]:
    """Do one task; the writer is still at work then, and the second value tells when it is not."""
    return run_and_write(
        task.scenario,
        task.seed,
        check=task.check,
        overrides=task.overrides,
        replay=task.replay,
        progress=progress,
        writer=writer,
    )


def portable_error(error: BaseException) -> Exception:
    """An error that can be sent: ours as they are, others with their whole story."""
    if isinstance(error, ShoalError | OSError):
        return error
    return ShoalError("".join(traceback.format_exception(error)))
