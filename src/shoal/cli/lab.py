"""`shoal lab`: run experiments and see what they give."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.base.errors import UsageError
from shoal.cli.local_paths import local_path
from shoal.cli.spark import Environment

# Imported inside the commands: the simulator and its numerics, which `--help` can do without.

lab = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run experiments, most of them under virtual time.\n\nExample: shoal lab list",
)


@lab.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A scenario's name, or the path of a .toml file.")
    ],
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed gives another run.", show_default=False)
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a run; of a sweep, a summary at the end."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a field of the scenario, as a TOML value, or as a list of them to sweep "
            "over; may be given often.",
        ),
    ] = None,
    wire: Annotated[
        bool, typer.Option("--wire", help="Pass every message through its codec.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="simulator: under virtual time. sockets: real nodes and connections on this "
            "machine, in real time, with the same delays. By default what the scenario says.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write each run's tables, as Parquet, into a folder of its own in DIR.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at once; as many as there are processors.", show_default=False
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run also what is in DIR already, and replace it.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Run on the executors of this Spark master, spark://HOST:PORT, which must see DIR "
            "under the same path.",
            show_default=False,
        ),
    ] = None,
    environment: Environment = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Check safety at every step and liveness at the end, or neither. By default "
            "liveness always, safety up to 200 nodes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a scenario and show what it gave.

    The same scenario and seed give the same simulation, event by event: compare the trace_hash.
    Over sockets runs are alike, not equal. If a check fails, the exit code is 1 and the last line
    is the command that shows it again.

    A list sweeps a field, and `repeats` takes further seeds: every run is one line. Runs that
    are in DIR are not run again, so that a sweep that was stopped goes on where it was; but for
    those that were not checked, if --check asks for it.

    Example: shoal lab run streams-smoke --set nodes=[32,256] --set repeats=3 --out results

    On a cluster: shoal lab run streams-propagation --out /shared/results
    --master spark://HOST:7077 --environment shoal.zip
    """
    from shoal.cli.sweep import executors, processes, run_one, sweep
    from shoal.lab.catalogue import find_scenario
    from shoal.lab.plan import load_plan

    folder = None if out is None else local_path("--out", out)
    if environment is not None and master is None:
        raise UsageError(f"--environment {environment} is for executors: name their --master")
    twice = [one for one in settings or () if one.partition("=")[0].strip() == "seed"]
    if twice and seed is not None:
        raise UsageError(f"--seed {seed} and --set {twice[-1]}: leave one of them out")
    overrides = [*(settings or ()), *(["network.wire=true"] if wire else ())]
    overrides += [] if on is None else [f"on={on}"]
    # By the name that was given: a file need not lie among those that have a name.
    plan = load_plan(find_scenario(name), overrides, seed=seed, check=check, called=name)
    in_real_time = any(run.in_real_time for run in plan.runs)
    if master is not None:
        if jobs is not None:
            raise UsageError(f"--jobs {jobs} is for this machine: executors have as many as cores")
        if in_real_time:
            raise UsageError(
                f"--master is for simulations: {plan.name} has runs in real time, which need this "
                "machine: leave --master out"
            )
        place = executors(master, environment)
        sweep(plan, place, folder=folder, again=again, check=check, json=json)
    elif len(plan.runs) > 1:
        # Whatever else runs makes real deliveries late.
        place = processes(1 if jobs is None and in_real_time else jobs)
        sweep(plan, place, folder=folder, again=again, check=check, json=json)
    else:
        run_one(plan, folder=folder, again=again, check=check, json=json)


@lab.command(name="list")
def list_() -> None:
    """List the scenarios that come with Shoal.

    Example: shoal lab list
    """
    from shoal.cli.tables import show_scenarios
    from shoal.lab.catalogue import list_scenarios
    from shoal.lab.plan import load_plan

    show_scenarios([load_plan(path) for path in list_scenarios()])
