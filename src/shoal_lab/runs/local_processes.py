"""Runs in several processes of this machine.

Each worker takes a task, says now and then how far it is, and when the run is over takes the next
one, while a thread of it still writes the tables of the last. A run counts as done only when its
folder is there. A worker that cannot say how far it is has lost its parent, and ends.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from shoal_lab.runs.places import (
    RunDone,
    RunTask,
    Told,
    WorkerLost,
    perform,
    portable_error,
    task_writer,
)
from shoal_lab.runs.run_files import RunWriter, remove_leftovers

TELL_S = 0.25  # between two words about progress
STOP_S = 5.0  # a worker that was told to end and does not is killed

READY, PART, DONE = "ready", "part", "done"


class Processes:
    """So many runs at once."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def run(self, tasks: Sequence[RunTask], told: Told) -> Generator[RunDone, None, None]:
        """Do all tasks; WorkerLost if a process ends by itself."""
        waiting, open_tasks = deque(tasks), {task.run: task for task in tasks}
        workers = [_Worker() for _ in range(min(self.jobs, len(tasks)))]
        by_connection = {worker.connection: worker for worker in workers}
        try:
            while by_connection:
                for connection in wait(list(by_connection)):
                    worker = by_connection[connection]  # type: ignore[index]
                    heard = worker.hear()
                    if heard is None:
                        del by_connection[worker.connection]
                        worker.join()
                    elif heard[0] == READY:
                        worker.give(waiting.popleft() if waiting else None)
                    elif heard[0] == PART:
                        told(heard[1], heard[2])
                    else:
                        done: RunDone = heard[1]
                        del open_tasks[done.run]
                        worker.finished(done.run)
                        yield done
        finally:
            for worker in workers:
                worker.stop()
            for task in open_tasks.values():
                if task.folder is not None:
                    remove_leftovers(task.folder, task.run)


class _Worker:
    """A worker process, as its parent sees it."""

    def __init__(self) -> None:
        # Spawned: a fork would inherit the pipes of the others, and hold them open.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._runs: list[str] = []

    def give(self, task: RunTask | None) -> None:
        """The next task, or the word that there is none."""
        if task is not None:
            self._runs.append(task.run)
        try:
            self.connection.send(task)
        except OSError:
            self._lost()

    def hear(self) -> Any:
        """What it says; None when it has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def finished(self, run: str) -> None:
        """A run is over."""
        self._runs.remove(run)

    def join(self) -> None:
        """It has ended; WorkerLost if it should not have."""
        self._process.join(STOP_S)
        if self._runs or self._process.exitcode:
            self._lost()

    def stop(self) -> None:
        """Have it end, whatever it does."""
        self.connection.close()
        self._process.terminate()
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _lost(self) -> None:
        self._process.join(STOP_S)
        what = " and ".join(self._runs) or "nothing yet"
        raise WorkerLost(
            f"a process ended with code {self._process.exitcode} at {what}: if memory ran out, "
            "fewer --jobs help; the same command goes on where it stopped"
        )


def _work(connection: Connection) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    voice = _Voice(connection)
    writers: dict[tuple[Path, bool], RunWriter] = {}
    with ExitStack() as closing:
        voice.say(READY)
        while (task := connection.recv()) is not None:
            writer = None
            if task.folder is not None:
                key = task.folder, task.again
                if key not in writers:
                    writers[key] = task_writer(task)
                    closing.callback(writers[key].close)
                writer = writers[key]
            _do(task, writer, voice)
            # A network is one large cycle: it must go before the next one is built.
            gc.collect()
            voice.say(READY)


def _do(task: RunTask, writer: RunWriter | None, voice: _Voice) -> None:
    try:
        result, written = perform(task, writer, lambda now: voice.say_part(task.run, now.fraction))
    except Exception as error:
        voice.say(DONE, RunDone(task.run, error=portable_error(error)))
        return

    def report(written: Future[Path]) -> None:
        error = written.exception()
        if error is None:
            voice.say(DONE, RunDone(task.run, result))
        else:
            voice.say(DONE, RunDone(task.run, error=portable_error(error)))

    if written is None:
        voice.say(DONE, RunDone(task.run, result))
    else:
        written.add_done_callback(report)


class _Voice:
    """What a worker says; its thread that writes says something too."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._said_s = time.monotonic()

    def say(self, *words: Any) -> None:
        try:
            with self._lock:
                self._connection.send(words)
        except OSError:
            os._exit(1)  # nobody is there to hear it: the parent was killed

    def say_part(self, run: str, fraction: float) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= TELL_S:
            self._said_s = now_s
            self.say(PART, run, fraction)
