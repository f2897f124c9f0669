"""Runs on a terminal: a table of one, or a line for each of a sweep and what came of it all."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from shoal.cli.interrupts import EXIT_STOPPED
from shoal.cli.progress import ProgressLine, show_duration
from shoal.cli.spark import environment_settings
from shoal.cli.tables import show_result
from shoal.lab.kinds import find_kind
from shoal.lab.places import RunPlace, ThisProcess
from shoal.lab.plan import Plan
from shoal.lab.sweep import SweepFailed, SweptRun, run_plan
from shoal.sim.simulation import SimulationFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def processes(jobs: int | None) -> RunPlace:
    """So many, or one for each processor that we may use."""
    from shoal.lab.processes import Processes

    if jobs is None and hasattr(os, "sched_getaffinity"):
        jobs = len(os.sched_getaffinity(0))
    return Processes(jobs or os.cpu_count() or 1)


def executors(master: str, environment: Path | None) -> RunPlace:
    """Those of a Spark cluster."""
    from shoal.lab.executors import Executors
    from shoal.pipeline.session import SessionSettings, spark_session

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
