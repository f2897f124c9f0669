"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from shoal.lab.kinds import find_kind
from shoal.lab.plan import Plan
from shoal.lab.runner import RunResult


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
