"""`shoal lab`: run experiments and see what they give."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

# Imported inside the commands: the simulator and its numerics, which `--help` can do without.

lab = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run experiments under virtual time.\n\nExample: shoal lab list",
)


@lab.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A scenario's name, or the path of a .toml file.")
    ],
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed gives another run.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a field of the scenario, as a TOML value; may be given often.",
        ),
    ] = None,
    wire: Annotated[
        bool, typer.Option("--wire", help="Pass every message through its codec.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the run's tables, as Parquet, into a folder of its own in DIR.",
            show_default=False,
        ),
    ] = None,
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
    """Run one scenario and show what it gave.

    The same scenario and seed give the same run, event by event: compare the trace_hash. If a
    check fails, the exit code is 1 and the last line is the command that shows it again.

    Example: shoal lab run streams-smoke --seed 7 --set network.nodes=256
    """
    from shoal.cli.progress import ProgressLine
    from shoal.cli.tables import show_result
    from shoal.lab.catalogue import find_scenario
    from shoal.lab.run_files import RunWriter
    from shoal.lab.runner import replay_command, run_scenario
    from shoal.lab.scenario import load_scenario

    overrides = [*(settings or ()), *(["network.wire=true"] if wire else ())]
    scenario = load_scenario(find_scenario(name), overrides)
    seed = scenario.seed if seed is None else seed
    with (
        nullcontext() if out is None else RunWriter(out) as writer,
        ProgressLine(f"{scenario.name}, seed {seed}") as progress,
    ):
        result = run_scenario(
            scenario,
            seed,
            check=check,
            overrides=overrides,
            # By the name that was given: a file need not lie among those that have a name.
            replay=replay_command(name, seed, overrides, check),
            progress=progress.update,
            writer=writer,
        )
    if json:
        print(result.as_json().decode())
    else:
        show_result(result)


@lab.command(name="list")
def list_() -> None:
    """List the scenarios that come with Shoal.

    Example: shoal lab list
    """
    from shoal.cli.tables import show_scenarios
    from shoal.lab.catalogue import list_scenarios
    from shoal.lab.scenario import load_scenario

    show_scenarios([load_scenario(path) for path in list_scenarios()])
