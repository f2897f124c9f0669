"""One contract for all places where runs happen, and what happens to what is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import ConfigError
from shoal.sim.simulation import SimulationFailure
from shoal_lab.runs.local_processes import Processes
from shoal_lab.runs.places import RunPlace, RunTask, ThisProcess, WorkerLost
from shoal_lab.runs.run_files import run_name
from shoal_lab.runs.runner import read_result, run_scenario
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings

SMALL = Scenario(
    name="small",
    network=NetworkSettings(nodes=6, join_interval_ms=1),
    workload=WorkloadSettings(messages=3, settle_s=5.0, drain_s=3.0),
)
# Long enough to be caught in the middle of it, on any machine.
LONG = msgspec.structs.replace(
    SMALL, network=NetworkSettings(nodes=150), workload=WorkloadSettings(messages=100_000)
)

each_place = pytest.mark.parametrize("make", [ThisProcess, lambda: Processes(2)], ids=["this", "2"])


def task(scenario: Scenario, seed: int, folder: Path | None = None) -> RunTask:
    return RunTask(
        run=run_name(scenario, seed),
        scenario=scenario,
        seed=seed,
        check=None,
        overrides=("workload.messages=3",),
        replay=f"replay {seed}",
        folder=folder,
    )


def nothing(run: str, part: float) -> None:
    """Whoever does not care how far a run is."""


@each_place
def test_every_task_is_done_as_if_it_were_alone(
    make: Callable[[], RunPlace], tmp_path: Path
) -> None:
    tasks = [task(SMALL, seed, tmp_path) for seed in (1, 2, 3)]
    done = {one.run: one for one in make().run(tasks, nothing)}
    assert done.keys() == {one.run for one in tasks} == {f.name for f in tmp_path.iterdir()}
    for one in tasks:
        result = done[one.run].result
        assert result is not None
        assert result.trace_hash == run_scenario(SMALL, one.seed).trace_hash
        assert (result.replay, result.overrides) == (one.replay, one.overrides)
        assert read_result(tmp_path / one.run) == result


@each_place
def test_a_task_that_fails_is_told_and_the_others_are_done(make: Callable[[], RunPlace]) -> None:
    # No time to drain: messages are under way when all should be quiet.
    hasty = msgspec.structs.replace(
        SMALL, workload=WorkloadSettings(messages=3, settle_s=5.0, drain_s=0.0)
    )
    nowhere = msgspec.structs.replace(SMALL, network=NetworkSettings(nodes=2, delays="mars"))
    tasks = [task(hasty, 1), task(nowhere, 1), task(SMALL, 1)]
    done = {one.run: one for one in make().run(tasks, nothing)}
    failed, misused, fine = (done[one.run] for one in tasks)
    assert isinstance(failed.error, SimulationFailure)
    assert str(failed.error).endswith("replay: replay 1")
    assert isinstance(misused.error, ConfigError)
    assert "mars" in str(misused.error)
    assert fine.error is None
    assert fine.result is not None


@each_place
def test_no_tasks_are_done_at_once(make: Callable[[], RunPlace]) -> None:
    assert list(make().run([], nothing)) == []


@each_place
def test_what_is_there_is_replaced_only_if_told(
    make: Callable[[], RunPlace], tmp_path: Path
) -> None:
    first = task(SMALL, 1, tmp_path)
    list(make().run([first], nothing))
    before = (tmp_path / first.run / "run.json").stat().st_ino
    (refused,) = make().run([first], nothing)
    assert "is there already" in str(refused.error)
    assert (tmp_path / first.run / "run.json").stat().st_ino == before
    (done,) = make().run([msgspec.structs.replace(first, again=True)], nothing)
    assert done.error is None
    assert (tmp_path / first.run / "run.json").stat().st_ino != before
    assert [f.name for f in tmp_path.iterdir()] == [first.run]


def test_progress_is_told_from_processes() -> None:
    parts: list[tuple[str, float]] = []

    class Enough(Exception):
        """A second of it."""

    def told(run: str, part: float) -> None:
        parts.append((run, part))
        if len(parts) == 3:
            raise Enough

    with pytest.raises(Enough):
        list(Processes(1).run([task(LONG, 1)], told))
    assert {run for run, _ in parts} == {run_name(LONG, 1)}
    assert [part for _, part in parts] == sorted(part for _, part in parts)
    assert all(0 < part < 1 for _, part in parts)


def test_closing_stops_what_is_under_way_and_cleans_up(tmp_path: Path) -> None:
    tasks = [task(SMALL, 1, tmp_path), task(LONG, 1, tmp_path)]
    # As a stopped attempt leaves it.
    (tmp_path / f".{tasks[1].run}.0123abcd").mkdir()
    with closing(Processes(2).run(tasks, nothing)) as ending:
        assert next(ending).run == tasks[0].run
    assert [f.name for f in tmp_path.iterdir()] == [tasks[0].run]
    assert not _children(), "no process goes on"


def test_a_process_that_dies_is_told() -> None:
    def kill(run: str, part: float) -> None:
        for child in _children():
            os.kill(child, signal.SIGKILL)

    with pytest.raises(WorkerLost, match=rf"code -9 at {run_name(LONG, 1)}: .*fewer --jobs"):
        list(Processes(1).run([task(LONG, 1)], kill))


def _children() -> list[int]:
    """Workers of this process that live."""
    import multiprocessing

    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]
