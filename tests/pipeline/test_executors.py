"""Runs on Spark's executors, here those of one machine; a cluster is in test_cluster.py."""

from __future__ import annotations

import os
import signal
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from pyspark.sql import SparkSession

from shoal.base.errors import ConfigError, UsageError
from shoal.sim.simulation import SimulationFailure
from shoal_lab.runs import spark_executors
from shoal_lab.runs.places import ThisProcess, WorkerLost
from shoal_lab.runs.run_files import AlreadyThere
from shoal_lab.runs.runner import read_result, run_scenario
from shoal_lab.runs.spark_executors import Executors
from shoal_lab.scenarios.scenario import NetworkSettings, WorkloadSettings
from tests.cli.test_app import ends
from tests.lab.test_places import LONG, SMALL, nothing, task
from tests.system.processes import started_by


@pytest.fixture
def place(spark: SparkSession) -> Executors:
    return Executors(lambda: nullcontext(spark))


@pytest.mark.spark
def test_tasks_are_done_as_if_alone_and_one_that_fails_is_told(
    place: Executors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = msgspec.structs.replace(
        SMALL, workload=WorkloadSettings(messages=3, settle_s=5.0, drain_s=0.0)
    )
    nowhere = msgspec.structs.replace(SMALL, network=NetworkSettings(nodes=2, delays="mars"))
    monkeypatch.chdir(tmp_path)
    there = task(SMALL, 9, Path("runs"))
    (run_here,) = ThisProcess().run([there], nothing)
    tasks = [
        task(hasty, 1), task(nowhere, 1), there, task(SMALL, 1, Path("runs")), task(SMALL, 2)
    ]  # fmt: skip
    done = {one.run: one for one in place.run(tasks, nothing)}
    failed, misused, refused, written, kept_nowhere = (done[one.run] for one in tasks)
    assert isinstance(failed.error, SimulationFailure)
    assert str(failed.error).endswith("replay: replay 1")
    assert isinstance(misused.error, ConfigError)
    assert isinstance(refused.error, AlreadyThere)
    for one, seed in ((written, 1), (kept_nowhere, 2)):
        assert one.result is not None
        assert one.result.trace_hash == run_scenario(SMALL, seed).trace_hash
    # Where we are, not where executors are.
    assert {f.name for f in (tmp_path / "runs").iterdir()} == {run_here.run, written.run}
    assert read_result(tmp_path / "runs" / written.run) == written.result


@pytest.mark.spark
def test_closing_stops_what_is_under_way(place: Executors, spark: SparkSession) -> None:
    with closing(place.run([task(SMALL, 1), task(LONG, 1), task(LONG, 2)], nothing)) as ending:
        assert next(ending).run == task(SMALL, 1).run
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


@pytest.mark.spark
def test_a_process_that_dies_is_told(place: Executors, spark: SparkSession) -> None:
    """On one machine at once; Spark tries again elsewhere if there are others."""

    def kill(run: str, part: float) -> None:
        for worker in python_workers(spark):
            os.kill(worker, signal.SIGKILL)

    spark.sparkContext.setLogLevel("OFF")
    with pytest.raises(WorkerLost, match=rf"gave up on {task(LONG, 1).run}: Task 0 in stage .*"):
        list(place.run([task(LONG, 1)], kill))


def python_workers(spark: SparkSession) -> list[int]:
    """Those of the session: children of a daemon that is a child of the JVM."""
    gateway: Any = spark.sparkContext._gateway
    return [worker for daemon in started_by(gateway.proc.pid) for worker in started_by(daemon)]


@pytest.mark.spark
def test_runs_that_do_not_turn_up_are_told(
    place: Executors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_executors, "is_there", lambda folder, run: False)
    monkeypatch.setattr(spark_executors, "SHARED_S", 0.1)
    (done,) = place.run([task(SMALL, 1, tmp_path)], nothing)
    assert isinstance(done.error, UsageError)
    assert f"{tmp_path / done.run} was written on" in str(done.error)
    assert "that all machines share" in str(done.error)


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


def test_spark_is_not_started_for_nothing() -> None:
    assert list(Executors(no_spark).run([], nothing)) == []


def test_options_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("lab", "run", "streams-smoke", "--master", "local[2]")
    assert ends(*command, "--jobs", "2") == 2
    assert "--jobs 2 is for this machine" in capsys.readouterr().err
    assert ends(*command, "--environment", str(tmp_path / "none.zip")) == 2
    assert "shoal pipeline package" in capsys.readouterr().err
