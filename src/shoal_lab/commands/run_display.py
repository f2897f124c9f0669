"""Runs on a terminal: a table of one, or a line for each of a sweep and what came of it all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table

from shoal.cli.terminal.progress import ProgressLine, show_duration
from shoal.sim.simulation import SimulationFailure
from shoal_lab.runs.places import RunPlace, ThisProcess
from shoal_lab.runs.plan import Plan
from shoal_lab.runs.runner import RunResult
from shoal_lab.runs.sweep import SweepFailed, SweptRun, run_plan
from shoal_lab.scenarios.experiment_kinds import find_kind
from shoal_spark.commands import EXIT_STOPPED, environment_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def processes(jobs: int | None) -> RunPlace:
    """So many, or one for each processor that we may use."""
    from shoal_lab.runs.local_processes import Processes

    if jobs is None and hasattr(os, "sched_getaffinity"):
        jobs = len(os.sched_getaffinity(0))
    return Processes(jobs or os.cpu_count() or 1)


def executors(master: str, environment: Path | None) -> RunPlace:
    """Those of a Spark cluster."""
    from shoal_lab.runs.spark_executors import Executors
    from shoal_spark.session import SessionSettings, spark_session

    settings = SessionSettings(
        master=master,
        app="shoal lab run",
        # The driver hands out tasks, and gets a few figures of each.
        driver_memory="1g",
        quick_start=True,
        more=environment_settings(environment),
    )

    def start() -> AbstractContextManager[SparkSession]:
        typer.echo(f"starting Spark on {master}", err=True)
        return spark_session(settings)

    return Executors(start)


def run_one(
    plan: Plan, *, folder: Path | None, again: bool, check: bool | None, json: bool
) -> None:
    """Run a plan of one run here and show what it gives; SimulationFailure if a check failed."""
    (planned,) = plan.runs
    with ProgressLine(f"{planned.scenario.name}, seed {planned.seed}") as progress:
        place = ThisProcess(progress.update)
        (run,) = run_plan(plan, place, folder=folder, again=again, check=check, notice=_notice)
    if run.skipped:
        assert folder is not None
        _notice(f"{folder / planned.run} is there already: --again runs it anew")
    if json:
        print(_as_json(run))
    if run.result is None:
        raise SimulationFailure(run.failure)
    if not json:
        show_result(run.result)


def sweep(
    plan: Plan,
    place: RunPlace,
    *,
    folder: Path | None,
    again: bool,
    check: bool | None,
    json: bool,
) -> None:
    """Run a plan and show what it gives; SweepFailed if a check failed somewhere."""
    begin_s = time.monotonic()
    over: list[SweptRun] = []
    try:
        with (
            ProgressLine(plan.name) as progress,
            closing(
                run_plan(
                    plan,
                    place,
                    folder=folder,
                    again=again,
                    check=check,
                    progress=progress.update,
                    notice=_notice,
                )
            ) as runs,
        ):
            for run in runs:
                progress.pause()
                over.append(run)
                print(_as_json(run) if json else _as_line(run), flush=True)
    except KeyboardInterrupt:
        kept = "the same command goes on from here" if folder else "nothing was kept: use --out"
        typer.echo(f"stopped: {len(over)} of {len(plan.runs)} runs are done; {kept}", err=True)
        raise typer.Exit(EXIT_STOPPED) from None
    failed = [run for run in over if run.failure]
    seconds = time.monotonic() - begin_s
    skipped = sum(run.skipped for run in over)
    if json:
        summary = {
            "sweep": plan.name,
            "runs": len(over),
            "ran": len(over) - skipped - len(failed),
            "skipped": skipped,
            "failed": len(failed),
            "seconds": round(seconds, 3),
            "out": None if folder is None else str(folder),
        }
        print(msgspec.json.encode(summary).decode())
    else:
        there = f", {skipped} were there already" if skipped else ""
        print(f"{plan.name}: {len(over)} runs in {show_duration(seconds)}{there}")
    if failed:
        stories = "\n".join(run.failure for run in failed)
        raise SweepFailed(f"{len(failed)} of {len(over)} runs failed:\n{stories}")


def _notice(text: str) -> None:
    typer.echo(text, err=True)


def _as_line(run: SweptRun) -> str:
    if run.result is None:
        return f"{run.planned.title}: FAILED"
    kind = find_kind(run.result.protocol, run.result.experiment)
    there = " (was there)" if run.skipped else ""
    return f"{run.planned.title}: {kind.line(run.result.figures)}{there}"


def _as_json(run: SweptRun) -> str:
    more = {"run": run.planned.run, "point": run.planned.point, "skipped": run.skipped}
    if run.result is None:
        failed = {**more, "replay": run.planned.replay, "failure": run.failure}
        return msgspec.json.encode(failed).decode()
    return run.result.as_json(**more).decode()


# Results as tables for people.


def show_result(result: RunResult) -> None:
    """One run on stdout."""
    kind = find_kind(result.protocol, result.experiment)
    table = Table(title=f"{result.scenario}, seed {result.seed}", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in (*kind.rows(result.figures), *_run_rows(result)):
        table.add_row(name, value)
    Console().print(table, markup=False)


def show_scenarios(plans: Sequence[Plan]) -> None:
    """What can be run, on stdout."""
    table = Table(Column("name", no_wrap=True), "experiment", "nodes", "runs", "faults", "about")
    for plan in plans:
        scenarios = [run.scenario for run in plan.runs]
        sizes = sorted({scenario.network.nodes for scenario in scenarios})
        table.add_row(
            plan.name,
            f"{scenarios[0].protocol}/{scenarios[0].experiment}",
            f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}",
            f"{len(plan.runs):,}",
            str(len(scenarios[0].faults)),
            scenarios[0].about,
        )
    Console().print(table, markup=False)


def _run_rows(result: RunResult) -> list[tuple[str, str]]:
    seconds = "simulated seconds" if result.on == "simulator" else f"seconds over {result.on}"
    return [
        ("checks", f"safety {result.checks.safety}, liveness {result.checks.liveness}"),
        (
            "run",
            f"{result.simulated_seconds:.1f} {seconds}, {result.events:,} events in "
            f"{result.cpu_seconds:.2f} CPU seconds ({result.events_per_cpu_second:,.0f} a second)",
        ),
        ("trace_hash", result.trace_hash),
    ]
