"""Runs on the executors of a Spark cluster.

One job, one task of it per run, so that Spark places them, and repeats those of an executor that is
lost. What a task gave comes back in an accumulator: Spark adds to it when the task is over, once,
however often it was tried, while a job's own result comes when all are. Runs are written by the
executors, and must turn up where the driver looks: in a folder that all machines share.
"""

from __future__ import annotations

import gc
import platform
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from shoal.base.errors import UsageError
from shoal_lab.runs.places import RunDone, RunTask, ThisProcess, Told, WorkerLost, portable_error
from shoal_lab.runs.sweep import is_there

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

StartSpark = Callable[[], AbstractContextManager["SparkSession"]]

Ended = tuple[str, RunDone]
"""With the machine on which it was."""

POLL_S = 0.2
TELL_S = 1.0  # between two words about progress
SHARED_S = 60.0
"""A network file system may show a new folder so much later on other machines."""

_FAILED_TASK = re.compile(r"Task (\d+) in stage .*")


class Executors:
    """As many runs at once as the executors have cores. Spark is started for tasks only."""

    def __init__(self, start: StartSpark) -> None:
        self._start = start

    def run(self, tasks: Sequence[RunTask], told: Told) -> Generator[RunDone, None, None]:
        """Do all tasks; WorkerLost if one of them ends its executor time and again."""
        if not tasks:
            return
        sent = [_absolute(task) for task in tasks]
        open_tasks = {task.run: task for task in sent}
        with self._start() as session:
            job = _Job(session.sparkContext, sent)
            tell_s = 0.0
            try:
                while True:
                    alive = job.is_alive()  # asked first: nothing comes after the end
                    for host, done in job.take():
                        yield _where_we_see_it(open_tasks.pop(done.run), done, host)
                    if not alive:
                        break
                    if time.monotonic() >= tell_s and open_tasks:
                        # How far a run is comes with its end; that all goes on is said before.
                        told(next(iter(open_tasks)), 0.0)
                        tell_s = time.monotonic() + TELL_S
                    job.wait(POLL_S)
            finally:
                job.cancel()
            job.raise_failure()


class _Job:
    """A Spark job that runs in a thread of its own."""

    def __init__(self, context: SparkContext, tasks: Sequence[RunTask]) -> None:
        from pyspark import InheritableThread
        from pyspark.accumulators import AddingAccumulatorParam

        self._context = context
        self._tasks = tasks
        self._group = f"shoal-lab-{uuid4().hex[:8]}"
        lists: Any = AddingAccumulatorParam([])
        self._ended: Accumulator[list[Ended]] = context.accumulator([], lists)
        self._taken = 0
        self._error: Exception | None = None
        self._thread = InheritableThread(target=self._run)
        self._thread.start()

    def is_alive(self) -> bool:
        alive: bool = self._thread.is_alive()
        return alive

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def take(self) -> list[Ended]:
        """What has ended since this was asked last."""
        new: list[Ended] = self._ended.value[self._taken :]
        self._taken += len(new)
        return new

    def cancel(self) -> None:
        """Have nothing go on; no harm if all is over."""
        if self._thread.is_alive():
            # What tasks say when they are cut off helps nobody.
            self._context.setLogLevel("OFF")
        while self._thread.is_alive():
            # More than once: it may not have begun.
            self._context.cancelJobGroup(self._group)
            self._thread.join(POLL_S)

    def raise_failure(self) -> None:
        """WorkerLost if Spark gave up."""
        if self._error is None:
            return
        # The story of a Java error has a hundred lines.
        lines = str(self._error).splitlines()
        said = next((line for line in lines if "Job aborted" in line), lines[0] if lines else "")
        found = _FAILED_TASK.search(said)
        what = self._tasks[int(found[1])].run if found else "a run"
        raise WorkerLost(
            f"Spark gave up on {what}: {found[0] if found else said}: if memory ran out, executors "
            "with fewer cores help; the same command goes on where it stopped"
        ) from self._error

    def _run(self) -> None:
        ended = self._ended
        self._context.setJobGroup(self._group, "shoal lab run")
        # A partition each, in the order of the tasks, which is that in which Spark begins them.
        spread = self._context.parallelize(self._tasks, len(self._tasks))
        try:
            spread.foreachPartition(lambda tasks: _work(tasks, ended))
        except Exception as error:
            self._error = error


def _work(tasks: Iterable[RunTask], ended: Accumulator[list[Ended]]) -> None:
    """Runs on an executor."""
    for task in tasks:
        (done,) = ThisProcess().run([task], lambda run, part: None)
        if done.error is not None:
            done = RunDone(task.run, error=portable_error(done.error))
        ended.add([(platform.node(), done)])
        # A network is one large cycle: it must go before the next one is built.
        gc.collect()


def _absolute(task: RunTask) -> RunTask:
    """Executors work in folders of their own."""
    if task.folder is None:
        return task
    return msgspec.structs.replace(task, folder=task.folder.absolute())


def _where_we_see_it(task: RunTask, done: RunDone, host: str) -> RunDone:
    """A run is done when its folder is here."""
    if done.error is not None or task.folder is None or _turns_up(task.folder, task.run):
        return done
    error = UsageError(
        f"{task.folder / task.run} was written on {host} and is not here: --out must name a folder "
        "that all machines share under one path"
    )
    return RunDone(task.run, error=error)


def _turns_up(folder: Path, run: str) -> bool:
    end_s = time.monotonic() + SHARED_S
    while not is_there(folder, run):
        if time.monotonic() >= end_s:
            return False
        time.sleep(POLL_S)
    return True
