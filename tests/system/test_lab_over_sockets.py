"""A scenario of the lab over sockets, beside its simulation: same nodes, overlay and tables."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shoal.base.errors import ConfigError
from shoal.kernel.records import RUN_FILE
from shoal.sim.simulation import SimulationFailure
from shoal_lab.experiments.streams.sockets import (
    NO_HASH,
    allow_files,
    joining_order,
    run_over_sockets,
)
from shoal_lab.runs.places import ThisProcess
from shoal_lab.runs.plan import Plan, load_plan
from shoal_lab.runs.sweep import SweptRun, run_plan
from shoal_lab.scenarios.experiment_kinds import RunProgress, RunRequest
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings
from tests.transport.stage import sockets

NODES, MESSAGES = 8, 16
SCENARIO = f"""
on = ["simulator", "sockets"]
prediction = true

[network]
nodes = {NODES}
delays = "aws"

[workload]
messages = {MESSAGES}
publishers = "in-turn"
interval_ms = 50
settle_s = 6
drain_s = 1
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    file = tmp_path_factory.mktemp("scenario") / "both.toml"
    file.write_text(SCENARIO)
    return load_plan(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(plan: Plan, folder: Path) -> dict[str, SweptRun]:
    """Both runs, by what they ran on; nothing of either is left."""
    before = sockets(), threading.active_count()
    swept = list(run_plan(plan, ThisProcess(), folder=folder))
    assert [run.failure for run in swept] == ["", ""]
    assert (sockets(), threading.active_count()) == before
    return {run.planned.scenario.on: run for run in swept}


def rows(folder: Path, run: SweptRun, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of a table, whatever run it is of."""
    found = pq.read_table(folder / run.planned.run / f"{table}.parquet").to_pylist()
    return sorted(tuple(row[column] for column in columns) for row in found)


def test_both_are_runs_of_their_own(runs: dict[str, SweptRun], plan: Plan, folder: Path) -> None:
    names = {run.planned.run for run in runs.values()}
    assert len(names) == 2
    assert {entry.name for entry in folder.iterdir()} == names
    assert '"on": "sockets"' in (folder / runs["sockets"].planned.run / RUN_FILE).read_text()
    again = list(run_plan(plan, ThisProcess(), folder=folder))
    assert all(run.skipped for run in again), "a sweep goes on where it was"
    result = {run.planned.scenario.on: run.result for run in again}["sockets"]
    assert result == runs["sockets"].result
    assert result is not None
    assert (result.on, result.trace_hash) == ("sockets", NO_HASH)
    assert "--set 'on=\"sockets\"'" in result.replay


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("nodes", ("node", "id", "region")),
        ("topologies", ("a", "b", "delay_us")),
        ("delays", ("a", "b", "delay_us")),
        ("messages", ("message", "node", "size_bytes", "expected", "chain")),
        ("deliveries", ("message", "publisher", "node", "region", "due")),
    ],
)
def test_what_does_not_depend_on_time_is_equal(
    runs: dict[str, SweptRun], folder: Path, table: str, columns: tuple[str, ...]
) -> None:
    simulated, ours = (rows(folder, runs[on], table, *columns) for on in ("simulator", "sockets"))
    assert ours
    assert ours == simulated


def test_delays_are_those_of_the_simulator(runs: dict[str, SweptRun]) -> None:
    simulated, ours = runs["simulator"].result, runs["sockets"].result
    assert simulated is not None
    assert ours is not None
    a, b = simulated.figures, ours.figures
    assert (b.delivered, b.lost, b.connected) == (MESSAGES * (NODES - 1), 0, True)
    assert b.degree == a.degree
    assert b.duplicates_per_message == pytest.approx(a.duplicates_per_message, rel=0.05)
    # A machine that is busy with other tests delivers late, and never early.
    assert a.delay_ms.mean - 0.1 <= b.delay_ms.mean <= 1.1 * a.delay_ms.mean
    assert b.hops.mean == pytest.approx(a.hops.mean, rel=0.1)
    assert b.held.count > MESSAGES * NODES
    assert 0 <= b.held.late_ms_mean <= b.held.late_ms_max
    assert b.prediction is not None
    assert b.prediction.links == a.prediction.links == NODES * 2
    assert b.prediction.measured_links > 0


def test_no_round_trip_is_shorter_than_its_way(runs: dict[str, SweptRun], folder: Path) -> None:
    simulated, ours = (
        {(a, b): rtt_us for a, b, rtt_us in rows(folder, runs[on], "links", "a", "b", "rtt_us_min")}
        for on in ("simulator", "sockets")
    )
    known = ours.keys() & simulated.keys()
    assert len(known) >= NODES * 4
    assert all(ours[pair] >= simulated[pair] - 10 for pair in known)


def small(**changes: Any) -> Scenario:
    network = NetworkSettings(nodes=5, delays=1.0)
    workload = WorkloadSettings(messages=3, interval_ms=20.0, settle_s=1.0, drain_s=0.2)
    return Scenario(name="small", on="sockets", network=network, workload=workload, **changes)


def test_progress_is_told() -> None:
    told: list[RunProgress] = []
    request = RunRequest(scenario=small(), seed=1, check=False, progress=told.append)
    outcome = run_over_sockets(request)
    assert outcome.tables is None, "nobody asked for them"
    assert outcome.checks.liveness == "off"
    assert told
    assert all(0 <= now.fraction < 1 and now.unit == "s over sockets" for now in told)
    assert [now.fraction for now in told] == sorted(now.fraction for now in told)


def test_a_failed_check_says_how_to_see_it_again() -> None:
    # Messages that have no time to arrive are lost.
    scenario = Scenario(
        name="short",
        on="sockets",
        network=NetworkSettings(nodes=5, delays=50.0),
        workload=WorkloadSettings(messages=2, interval_ms=1.0, settle_s=1.5, drain_s=0.0),
    )
    story = r"(?s)seed 7, over sockets: .*never came.*replay: x"
    with pytest.raises(SimulationFailure, match=story):
        run_over_sockets(RunRequest(scenario=scenario, seed=7, replay="x"))


def test_nodes_join_in_the_order_of_the_simulator() -> None:
    scenario = Scenario(name="far", network=NetworkSettings(nodes=16))
    order = joining_order(scenario, 1)
    assert sorted(order) == list(range(16))
    assert order != list(range(16)), "some are nearer to the tracker"


def test_a_run_can_be_cancelled() -> None:
    before = sockets()

    def stop(now: RunProgress) -> None:
        if now.done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_over_sockets(RunRequest(scenario=small(), seed=1, progress=stop))
    assert sockets() == before
    assert asyncio._get_running_loop() is None


def test_files_are_asked_for_as_far_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: asked.append(limits))
    allow_files(NetworkSettings(nodes=4))
    assert asked == []
    allow_files(NetworkSettings(nodes=128))
    assert asked == [(128 * 14 + 200, 4096)]
    with pytest.raises(ConfigError, match=r"network\.nodes = 512: .* allows 4,096: .*ulimit -n"):
        allow_files(NetworkSettings(nodes=512))
